"""Bitstamp. https://www.bitstamp.net/websocket/v2/

A message names its channel, which ends in the symbol: `{"event": "trade", "channel": "live_trades_btcusd", "data": {"id": 84550458,
"price": 3651.3, "amount": 0.001643, "type": 0, "microtimestamp": "1554076803243152", …}}`. Symbols are in lower case there, and in upper
case in what is emitted. Times are microseconds, as text.

The book's changes have times alone, no numbers. Its snapshot is fetched, and recorded as the event `snapshot` of the same channel; old
ones tell only the second. Changes that come before it wait for it, and are emitted behind it, without those that it holds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, Trade, to_timestamp
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Credentials, Feed, FeedError, Fetch, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._joined_book import MAX_WAITING, JoinRules
from ._joined_book_gate import JoinedBookGate
from ._mapper import Json, Mapper
from ._parsing import levels, text_of, timestamp_from_ms, to_number
from ._remembered import Remembered
from ._spelling import LOWER_CASE

_TRADES, _ORDERS, _BOOK = _CHANNELS = ("live_trades", "live_orders", "diff_order_book")
# As far from 1970 as a JavaScript date goes, both ways.
_LAST_US = 8_640_000_000_000_000_000


@lru_cache(maxsize=10_000)
def _symbol_of(channel: str) -> str:
    return channel[channel.rfind("_") + 1 :].upper()


def _from_microseconds(microseconds: float) -> str | None:
    """As messages hold it; None for what is no date."""
    return to_timestamp(int(microseconds)) if -_LAST_US <= microseconds <= _LAST_US else None


class BitstampTradeMapper(Mapper):
    channels = (_TRADES,)
    spelling = LOWER_CASE

    def accepts(self, message: Json) -> bool:
        return "data" in message and message["channel"].startswith(_TRADES) and message.get("event") == "trade"

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        trade = message["data"]
        kind = trade.get("type")
        return (
            Trade(
                _symbol_of(message["channel"]),
                self.exchange,
                text_of(trade.get("id", UNSET)),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("amount", UNSET)),
                "buy" if kind == 0 and kind is not False else "sell",
                _from_microseconds(to_number(trade.get("microtimestamp", UNSET))),
                local_timestamp,
            ),
        )


class _Book:
    """What is known of one book."""

    __slots__ = ("has_snapshot", "microseconds", "seconds", "symbol", "waiting")

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self.has_snapshot = False
        # The time of the last snapshot, and of the last one that told microseconds; NaN is before no change.
        self.seconds = math.nan
        self.microseconds = math.nan
        # Changes from before the first snapshot.
        self.waiting: deque[Json] = deque(maxlen=MAX_WAITING)


class BitstampBookChangeMapper(Mapper):
    channels = (_BOOK,)
    spelling = LOWER_CASE

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # By channel.
        self._books: Remembered[str, _Book] = Remembered()

    def accepts(self, message: Json) -> bool:
        return "data" in message and message["channel"].startswith(_BOOK) and message.get("event") in ("data", "snapshot")

    def map(self, message: Json, local_timestamp: str) -> Iterable[BookChange]:
        channel, data = message["channel"], message["data"]
        book = self._books.get(channel)
        if book is None:
            book = self._books[channel] = _Book(_symbol_of(channel))
        if message["event"] == "snapshot":
            return self._begin(book, data, local_timestamp)
        if book.has_snapshot:
            return self._change(book, data, local_timestamp)
        book.waiting.append(data)
        return ()

    def _begin(self, book: _Book, data: Json, local_timestamp: str) -> Iterator[BookChange]:
        """A snapshot, and what waited for it."""
        seconds, has_microseconds = to_number(data.get("timestamp", UNSET)), "microtimestamp" in data
        microseconds = to_number(data["microtimestamp"]) if has_microseconds else book.microseconds
        timestamp = _from_microseconds(microseconds) if has_microseconds else timestamp_from_ms(seconds * 1000)
        bids, asks = levels(data.get("bids", ())), levels(data.get("asks", ()))
        yield BookChange(book.symbol, self.exchange, True, bids, asks, timestamp, local_timestamp)
        book.has_snapshot, book.seconds, book.microseconds = True, seconds, microseconds
        for change in book.waiting:
            yield from self._change(book, change, local_timestamp)
        book.waiting.clear()

    def _change(self, book: _Book, data: Json, local_timestamp: str) -> Sequence[BookChange]:
        """A change; nothing where the snapshot holds it."""
        microseconds = to_number(data.get("microtimestamp", UNSET))
        if microseconds <= book.microseconds or to_number(data.get("timestamp", UNSET)) < book.seconds:
            return ()
        bids, asks = levels(data.get("bids", ())), levels(data.get("asks", ()))
        return (BookChange(book.symbol, self.exchange, False, bids, asks, _from_microseconds(microseconds), local_timestamp),)


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"event": "bts:subscribe", "data": {"channel": "live_trades_btcusd"}}`."""
    if message.get("event") != "bts:subscribe":
        return None
    channel, _, symbol = message["data"]["channel"].rpartition("_")
    # Whole books, single orders of the book and the account's own channels were not recorded.
    return [Filter(channel, [symbol])] if channel in _CHANNELS else []


_SUBSCRIBED, _RECONNECT = "bts:subscription_succeeded", "bts:request_reconnect"
_KINDS = {
    _SUBSCRIBED: FrameKind.ANSWER,
    "bts:unsubscription_succeeded": FrameKind.ANSWER,
    "bts:heartbeat": FrameKind.HEARTBEAT,
    "bts:error": FrameKind.ERROR,
    _RECONNECT: FrameKind.ERROR,
}


class BitstampFeed(Feed):
    """Answers `bts:subscription_succeeded` for each channel, or `bts:error`. The book's snapshot is fetched then. Changes have no
    numbers that would show a gap, but the snapshot must not be older than the first change that was heard."""

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self.books: JoinedBookGate = JoinedBookGate(JoinRules(ignores_gaps=True), patience=1)
        # The time of each book's first change, in microseconds.
        self._first: Remembered[str, int] = Remembered()

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/")

    def subscribe(self, now_us: int) -> list[str]:
        return [
            to_frame({"event": "bts:subscribe", "data": {"channel": f"{item.channel}_{symbol}"}})
            for item in self.filters
            for symbol in dict.fromkeys(self.symbols(item))
        ]

    def classify(self, message: Json) -> Heard:
        if "channel" not in message:
            return FrameKind.ERROR
        event, channel = message.get("event"), message["channel"]
        if event == "data" and channel.startswith(_BOOK):
            book, number = channel[len(_BOOK) + 1 :], int(message["data"]["microtimestamp"])
            self._first.setdefault(book, number)
            return BookStep(book, False, number)
        return _KINDS.get(event, FrameKind.DATA)

    def reply(self, message: Json, now_us: int) -> list[Fetch]:
        channel = message["channel"]
        is_book = message["event"] == _SUBSCRIBED and channel.startswith(_BOOK)
        return [self._snapshot(channel, channel[len(_BOOK) + 1 :])] if is_book else []

    def _snapshot(self, channel: str, book: str) -> Fetch:
        def to_messages(body: bytes) -> list[bytes] | None:
            number = int(orjson.loads(body)["microtimestamp"])
            # What changed between an older one and the first change that was heard would be missing.
            if number < self._first.get(book, 0) or not self.books.fits(book, number):
                return None
            return [b'{"data":%b,"event":"snapshot","channel":"%b","generated":true}' % (body, channel.encode())]

        return Fetch(channel, f"/api/v2/order_book/{book}?group=1", to_messages)

    def error(self, message: Json) -> FeedError:
        if message.get("event") == _RECONNECT:
            return FeedError("other", "the exchange asks for a new connection", is_final=True)
        data = message.get("data")
        told = [text_of(data[name]) for name in ("code", "message") if data.get(name)] if isinstance(data, dict) else []
        details = " ".join(told) or "an error without details"
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="bitstamp",
        docs="https://www.bitstamp.net/websocket/v2/",
        channels=_CHANNELS,
        mappers={"trade": (Version(BitstampTradeMapper),), "book_change": (Version(BitstampBookChangeMapper),)},
        subscriptions=read_subscription,
        live=LiveApi(BitstampFeed, "wss://ws.bitstamp.net", "https://www.bitstamp.net"),
    ),
)

ABOUT = {
    "bitstamp": About(
        "what the venue sends, from a snapshot over REST",
        "Changes of a book have times alone, and those before the snapshot are emitted behind it.",
    ),
}
