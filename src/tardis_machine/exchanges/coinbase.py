"""Coinbase Exchange. https://docs.cdp.coinbase.com/exchange/docs/websocket-channels

A message names its type: `{"type": "match", "product_id": "BTC-USD", ...}`. Numbers are text. Times have microseconds, and now and
then are the year 1: then the time before it, or the recorder's, has to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels_by_side, number_if_there, text_of, timestamp_from_text, to_number
from ._remembered import bound_symbols
from ._signing import read_base64_secret, sign


class CoinbaseTradeMapper(Mapper):
    channels = ("match",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "match"

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        return (
            Trade(
                message.get("product_id", UNSET),
                self.exchange,
                text_of(message.get("trade_id", UNSET)),
                to_number(message.get("price", UNSET)),
                to_number(message.get("size", UNSET)),
                "buy" if message.get("side") == "sell" else "sell",  # theirs is the maker's side
                timestamp_from_text(message.get("time", UNSET), micros=True),
                local_timestamp,
            ),
        )


def _is_before_1970(timestamp: str | None) -> bool:
    return timestamp is not None and (timestamp < "1970" or timestamp[0] == "-")


class CoinbaseBookChangeMapper(Mapper):
    channels = ("snapshot", "l2update")

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # The last time that made sense, by symbol.
        self._last_timestamps: dict[Any, str | None] = {}

    def accepts(self, message: Json) -> bool:
        return message.get("type") in ("l2update", "snapshot")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol = message.get("product_id", UNSET)
        if message["type"] == "snapshot":
            timestamp = timestamp_from_text(message["time"], micros=True) if "time" in message else local_timestamp
            if _is_before_1970(timestamp):
                timestamp = local_timestamp
            bids, asks = _snapshot_levels(message["bids"]), _snapshot_levels(message["asks"])
            return (BookChange(symbol, self.exchange, True, bids, asks, timestamp, local_timestamp),)
        timestamp = timestamp_from_text(message.get("time", UNSET), micros=True)
        if _is_before_1970(timestamp):
            if symbol not in self._last_timestamps:
                return ()
            timestamp = self._last_timestamps[symbol]
        else:
            if symbol not in self._last_timestamps:
                bound_symbols(self._last_timestamps)
            self._last_timestamps[symbol] = timestamp
        bids, asks = levels_by_side(message["changes"])
        return (BookChange(symbol, self.exchange, False, bids, asks, timestamp, local_timestamp),)


def _snapshot_levels(levels: Sequence[Sequence[Any]]) -> list[BookLevel]:
    """Without amounts that can't be: those were seen in snapshots."""
    pairs = ((to_number(price), to_number(amount)) for price, amount, *_ in levels)
    return [BookLevel(price, amount) for price, amount in pairs if amount >= 0]


class CoinbaseBookTickerMapper(Mapper):
    channels = ("ticker",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "ticker"

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        timestamp = timestamp_from_text(message["time"], micros=True) if "time" in message else local_timestamp
        return [
            BookTicker(
                symbol=message.get("product_id", UNSET),
                exchange=self.exchange,
                ask_amount=number_if_there(message, "best_ask_size"),
                ask_price=number_if_there(message, "best_ask"),
                bid_price=number_if_there(message, "best_bid"),
                bid_amount=number_if_there(message, "best_bid_size"),
                timestamp=local_timestamp if _is_before_1970(timestamp) else timestamp,
                local_timestamp=local_timestamp,
            )
        ]


# What a client subscribes to, as the channels that the recorder kept of it.
_RECORDED = {
    "level2": ("snapshot", "l2update"),
    "level2_batch": ("snapshot", "l2update"),
    "matches": ("match", "last_match"),
    "full": ("received", "open", "done", "match", "change", "full_snapshot"),
    "ticker": ("ticker",),
    "ticker_batch": ("ticker",),
    "rfq_matches": ("rfq_matches",),
}


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "subscribe", "product_ids": ["BTC-USD"], "channels": ["level2", {"name": "ticker", "product_ids": [...]}]}`."""
    if message.get("type") != "subscribe":
        return None
    filters: list[Filter] = []
    for entry in message.get("channels", ()):
        name = entry if isinstance(entry, str) else entry["name"]
        products = message.get("product_ids") if isinstance(entry, str) else entry.get("product_ids", message.get("product_ids"))
        # Channels without market data (heartbeat, status) were not recorded.
        filters.extend(Filter(channel, UNSET if products is None else products) for channel in _RECORDED.get(name, ()))
    return filters


_BOOK = ("l2update", "snapshot")
_CREDENTIALS = _KEY, _SECRET, _PASSPHRASE = ("COINBASE_API_KEY", "COINBASE_API_SECRET", "COINBASE_API_PASSPHRASE")
# The book in batches of 50 ms: each change of it is only for who is logged in, at an address of its own.
_BATCHES, _EVERY_CHANGE, _DIRECT_URL = "level2_batch", "level2", "wss://ws-direct.exchange.coinbase.com"
_ASKED = {"snapshot": _BATCHES, "l2update": _BATCHES, "match": "matches", "ticker": "ticker"}


class CoinbaseFeed(Feed):
    """Answers `{"type": "subscriptions", …}` or `{"type": "error", "message": …, "reason": …}`. Who has an account logs in with the
    subscription, and hears every change of the book."""

    credential_names = _CREDENTIALS

    @property
    def _logs_in(self) -> bool:
        return all(name in self.credentials for name in _CREDENTIALS)

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("", _DIRECT_URL) if self._logs_in else Handshake("")

    def subscribe(self, now_us: int) -> list[str]:
        asked = {**_ASKED, "snapshot": _EVERY_CHANGE, "l2update": _EVERY_CHANGE} if self._logs_in else _ASKED
        products: dict[str, dict[str, None]] = {}
        for item in self.filters:
            products.setdefault(asked[item.channel], {}).update(dict.fromkeys(self.symbols(item)))
        channels = [{"name": name, "product_ids": list(ids)} for name, ids in products.items()]
        return [to_frame({"type": "subscribe", "channels": channels, **self._login(now_us // 1_000_000)})]

    def _login(self, now_s: int) -> dict[str, str]:
        """What a subscription is signed with."""
        if not self._logs_in:
            return {}
        secret = read_base64_secret(_SECRET, self.credentials[_SECRET])
        return {
            "signature": sign(secret, f"{now_s}GET/users/self/verify"),
            "key": self.credentials[_KEY],
            "passphrase": self.credentials[_PASSPHRASE],
            "timestamp": str(now_s),
        }

    def classify(self, message: Json) -> Heard:
        kind = message.get("type")
        if kind in _BOOK:
            return BookStep(message["product_id"], kind == "snapshot")
        if kind in ("match", "ticker"):
            return FrameKind.DATA
        if kind == "heartbeat":
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if kind == "error" else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = ": ".join(message[name] for name in ("message", "reason") if message.get(name))
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="coinbase",
        docs="https://docs.cdp.coinbase.com/exchange/docs/websocket-channels",
        channels=(
            "match",
            "subscriptions",
            "received",
            "open",
            "done",
            "change",
            "l2update",
            "ticker",
            "snapshot",
            "last_match",
            "full_snapshot",
            "rfq_matches",
        ),
        mappers={
            "trade": (Version(CoinbaseTradeMapper),),
            "book_change": (Version(CoinbaseBookChangeMapper),),
            "book_ticker": (Version(CoinbaseBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(CoinbaseFeed, "wss://ws-feed.exchange.coinbase.com"),
    ),
)

ABOUT = {
    "coinbase": About("all levels", "With an account's credentials live books come without batching."),
}
