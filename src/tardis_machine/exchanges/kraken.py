"""Kraken. https://docs.kraken.com/api/docs/websocket-v2/trade

Until 2026-07-10 (v1) a message is an array that ends in channel and symbol, `[14, [...], "trade", "XBT/EUR"]`, numbers are text
and times seconds with a fraction. Since (v2) it is `{"channel": "trade", "type": "update", "data": [{"symbol": "BTC/USD"…}]}`
with numbers and ISO times. Symbols are spelled as they are: AAPLx/USD.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from heapq import nlargest, nsmallest
from typing import Any

import msgspec
import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, Trade, parse_timestamp_us
from ._exchange import About, Exchange, Version
from ._feed import (
    BookGate,
    BookStep,
    Credentials,
    Feed,
    FeedError,
    FrameKind,
    Handshake,
    Heard,
    LiveApi,
    in_batches,
    kind_of_error,
    to_frame,
)
from ._mapper import Json, Mapper
from ._parsing import levels, nonzero_number, text_of, timestamp_from_seconds, timestamp_from_text, to_number, verbatim
from ._remembered import Remembered
from ._spelling import AS_TYPED


class KrakenMapper(Mapper):
    """What both generations share: symbols in their own case."""

    spelling = AS_TYPED


class KrakenV1Mapper(KrakenMapper):
    """Events (heartbeats, answers) are objects, data is an array."""

    def accepts(self, message: Json) -> bool:
        return type(message) is list and message[-2] in self.channels


class KrakenV1TradeMapper(KrakenV1Mapper):
    channels = ("trade",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message[3]
        for price, amount, time, side, *_ in message[1]:
            yield Trade(
                symbol,
                self.exchange,
                UNSET,
                to_number(price),
                to_number(amount),
                "buy" if side == "b" else "sell",
                timestamp_from_seconds(time),
                local_timestamp,
            )


class KrakenV1BookChangeMapper(KrakenV1Mapper):
    """A snapshot has `as` and `bs`; an update `a` or `b`, or both, each in an object of its own."""

    channels = ("book",)

    def accepts(self, message: Json) -> bool:
        # The channel names its depth: book-1000.
        return type(message) is list and message[-2].startswith("book")

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        first = message[1]
        is_snapshot = "as" in first
        if is_snapshot:
            symbol, bids, asks = message[3], first["bs"], first["as"]
        else:
            change = message[2] | first if type(message[2]) is dict else first
            symbol, bids, asks = message[-1], change.get("b", ()), change.get("a", ())
        timestamp = _latest(bids, asks)
        return [BookChange(symbol, self.exchange, is_snapshot, levels(bids), levels(asks), timestamp, local_timestamp)]


def _latest(bids: Sequence[Sequence[Any]], asks: Sequence[Sequence[Any]]) -> str | None:
    """The time of the level that changed last."""
    return timestamp_from_seconds(max((to_number(level[2]) for level in (*bids, *asks)), default=math.nan))


class KrakenV1BookTickerMapper(KrakenV1Mapper):
    channels = ("spread",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        bid, ask, time, bid_amount, ask_amount, *_ = message[1]
        seconds = to_number(time)
        if seconds != 0:  # of a market that never had an order
            yield BookTicker(
                symbol=message[3],
                exchange=self.exchange,
                ask_amount=nonzero_number(ask_amount),
                ask_price=nonzero_number(ask),
                bid_price=nonzero_number(bid),
                bid_amount=nonzero_number(bid_amount),
                timestamp=timestamp_from_seconds(seconds),
                local_timestamp=local_timestamp,
            )


class KrakenV2Mapper(KrakenMapper):
    """Snapshots and updates of a channel, each of one or several symbols."""

    def accepts(self, message: Json) -> bool:
        return type(message) is dict and message.get("channel") in self.channels


class KrakenV2TradeMapper(KrakenV2Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        # A snapshot holds trades from before the subscription.
        return super().accepts(message) and message.get("type") == "update"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]:
            yield Trade(
                trade.get("symbol", UNSET),
                self.exchange,
                text_of(trade.get("trade_id", UNSET)),
                verbatim(trade.get("price", UNSET)),
                verbatim(trade.get("qty", UNSET)),
                trade.get("side", UNSET),
                timestamp_from_text(trade.get("timestamp", UNSET), micros=True),
                local_timestamp,
            )


class KrakenV2BookChangeMapper(KrakenV2Mapper):
    channels = ("book",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        is_snapshot = message.get("type") == "snapshot"
        for book in message["data"]:
            bids, asks = _levels(book["bids"]), _levels(book["asks"])
            timestamp = timestamp_from_text(book.get("timestamp", UNSET), micros=True)
            yield BookChange(book.get("symbol", UNSET), self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp)


def _levels(rows: Sequence[Json]) -> list[BookLevel]:
    return [BookLevel(verbatim(row.get("price", UNSET)), verbatim(row.get("qty", UNSET))) for row in rows]


class KrakenV2BookTickerMapper(KrakenV2Mapper):
    channels = ("ticker",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        for ticker in message["data"]:
            timestamp = timestamp_from_text(ticker.get("timestamp", UNSET), micros=True)
            if timestamp is None or not timestamp.startswith("1970-01-01T00:00:00.000"):  # of a market that never had an order
                yield BookTicker(
                    symbol=ticker.get("symbol", UNSET),
                    exchange=self.exchange,
                    ask_amount=nonzero_number(ticker.get("ask_qty")),
                    ask_price=nonzero_number(ticker.get("ask")),
                    bid_price=nonzero_number(ticker.get("bid")),
                    bid_amount=nonzero_number(ticker.get("bid_qty")),
                    timestamp=timestamp,
                    local_timestamp=local_timestamp,
                )


_V2_SINCE = "2026-07-10T00:00:00.000Z"
_V2_SINCE_US = parse_timestamp_us(_V2_SINCE)
_CHANNELS = ("trade", "ticker", "book", "spread", "instrument")


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """In v1 `{"event": "subscribe", "pair": ["XBT/USD"], "subscription": {"name": "book", "depth": 1000}}`, in v2
    `{"method": "subscribe", "params": {"channel": "book", "symbol": ["BTC/USD"], "depth": 1000}}`."""
    if date_us < _V2_SINCE_US:
        if message.get("event") != "subscribe":
            return None
        channel, symbols = message["subscription"]["name"], message.get("pair", UNSET)
    else:
        if message.get("method") != "subscribe":
            return None
        channel, symbols = message["params"]["channel"], message["params"].get("symbol", UNSET)
    # Candles and the account's own channels were not recorded.
    return [Filter(channel, symbols)] if channel in _CHANNELS else []


_DEPTH = 1000
# The best bid and ask whenever they change, not only when there is a trade.
_PARAMS: dict[str, Json] = {"book": {"depth": _DEPTH}, "ticker": {"event_trigger": "bbo"}}


class _CheckedBook:
    """What a checksum is made of: prices and amounts as they were written, zeros at their end too.
    https://docs.kraken.com/exchange/guides/websockets/book-checksum-v2"""

    __slots__ = ("_asks", "_bids", "is_proven")

    def __init__(self) -> None:
        # By price, the digits of price and amount.
        self._bids: dict[float, str] = {}
        self._asks: dict[float, str] = {}
        # Whether the checksum of its snapshot was right; if not, it is not for us to say what is wrong.
        self.is_proven = False

    def apply(self, book: Json) -> None:
        """Takes changes; what lies deeper than was asked for is forgotten, as the exchange does."""
        for side, rows, is_descending in ((self._bids, book["bids"], True), (self._asks, book["asks"], False)):
            for row in rows:
                price, amount = str(row["price"]), str(row["qty"])
                if float(amount) == 0:
                    side.pop(float(price), None)
                else:
                    side[float(price)] = _digits(price) + _digits(amount)
            for price_ in sorted(side, reverse=is_descending)[_DEPTH:] if len(side) > _DEPTH else ():
                del side[price_]

    def checksum(self) -> int:
        best = [self._asks[price] for price in nsmallest(10, self._asks)]
        best += [self._bids[price] for price in nlargest(10, self._bids)]
        return zlib.crc32("".join(best).encode())


def _digits(number: str) -> str:
    return number.replace(".", "").lstrip("0")


class _CheckedBooks(BookGate):
    """Changes have no numbers, but a checksum of what the book is then."""

    def __init__(self) -> None:
        super().__init__()
        self._books: Remembered[str, _CheckedBook] = Remembered()

    def take(self, step: BookStep) -> FrameKind:
        kind = super().take(step)
        if kind is not FrameKind.DATA:
            return kind
        if step.is_snapshot:
            self._books[step.book] = _CheckedBook()
        checked, said = self._books[step.book], step.content
        checked.apply(said)
        if "checksum" in said and (step.is_snapshot or checked.is_proven):
            checked.is_proven = checked.checksum() == said["checksum"]
            if not checked.is_proven and not step.is_snapshot:
                return self.miss(f"{step.book}: the checksum is not {said['checksum']}")
        return kind


_parse_exactly = msgspec.json.Decoder(float_hook=str).decode


class KrakenFeed(Feed):
    """Calls are `{"method": "subscribe", "params": …}`, answered for each symbol with `{"method": …, "success": …}`."""

    subscribe_interval_s = 0.1

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self.books = _CheckedBooks()
        # The text of the message at hand.
        self._raw = b""

    def decode(self, raw: bytes) -> Json:
        self._raw = raw
        return orjson.loads(raw)

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/v2")

    def subscribe(self, now_us: int) -> list[str]:
        return [
            to_frame({"method": "subscribe", "params": {"channel": item.channel, "symbol": some} | _PARAMS.get(item.channel, {})})
            for item in self.filters
            for some in in_batches(self.symbols(item), 100)
        ]

    def ping(self, now_us: int) -> str:
        return to_frame({"method": "ping"})

    def classify(self, message: Json) -> Heard:
        channel = message.get("channel")
        if channel == "book":
            is_snapshot = message["type"] == "snapshot"
            # A checksum is made of the digits that were sent.
            return [BookStep(book["symbol"], is_snapshot, content=book) for book in _parse_exactly(self._raw)["data"]]
        if channel in _CHANNELS:
            return FrameKind.DATA
        if channel == "heartbeat" or message.get("method") == "pong":
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if message.get("success") is False or "error" in message else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('error', 'a subscription was refused')} {message.get('symbol', '')}".strip()
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="kraken",
        docs="https://docs.kraken.com/api/docs/websocket-v2/trade",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(KrakenV1TradeMapper, _V2_SINCE), Version(KrakenV2TradeMapper)),
            "book_change": (Version(KrakenV1BookChangeMapper, _V2_SINCE), Version(KrakenV2BookChangeMapper)),
            "book_ticker": (Version(KrakenV1BookTickerMapper, _V2_SINCE), Version(KrakenV2BookTickerMapper)),
        },
        subscriptions=read_subscription,
        live=LiveApi(KrakenFeed, "wss://ws.kraken.com"),
    ),
)

ABOUT = {
    "kraken": About("1,000 levels a side live", "Books have checksums, which are checked live; symbols are spelled as they are."),
}
