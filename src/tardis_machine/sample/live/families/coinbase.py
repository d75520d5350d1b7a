"""Coinbase Exchange: `{"type": "subscribe", "product_ids": […], "channels": ["matches", {"name": "level2_batch", …}]}`.
https://docs.cdp.coinbase.com/exchange/websocket-feed/overview
"""

from __future__ import annotations

import re

from ...venues.coinbase import CoinbaseVenue
from ..misbehaviour import ErrorKind
from ._contract import Dialogue, Family, Frame, Hangup, Json, as_list, parse, to_json

# Of the exchange's channels, what the market has.
_CHANNELS = {
    "level2": "l2update",
    "level2_batch": "level2_batch",
    "matches": "match",
    "ticker": "ticker",
    "heartbeat": "heartbeat",
}
_SIGNED = ("level2",)
_PATIENCE_S = 5.0
_ERRORS: dict[ErrorKind, tuple[str, str]] = {
    "rate_limit": ("Failed to subscribe", "rate limit exceeded"),
    "auth": ("Authentication Failed", "invalid signature"),
    "server": ("Internal server error", "internal server error"),
}


class CoinbaseDialogue(Dialogue):
    """A client that does not subscribe within five seconds is sent away."""

    deflate = True

    @staticmethod
    def serves(path: str) -> bool:
        return path == "/"

    def hear(self, text: str) -> list[Frame]:
        request = parse(text)
        if request is None:
            return [_refuse("Malformed JSON", "")]
        kind = request.get("type")
        if kind not in ("subscribe", "unsubscribe"):
            return [_refuse("Invalid message type", f"{kind} is not a valid type")]
        try:
            asked = self._read(request, signed=all(name in request for name in ("signature", "key", "passphrase", "timestamp")))
        except ValueError as error:
            return [_refuse("Failed to subscribe", str(error))]
        opened: list[Frame] = []
        for name, product in asked:
            if kind == "unsubscribe":
                self.subscriptions.unsubscribe((name, product))
            else:
                opened += self.subscriptions.subscribe((name, product), self.venue.topics(_CHANNELS[name], product))
        return [self._subscriptions(), *opened]

    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        return [_refuse(*_ERRORS[kind])]

    def tick(self) -> list[Frame]:
        if not self.subscriptions.keys and self.timer_s - max(self.opened_s, self.heard_s) > _PATIENCE_S:
            return [Hangup(1008, "Expected a subscribe message")]
        return []

    def _read(self, request: Json, signed: bool) -> list[tuple[str, str]]:
        asked = []
        for entry in as_list(request.get("channels")):
            name, own = (entry.get("name"), entry.get("product_ids")) if isinstance(entry, dict) else (entry, None)
            products = as_list(own if own is not None else request.get("product_ids"))
            if name in ("full", "level3", *_SIGNED) and not signed:
                raise ValueError("level2, level3, and full channels now require authentication")
            if name not in _CHANNELS:
                raise ValueError(f"{name} is not a valid channel")
            if not products:
                raise ValueError(f"You need to specify at least one product ID for channel {name}")
            for product in products:
                if not self.venue.topics(_CHANNELS[name], product):
                    raise ValueError(f"{product} is not a valid product")
                asked.append((name, product))
        return asked

    def _subscriptions(self) -> str:
        products: dict[str, list[str]] = {}
        for key in self.subscriptions.keys:
            assert isinstance(key, tuple)
            products.setdefault(key[0], []).append(key[1])
        channels = [{"name": name, "product_ids": listed, "account_ids": None} for name, listed in products.items()]
        return to_json({"type": "subscriptions", "channels": channels})


def _refuse(message: str, reason: str) -> str:
    return to_json({"type": "error", "message": message, "reason": reason})


FAMILIES = (Family(CoinbaseVenue(), CoinbaseDialogue, re.compile(rb'"time":"([^"]+)"')),)
