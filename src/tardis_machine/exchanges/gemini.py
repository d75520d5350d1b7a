"""Gemini. https://developer.gemini.com/websocket/streams

Until 2026-07-24 (market data v2) a message names its type: `{"type": "l2_updates", "symbol": "BTCUSD", "changes": [["buy", "0.688",
"51.5"]]}`, and only the snapshot of a book has `auction_events`. Since (v3) it has short names alone, and no channel: a trade is what has
`t`, a ticker what has `B`. Symbols are then in lower case, and in upper case in what is emitted. Times of v3 are nanoseconds.

In v3 the first message of a book on a connection is the whole of it, which nothing in it says: a replay that begins amid a connection
takes a change for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, Trade, parse_timestamp_us
from ._exchange import About, Exchange, Version
from ._feed import Feed, FeedError, FrameKind, Handshake, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels, levels_by_side, nonzero_number, text_of, timestamp_from_ms, timestamp_from_us, to_number
from ._remembered import Seen

_V3_SINCE = "2026-07-24T00:00:00.000Z"
_V3_SINCE_US = parse_timestamp_us(_V3_SINCE)


class GeminiV2TradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "trade"

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        side = message.get("side")
        return (
            Trade(
                message.get("symbol", UNSET),
                self.exchange,
                text_of(message.get("event_id", UNSET)),
                to_number(message.get("price", UNSET)),
                to_number(message.get("quantity", UNSET)),
                side if side in ("buy", "sell") else "unknown",  # a block trade has no taker
                timestamp_from_ms(message.get("timestamp", UNSET)),
                local_timestamp,
            ),
        )


class GeminiV2BookChangeMapper(Mapper):
    """The book tells no time."""

    channels = ("l2_updates",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "l2_updates"

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        bids, asks = levels_by_side(message["changes"])
        is_snapshot, symbol = "auction_events" in message, message.get("symbol", UNSET)
        return (BookChange(symbol, self.exchange, is_snapshot, bids, asks, local_timestamp, local_timestamp),)


def _from_nanoseconds(value: Any) -> str | None:
    """To the microsecond, divided as doubles are, which shows: no double holds all the digits."""
    nanoseconds = float(value) if type(value) is int else to_number(value)
    return timestamp_from_us(math.floor(nanoseconds / 1000)) if math.isfinite(nanoseconds) else None


class GeminiTradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return "t" in message

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        return (
            Trade(
                message["s"].upper(),
                self.exchange,
                _id_of(message),
                to_number(message.get("p", UNSET)),
                to_number(message.get("q", UNSET)),
                "sell" if message.get("m") else "buy",  # whether the buyer was the maker
                _from_nanoseconds(message.get("E", UNSET)),
                local_timestamp,
            ),
        )


def _id_of(trade: Json) -> str:
    if trade["t"] is None:
        raise ValueError("a trade has no t")
    return text_of(trade["t"])


class GeminiBookChangeMapper(Mapper):
    channels = ("depth",)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # Books whose first message, the whole of it, was seen.
        self._begun: Seen[str] = Seen()

    def accepts(self, message: Json) -> bool:
        return message.get("e") == "depthUpdate"

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        book = message["s"]
        symbol = book.upper()
        is_snapshot = book not in self._begun
        if is_snapshot:
            self._begun.add(book)
        bids, asks = levels(message["b"]), levels(message["a"])
        timestamp = _from_nanoseconds(message.get("E", UNSET))
        return (BookChange(symbol, self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp),)


class GeminiBookTickerMapper(Mapper):
    channels = ("bookTicker",)

    def accepts(self, message: Json) -> bool:
        return "B" in message

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookTicker]:
        return (
            BookTicker(
                symbol=message["s"].upper(),
                exchange=self.exchange,
                ask_amount=nonzero_number(message.get("A")),
                ask_price=nonzero_number(message.get("a")),
                bid_price=nonzero_number(message.get("b")),
                bid_amount=nonzero_number(message["B"]),
                timestamp=_from_nanoseconds(message.get("E", UNSET)),
                local_timestamp=local_timestamp,
            ),
        )


# What a subscription to the book of v2 brings.
_V2_CHANNELS = ("trade", "l2_updates", "auction_open", "auction_indicative", "auction_result")
# What the streams of v3 are called: `btcusd@depth@100ms`.
_STREAMS = {"trade": "trade", "depth": "depth@100ms", "bookTicker": "bookTicker"}


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """In v2 `{"type": "subscribe", "subscriptions": [{"name": "l2", "symbols": ["BTCUSD"]}]}`, in v3 also
    `{"method": "SUBSCRIBE", "params": ["btcusd@trade", "btcusd@depth@100ms"], "id": 1}`."""
    if message.get("type") == "subscribe":
        # Candles and mark prices were not recorded.
        books = [asked for asked in message["subscriptions"] if asked["name"] == "l2"]
        return [Filter(channel, asked.get("symbols", UNSET)) for asked in books for channel in _V2_CHANNELS]
    if message.get("method") != "SUBSCRIBE" or date_us < _V3_SINCE_US:
        return None
    symbols: dict[str, list[str]] = {}
    for stream in message["params"]:
        symbol, _, channel = stream.partition("@")
        channel = channel.partition("@")[0]
        if channel in _STREAMS:  # orders and books of a few levels were not recorded
            symbols.setdefault(channel, []).append(symbol.upper())
    return [Filter(channel, of_channel) for channel, of_channel in symbols.items()]


class GeminiFeed(Feed):
    """Answers `{"id": 1, "status": 200}`, or with a status from 400 on and an `error`. A book comes whole, then its changes, whose
    numbers are not known to be without gaps."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/?snapshot=-1")  # the whole book first, not its best levels

    def subscribe(self, now_us: int) -> list[str]:
        streams = [f"{symbol.lower()}@{_STREAMS[item.channel]}" for item in self.filters for symbol in self.symbols(item)]
        return [to_frame({"method": "SUBSCRIBE", "params": list(dict.fromkeys(streams)), "id": 1})]

    def classify(self, message: Json) -> FrameKind:
        if "s" in message:
            return FrameKind.DATA
        status = message.get("status", 0)
        is_refusal = "error" in message or message.get("result") == "error" or to_number(status) >= 400
        return FrameKind.ERROR if is_refusal else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        error = message.get("error")
        told = (error.get("code"), error.get("msg")) if isinstance(error, dict) else (message.get("status"), error)
        details = " ".join(text_of(part) for part in told if part is not None) or "an error without details"
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="gemini",
        docs="https://developer.gemini.com/websocket/streams",
        channels=(*_V2_CHANNELS, "depth", "bookTicker"),
        mappers={
            "trade": (Version(GeminiV2TradeMapper, _V3_SINCE), Version(GeminiTradeMapper)),
            "book_change": (Version(GeminiV2BookChangeMapper, _V3_SINCE), Version(GeminiBookChangeMapper)),
            "book_ticker": (Version(GeminiBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(GeminiFeed, "wss://ws.gemini.com"),
    ),
)

ABOUT = {
    "gemini": About(
        "all levels", "Since v3 the first message of a book on a connection is the whole of it, which nothing in it says."
    ),
}
