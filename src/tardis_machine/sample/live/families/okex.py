"""OKX: `{"op": "subscribe", "args": [{"channel": "books", "instId": "BTC-USDT"}]}`, pings as plain text. https://www.okx.com/docs-v5

Some channels live at /ws/v5/public, some at /ws/v5/business; the fastest books are for those who log in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...venues.okex import OkexSpreadsVenue, OkexVenue
from ..broadcast import Topic
from ..misbehaviour import ErrorKind
from ..subscriptions import Subscriptions
from ._contract import Dialogue, Family, Frame, Hangup, Json, as_list, parse, to_json

_BUSINESS = ("trades-all", "sprd-public-trades", "sprd-bbo-tbt", "sprd-books5", "sprd-tickers")
_SIGNED = ("books-l2-tbt",)
_BY_INDEX = ("index-tickers", "opt-summary")
_BY_KIND = ("liquidation-orders",)
_WITHOUT_LAST = ("trades", "trades-all", "sprd-public-trades", *_BY_KIND)
_SILENCE_S = 30.0
_ERRORS: dict[ErrorKind, tuple[str, str]] = {
    "rate_limit": ("60014", "Requests too frequent"),
    "auth": ("60009", "Login failed."),
    "server": ("63999", "Internal system error"),
}


class OkexDialogue(Dialogue):
    """Where nothing was said for thirty seconds by either side, the exchange hangs up."""

    def __init__(self, subscriptions: Subscriptions, path: str, query: Mapping[str, str]) -> None:
        super().__init__(subscriptions, path, query)
        self._business = path.endswith("/business")
        self._known = False
        self._identity = f"{self.venue.next_identity():08x}"

    @staticmethod
    def serves(path: str) -> bool:
        return path in ("/ws/v5/public", "/ws/v5/business")

    def hear(self, text: str) -> list[Frame]:
        if text == "ping":
            return ["pong"]
        request = parse(text)
        operation = None if request is None else request.get("op")
        if operation == "login":
            self._known = True
            return [self._event("login", code="0", msg="")]
        arguments = [] if request is None else as_list(request.get("args"))
        if operation not in ("subscribe", "unsubscribe") or not all(isinstance(each, dict) for each in arguments):
            return [self._refuse("60012", f"Illegal request: {text}")]
        frames: list[Frame] = []
        for argument in arguments:
            frames += self._subscribe(argument) if operation == "subscribe" else self._unsubscribe(argument)
        return frames

    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        return [self._refuse(*_ERRORS[kind])]

    def tick(self) -> list[Frame]:
        if self.timer_s - max(self.heard_s, self.sent_s) > _SILENCE_S:
            return [Hangup(4004, "No data received in 30s.")]
        return []

    def _subscribe(self, argument: Json) -> list[Frame]:
        channel, topics = argument.get("channel", ""), self._read(argument)
        if not topics or (channel in _BUSINESS) != self._business:
            given = ",".join(f"{name}:{value}" for name, value in argument.items())
            described = "Please use the correct URL, channel and parameters referring to API document."
            return [self._refuse("60018", f"Wrong URL or {given} doesn't exist. {described}")]
        if channel in _SIGNED and not self._known:
            return [self._refuse("60011", "Please log in")]
        last = channel not in (*_WITHOUT_LAST, *self.venue.venue.book_channels) or channel.startswith("sprd-b")
        opened = self.subscriptions.subscribe(_key(argument), topics, last=last)
        return [self._event("subscribe", arg=argument), *opened]

    def _unsubscribe(self, argument: Json) -> list[Frame]:
        self.subscriptions.unsubscribe(_key(argument))
        return [self._event("unsubscribe", arg=argument)]

    def _read(self, argument: Json) -> list[Topic]:
        channel = argument.get("channel", "")
        if channel in _BY_INDEX:
            index = argument.get("instId") or argument.get("instFamily") or argument.get("uly")
            known = {"-".join(topic.symbol.split("-")[:2]) for topic in self.venue.topics("trades")}
            return [Topic(channel, index)] if index in known else []
        if channel in _BY_KIND:
            return self.venue.topics(channel) if argument.get("instType") in ("SWAP", "FUTURES", "ANY") else []
        symbol = argument.get("sprdId" if channel.startswith("sprd-") else "instId")
        return self.venue.topics(channel, symbol) if symbol and "/" not in channel else []

    def _event(self, event: str, **fields: Json) -> str:
        return to_json({"event": event, **fields, "connId": self._identity})

    def _refuse(self, code: str, message: str) -> str:
        return self._event("error", code=code, msg=message)


def _key(argument: Json) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(argument.items()))


_TIMES = re.compile(rb'"ts":"([0-9]{13})"')
FAMILIES = (
    *(Family(OkexVenue(name), OkexDialogue, _TIMES) for name in ("okex", "okex-swap", "okex-futures", "okex-options")),
    Family(OkexSpreadsVenue(), OkexDialogue, _TIMES),
)
