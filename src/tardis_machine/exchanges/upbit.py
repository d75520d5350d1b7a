"""Upbit. https://global-docs.upbit.com/reference/websocket-guide

A message says its type and its market, which begins with the quote currency: `{"type": "trade", "code": "KRW-BTC", "trade_price":
58.4, "trade_volume": 836.1, "ask_bid": "ASK", "trade_timestamp": 1614729599000, "sequential_id": 16147295990000001, …}`. Numbers are
JSON numbers, and come out as they are; times are milliseconds, in some messages microseconds. A book is always whole, and each of its
units has a level of both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, Trade
from ._exchange import About, Exchange, Version
from ._feed import Feed, FeedError, FrameKind, Handshake, LiveApi, kind_of_error, to_frame
from ._long_numbers import long_numbers_as_text
from ._mapper import Json, Mapper
from ._parsing import text_of, timestamp_from_us, to_number, verbatim

_CHANNELS = ("trade", "orderbook", "ticker")
_with_long_ids = long_numbers_as_text("sequential_id")


class UpbitTradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "trade"

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                message.get("code", UNSET),
                self.exchange,
                text_of(message.get("sequential_id", UNSET)),
                verbatim(message.get("trade_price", UNSET)),
                verbatim(message.get("trade_volume", UNSET)),
                "sell" if message.get("ask_bid") == "ASK" else "buy",
                timestamp_from_us(message.get("trade_timestamp", UNSET)),
                local_timestamp,
            )
        ]


class UpbitBookChangeMapper(Mapper):
    channels = ("orderbook",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "orderbook"

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        units = message["orderbook_units"]
        bids, asks = _levels(units, "bid_price", "bid_size"), _levels(units, "ask_price", "ask_size")
        timestamp = timestamp_from_us(message.get("timestamp", UNSET))
        return [BookChange(message.get("code", UNSET), self.exchange, True, bids, asks, timestamp, local_timestamp)]


def _levels(units: Sequence[Json], price: str, amount: str) -> list[BookLevel]:
    """One side of the units; where the other one is deeper, the price is 0."""
    return [
        BookLevel(verbatim(unit[price]), verbatim(unit.get(amount, UNSET)))
        for unit in units
        if to_number(unit.get(price, UNSET)) > 0
    ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`[{"ticket": "mine"}, {"type": "trade", "codes": ["KRW-BTC"]}, {"format": "SIMPLE"}]`."""
    if not isinstance(message, list):
        return None
    asked = [part for part in message if isinstance(part, dict) and part.get("type") in _CHANNELS]
    return [Filter(part["type"], UNSET if part.get("codes") is None else part["codes"]) for part in asked]


class UpbitFeed(Feed):
    """Says nothing of subscriptions that it took, `{"error": {"name": …, "message": …}}` of others. Frames are binary, of JSON. It
    closes what is silent for two minutes."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/websocket/v1")

    def subscribe(self, now_us: int) -> list[str]:
        parts = [
            {"type": item.channel, "codes": list(dict.fromkeys(self.symbols(item))), "isOnlyRealtime": True}
            for item in self.filters
        ]
        return [to_frame([{"ticket": str(now_us)}, *parts])]

    @staticmethod
    def decode(raw: bytes) -> Json:
        return orjson.loads(_with_long_ids(raw))

    def classify(self, message: Json) -> FrameKind:
        kind = message.get("type")
        if kind in _CHANNELS:
            return FrameKind.DATA
        return FrameKind.ERROR if kind == "error" or "error" in message else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        error = message.get("error")
        told = error if isinstance(error, dict) else message
        details = f"{told.get('name', '')} {told.get('message', '')}".strip() or "an error without details"
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="upbit",
        docs="https://global-docs.upbit.com/reference/websocket-guide",
        channels=_CHANNELS,
        mappers={"trade": (Version(UpbitTradeMapper),), "book_change": (Version(UpbitBookChangeMapper),)},
        subscriptions=read_subscription,
        live=LiveApi(UpbitFeed, "wss://api.upbit.com"),
        prepare=_with_long_ids,
    ),
)

ABOUT = {
    "upbit": About(
        "what the venue sends, whole each time", "Symbols begin with the quote currency; ids of trades keep all digits."
    ),
}
