"""WOO X. https://developer.woox.io/ and https://docs.woox.io/

A message names its topic: `{"topic": "trade@PERP_BTC_USDT", "ts": 1782770880002, "data": {"s": "PERP_BTC_USDT", "px": "1622.8", "sx":
"0.09", "sd": "SELL", "src": 1, "ts": 1782770879821}}`. Numbers are text, times milliseconds. Until 2026-06-29 22:02 (v1) topics were
`PERP_BTC_USDT@trade`, names longer, and numbers were numbers. Trades of source 0 were not made here: they are told for information.

A book's changes name the time of the change before them (`prevTs`), and a snapshot's time is that of its last change. In v1 the snapshot
was the answer to a frame, now it is fetched, and `generated`. Index prices come for spot, and are told with the perpetual of that name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import (
    Action,
    BookGate,
    BookStep,
    Credentials,
    Feed,
    FeedError,
    Fetch,
    FrameKind,
    Handshake,
    Heard,
    LiveApi,
    kind_of_error,
    to_frame,
)
from ._joined_book import MAX_WAITING
from ._mapper import Json, Mapper
from ._parsing import levels, levels_as_sent, optional_number, text_of, timestamp_from_ms, to_number, verbatim
from ._remembered import Remembered, Seen, bound_symbols
from ._spelling import Spelling
from ._ticker import PendingTicker, TickerMapper

_V3_SINCE = "2026-06-29T22:02:00.000Z"
_SPOT, _PERPETUAL = "SPOT_", "PERP_"
_DEPTH = 50


def _is_informative(source: Any) -> bool:
    return source == 0 and source is not False


class WooXV1TradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return bool(message.get("topic", "").endswith("@trade"))

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        trade = message["data"]
        if _is_informative(trade.get("source")):
            return []
        return [
            Trade(
                trade.get("symbol", UNSET),
                self.exchange,
                UNSET,
                verbatim(trade.get("price", UNSET)),
                verbatim(trade.get("size", UNSET)),
                "sell" if trade.get("side") == "SELL" else "buy",
                timestamp_from_ms(message.get("ts", UNSET)),
                local_timestamp,
            )
        ]


class WooXTradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return bool(message.get("topic", "").startswith("trade@"))

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        trade = message["data"]
        if _is_informative(trade.get("src")):
            return []
        return [
            Trade(
                trade.get("s", UNSET),
                self.exchange,
                UNSET,
                to_number(trade.get("px", UNSET)),
                to_number(trade.get("sx", UNSET)),
                "sell" if trade.get("sd") == "SELL" else "buy",
                timestamp_from_ms(trade.get("ts", UNSET)),
                local_timestamp,
            )
        ]


class _Book:
    """What is known of one book."""

    __slots__ = ("is_known", "time", "waiting")

    def __init__(self) -> None:
        # Changes from before the snapshot.
        self.waiting: deque[Json] = deque(maxlen=MAX_WAITING)
        self.is_known = False
        # The snapshot's.
        self.time: Any = UNSET


class WooXV1BookChangeMapper(Mapper):
    """Changes wait for the snapshot, and follow it. One that begins before the snapshot's time is dropped, whenever it comes."""

    channels = ("orderbook", "orderbookupdate")
    symbol_field: ClassVar[str] = "symbol"

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._books: Remembered[Any, _Book] = Remembered()

    def accepts(self, message: Json) -> bool:
        if "id" in message:
            return bool(message["id"].endswith("@orderbook"))
        return bool(message.get("topic", "").endswith("@orderbookupdate"))

    def map(self, message: Json, local_timestamp: str) -> Iterable[BookChange]:
        data = message["data"]
        if "id" in message and message.get("success"):
            return self.begin(data.get("symbol", UNSET), data.get("ts", UNSET), data, local_timestamp)
        return self.follow(message, local_timestamp)

    def begin(self, symbol: Any, time: Any, data: Json, local_timestamp: str) -> Iterator[BookChange]:
        """A snapshot, and the changes that waited for it."""
        book = self._book(symbol)
        bids, asks = self.snapshot_levels(data["bids"]), self.snapshot_levels(data["asks"])
        yield BookChange(symbol, self.exchange, True, bids, asks, timestamp_from_ms(time), local_timestamp)
        book.time, book.is_known = time, True
        for message in book.waiting:
            yield from self._change(book, symbol, message, local_timestamp)
        book.waiting.clear()

    def follow(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        """A change; nothing where it waits."""
        symbol = message["data"].get(self.symbol_field, UNSET)
        book = self._book(symbol)
        if book.is_known:
            return self._change(book, symbol, message, local_timestamp)
        book.waiting.append(message)
        return ()

    def _book(self, symbol: Any) -> _Book:
        book = self._books.get(symbol)
        if book is None:
            book = self._books[symbol] = _Book()
        return book

    def _change(self, book: _Book, symbol: Any, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        data = message["data"]
        if to_number(data.get("prevTs", UNSET)) < to_number(book.time):
            return ()
        bids, asks = self.levels(data["bids"]), self.levels(data["asks"])
        return (BookChange(symbol, self.exchange, False, bids, asks, self.time_of(message), local_timestamp),)

    def snapshot_levels(self, rows: Sequence[Any]) -> list[BookLevel]:
        """One side of a snapshot."""
        return self.levels(rows)

    def levels(self, rows: Sequence[Any]) -> list[BookLevel]:
        """One side of a change."""
        return levels_as_sent(rows)

    def time_of(self, message: Json) -> str | None:
        """When a change was sent."""
        return timestamp_from_ms(message.get("ts", UNSET))


class WooXBookChangeMapper(WooXV1BookChangeMapper):
    symbol_field = "s"

    def accepts(self, message: Json) -> bool:
        topic = message.get("topic", "")
        if topic.startswith("orderbook@"):
            return message.get("generated") is True
        return bool(topic.startswith("orderbookupdate@"))

    def map(self, message: Json, local_timestamp: str) -> Iterable[BookChange]:
        if "generated" not in message:
            return self.follow(message, local_timestamp)
        data, symbol, time = message["data"], message["data"].get("s"), message["data"].get("ts")
        if symbol is None:
            symbol = _symbol_of(message["topic"])
        return self.begin(symbol, message.get("ts", UNSET) if time is None else time, data, local_timestamp)

    def snapshot_levels(self, rows: Sequence[Any]) -> list[BookLevel]:
        return levels([row if isinstance(row, list) else (row.get("price", UNSET), row.get("quantity", UNSET)) for row in rows])

    def levels(self, rows: Sequence[Any]) -> list[BookLevel]:
        return levels(rows)

    def time_of(self, message: Json) -> str | None:
        return timestamp_from_ms(message["data"].get("ts", UNSET))


def _symbol_of(topic: str) -> str:
    """Of a topic of v3, which may name the depth too."""
    return topic.split("@")[1]


_SPOT_SYMBOLS = Spelling(lambda symbol: symbol.upper().replace(_PERPETUAL, _SPOT, 1), every_symbol=())


class WooXDerivativeTickerMapper(TickerMapper):
    channels = ("trade", "markprice", "estfundingrate", "openinterest", "indexprice")
    spellings: ClassVar[dict[str, Spelling]] = {"indexprice": _SPOT_SYMBOLS}
    symbol_field: ClassVar[str] = "s"

    def accepts(self, message: Json) -> bool:
        topic = message.get("topic", UNSET)
        if topic is UNSET:
            return False
        data = message.get("data")
        symbol = (data.get(self.symbol_field) if type(data) is dict else None) or ""
        return self.channel_of(topic) in (self.channels if symbol.startswith(_PERPETUAL) else self.channels[-1:])

    def channel_of(self, topic: str) -> str:
        """The topic's channel; empty where it names no symbol."""
        channel, at, _ = topic.partition("@")
        return channel if at else ""

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        channel, data = self.channel_of(message["topic"]), message["data"]
        if channel == "indexprice":
            self.index_prices[data[self.symbol_field].replace(_SPOT, _PERPETUAL, 1)] = self.index_price(data)
            return
        symbol = data[self.symbol_field]
        ticker = self.tickers[symbol]
        ticker.update_index_price(self.index_prices.get(symbol))
        self.tell(ticker, channel, message)
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)

    def index_price(self, data: Json) -> Any:
        """The price of an index."""
        return to_number(data.get("px", UNSET))

    def tell(self, ticker: PendingTicker, channel: str, message: Json) -> None:
        """Tells the ticker what a message says."""
        data = message["data"]
        if channel == "trade":
            ticker.update_last_price(to_number(data.get("px", UNSET)))
        elif channel == "markprice":
            ticker.update_mark_price(to_number(data.get("px", UNSET)))
        elif channel == "estfundingrate":
            ticker.update_funding_rate(to_number(data.get("r", UNSET)))
            ticker.update_funding_timestamp(timestamp_from_ms(to_number(data.get("ft", UNSET))))
        else:
            ticker.update_open_interest(to_number(data.get("oi", UNSET)))
        ticker.update_timestamp(timestamp_from_ms(data.get("ts", UNSET)))


class WooXV1DerivativeTickerMapper(WooXDerivativeTickerMapper):
    symbol_field = "symbol"

    def channel_of(self, topic: str) -> str:
        _, at, channel = topic.rpartition("@")
        return channel if at else ""

    def index_price(self, data: Json) -> Any:
        return verbatim(data.get("price", UNSET))

    def tell(self, ticker: PendingTicker, channel: str, message: Json) -> None:
        data = message["data"]
        if channel == "trade":
            ticker.update_last_price(verbatim(data.get("price")))
        elif channel == "markprice":
            ticker.update_mark_price(verbatim(data.get("price")))
        elif channel == "estfundingrate":
            ticker.update_funding_rate(verbatim(data.get("fundingRate")))
            ticker.update_funding_timestamp(timestamp_from_ms(data.get("fundingTs", UNSET)))
        else:
            ticker.update_open_interest(verbatim(data.get("openInterest")))
        ticker.update_timestamp(timestamp_from_ms(message.get("ts", UNSET)))


class WooXV1BookTickerMapper(Mapper):
    channels = ("bbo",)

    def accepts(self, message: Json) -> bool:
        return bool(message.get("topic", "").endswith("@bbo"))

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        best = message["data"]
        return [
            BookTicker(
                symbol=best.get("symbol", UNSET),
                exchange=self.exchange,
                ask_amount=verbatim(best.get("askSize", UNSET)),
                ask_price=verbatim(best.get("ask", UNSET)),
                bid_price=verbatim(best.get("bid", UNSET)),
                bid_amount=verbatim(best.get("bidSize", UNSET)),
                timestamp=timestamp_from_ms(message.get("ts", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


class WooXBookTickerMapper(Mapper):
    channels = ("bbo",)

    def accepts(self, message: Json) -> bool:
        return bool(message.get("topic", "").startswith("bbo@"))

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        best = message["data"]
        return [
            BookTicker(
                symbol=best.get("s", UNSET),
                exchange=self.exchange,
                ask_amount=optional_number(best.get("aq")),
                ask_price=optional_number(best.get("ap")),
                bid_price=optional_number(best.get("bp")),
                bid_amount=optional_number(best.get("bq")),
                timestamp=timestamp_from_ms(best.get("ts", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


_CHANNELS = (
    "trade",
    "orderbook",
    "orderbookupdate",
    "ticker",
    "bbo",
    "indexprice",
    "markprice",
    "openinterest",
    "estfundingrate",
)


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"cmd": "SUBSCRIBE", "params": ["trade@PERP_BTC_USDT"]}`; v1: `{"event": "subscribe", "topic": "PERP_BTC_USDT@trade"}`.

    The answer to a subscription, which has its topics in `data`, asks for the same. A filter's one symbol stands without its list, as
    it does in the reference.
    """
    if message.get("event") != "subscribe" and message.get("cmd") != "SUBSCRIBE":
        return None
    topics = [message["topic"]] if "topic" in message else message.get("data") or message.get("params") or ()
    pairs = [_channel_and_symbol(topic) for topic in topics]
    return [Filter(channel, symbol) for channel, symbol in pairs if channel in _CHANNELS and symbol]  # not candles


def _channel_and_symbol(topic: str) -> tuple[str, str]:
    first, _, rest = topic.partition("@")
    second = rest.partition("@")[0]
    return (second, first) if first.startswith((_SPOT, _PERPETUAL)) else (first, second)


class WooXBookGate(BookGate):
    """Keeps a book's changes back until there is a snapshot that they follow: what is fetched may be older than what is heard by most of
    a minute. A book that does not change for days has its snapshot at once, which the first change then proves, or not."""

    def __init__(self) -> None:
        super().__init__()
        # The changes heard of each book that waits for a snapshot, each of which follows the one before it.
        self._waiting: Remembered[str, list[Json]] = Remembered()
        # Books that no change has followed yet.
        self._unproven: Seen[str] = Seen()

    def take(self, step: BookStep) -> FrameKind:
        """See BookGate. A change that is kept back is EARLY, and so is one that the snapshot holds."""
        book, known = step.book, self._last
        if book in known:
            if step.previous == known[book]:
                known[book] = step.number
                self._unproven.discard(book)
                return FrameKind.DATA
            if step.number <= known[book]:
                return FrameKind.EARLY
            if book not in self._unproven:
                return self.miss(f"{book}: change {step.number} follows {step.previous}, but the last one was {known[book]}")
            del known[book]
        heard = self._waiting.setdefault(book, [])
        if heard and heard[-1]["data"]["ts"] != step.previous:
            heard.clear()
        heard.append(step.content)
        return FrameKind.EARLY if len(heard) <= MAX_WAITING else self.miss(f"{book}: no snapshot in {MAX_WAITING} changes")

    def waiting(self) -> list[str]:
        """The books that wait."""
        return list(self._waiting)

    def waits(self, book: str) -> bool:
        """Whether a book has no snapshot that counts."""
        return book not in self._last

    def join(self, book: str, time: int) -> tuple[int, list[Json]] | None:
        """When the last change was that the book holds, given a snapshot of that time, and the changes that follow it; None where there
        is a gap between them."""
        heard = self._waiting.get(book, [])
        if heard and time < heard[0]["data"]["prevTs"]:
            return None
        following = [change for change in heard if change["data"]["ts"] > time]
        self._waiting.pop(book, None)
        bound_symbols(self._last)
        if following:
            self._last[book] = following[-1]["data"]["ts"]
            return following[0]["data"]["prevTs"], following
        self._last[book] = time
        self._unproven.add(book)
        return time, following


class WooXFeed(Feed):
    """Answers `{"id": …, "cmd": "SUBSCRIBE", "success": true, "data": […]}` with the topics that it knows. A frame has 10 topics at most,
    a connection 100. It closes what says nothing for a minute."""

    max_subscriptions = 100

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self.books: WooXBookGate = WooXBookGate()
        # Symbols whose snapshot is on its way.
        self._fetched: set[str] = set()

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/v3/public")

    def subscribe(self, now_us: int) -> list[str]:
        topics: dict[str, list[str]] = {}
        for item in self.filters:
            if item.channel != "orderbook":  # which is fetched
                for symbol in dict.fromkeys(self.symbols(item)):
                    topics.setdefault(symbol, []).append(_topic(item.channel, symbol))
        return [to_frame({"id": symbol, "cmd": "subscribe", "params": its}) for symbol, its in topics.items()]

    def ping(self, now_us: int) -> str:
        return to_frame({"cmd": "PING", "ts": now_us // 1000})

    def classify(self, message: Json) -> Heard:
        topic, command = message.get("topic"), message.get("cmd")
        if topic is not None:
            if not topic.startswith("orderbookupdate@"):
                return FrameKind.DATA
            data = message["data"]
            return BookStep(data["s"], False, data["ts"], data["prevTs"], content=message)
        if message.get("success") is False or "errorMsg" in message or command == "ERROR":
            return FrameKind.ERROR
        if command in ("PING", "PONG"):
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if command == "SUBSCRIBE" and message.get("data") == [] else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        if message.get("data") == []:
            return FeedError("other", f"{message.get('id')}: none of its topics is known")
        details = text_of(message.get("errorMsg") or message.get("data") or "an error without details")
        return FeedError(kind_of_error(details), details)

    def reply(self, message: Json, now_us: int) -> list[Action]:
        command = message.get("cmd")
        if command == "PING":
            return [to_frame({"cmd": "PONG"})]
        if command == "PONG":
            books = self.books.waiting()
        elif "topic" in message:
            books = [message["data"]["s"]]
        else:
            topics = message.get("data") or ()
            books = [_symbol_of(topic) for topic in topics if topic.startswith("orderbookupdate@")]
        asked = [book for book in books if self.books.waits(book) and book not in self._fetched]
        self._fetched.update(asked)
        return [self._snapshot(book) for book in asked]

    def _snapshot(self, symbol: str) -> Fetch:
        topic = _topic("orderbook", symbol)

        def to_messages(body: bytes) -> list[bytes] | None:
            answer = orjson.loads(body)
            if answer.get("success") is False:
                return None
            self._fetched.discard(symbol)
            joined = self.books.join(symbol, answer["timestamp"])
            if joined is None:
                return []  # fetched again with the next change, or the next ping
            time, changes = joined
            snapshot = {"topic": topic, "ts": time, "generated": True, "data": answer["data"]}
            return [orjson.dumps(one) for one in (snapshot, *changes)]

        return Fetch(topic, f"/v3/public/orderbook?symbol={symbol}&maxLevel={_DEPTH}", to_messages)


def _topic(channel: str, symbol: str) -> str:
    return f"{channel}@{symbol}@{_DEPTH}" if channel.startswith("orderbook") else f"{channel}@{symbol}"


EXCHANGES = (
    Exchange(
        name="woo-x",
        docs="https://developer.woox.io/",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(WooXV1TradeMapper, _V3_SINCE), Version(WooXTradeMapper)),
            "book_change": (Version(WooXV1BookChangeMapper, _V3_SINCE), Version(WooXBookChangeMapper)),
            "derivative_ticker": (Version(WooXV1DerivativeTickerMapper, _V3_SINCE), Version(WooXDerivativeTickerMapper)),
            "book_ticker": (Version(WooXV1BookTickerMapper, _V3_SINCE), Version(WooXBookTickerMapper)),
        },
        subscriptions=read_subscription,
        live=LiveApi(WooXFeed, "wss://wss.woox.io", "https://api.woox.io"),
    ),
)

ABOUT = {
    "woo-x": About(
        "50 levels a side",
        "Trades of source 0 were not made there, and are left out; an index is told with the perpetual of its name.",
    ),
}
