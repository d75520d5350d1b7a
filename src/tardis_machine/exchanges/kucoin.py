"""KuCoin: spot and futures. https://www.kucoin.com/docs-new/websocket-api/base-info/introduction

A message names its topic, which is a channel behind a slash and a symbol: `{"type": "message", "topic": "/market/match:BTC-USDT",
"subject": "trade.l3match", "data": {…}}`. Spot writes numbers as text, futures many as numbers. Books are built from a REST snapshot,
which the recorder stores as `level2Snapshot`, and the updates around it. Spot numbers updates that change no level too: those have a
level with price 0 in them. Who wants to connect asks for an address and a token first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import (
    Action,
    BookStep,
    Credentials,
    Feed,
    FeedError,
    Fetch,
    FrameKind,
    Handshake,
    Heard,
    HttpRequest,
    LiveApi,
    in_batches,
    kind_of_error,
    to_frame,
)
from ._joined_book import JoinedBookMapper, JoinRules
from ._joined_book_gate import JoinedBookGate
from ._mapper import Json, Mapper
from ._parsing import nonzero_number, number_unless_null, timestamp_from_ms, to_number, verbatim
from ._remembered import Remembered
from ._rows import Rows
from ._ticker import TickerMapper

# An instrument so new that its book is empty has the number -1 or 0.
_EMPTY = (-1, 0)


class KucoinMapper(Mapper):
    """What all of KuCoin's mappers share: messages are told by how their topic begins."""

    topics: tuple[str, ...]

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "message" and message["topic"].startswith(self.topics)


def _symbol_of(message: Json) -> str:
    return _symbol_of_topic(message["topic"])


@lru_cache(maxsize=10_000)
def _symbol_of_topic(topic: str) -> str:
    return topic.split(":")[1]


class KucoinTradeMapper(KucoinMapper):
    channels = ("market/match",)
    topics = ("/market/match",)

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        trade = message["data"]
        return [
            Trade(
                trade.get("symbol", UNSET),
                self.exchange,
                trade.get("tradeId", UNSET),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("size", UNSET)),
                "sell" if trade.get("side") == "sell" else "buy",
                self.time_of(trade),
                local_timestamp,
            )
        ]

    def time_of(self, trade: Json) -> str | None:
        """When it was."""
        return _timestamp_from_ns_text(trade["time"])


def _timestamp_from_ns_text(text: str) -> str | None:
    """Thirteen digits of milliseconds, then three of microseconds; the rest is cut off."""
    timestamp = timestamp_from_ms(to_number(text[:13]))
    micros = text[13:16]
    return timestamp if timestamp is None or not micros.isdecimal() else f"{timestamp[:-1]}{micros.rjust(3, '0')}Z"


class KucoinBookChangeMapper(KucoinMapper, JoinedBookMapper):
    channels = ("market/level2", "market/level2Snapshot")
    topics = ("/market/level2",)
    rules = JoinRules(empty_numbers=_EMPTY, keeps_zero=True, skips_zero_price=True)

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        data = message["data"]
        if message.get("subject") == "trade.l2Snapshot":
            bids, asks = data.get("bids") or (), data.get("asks") or ()
            number = data.get("sequence", UNSET)
            return self.join_snapshot(_symbol_of(message), number, bids, asks, local_timestamp, local_timestamp)
        changes = data["changes"]
        bids, asks = changes["bids"], changes["asks"]
        has_placeholders = not (_is_priced_text(bids) and _is_priced_text(asks))
        if has_placeholders and not (_has_price(bids) or _has_price(asks)):
            bids = asks = ()
        joined = self.join_update(
            _symbol_of(message),
            data.get("sequenceStart", UNSET),
            data.get("sequenceEnd", UNSET),
            UNSET,
            bids,
            asks,
            timestamp_from_ms(data["time"]) if "time" in data else local_timestamp,
            local_timestamp,
        )
        for change in joined if has_placeholders else ():
            change.bids, change.asks = _with_price(change.bids), _with_price(change.asks)
            if not (change.bids or change.asks):
                return ()
        return joined


# How a row begins whose price is not above 0.
_NO_PRICE = re.compile(rb'\[(?:"[0.]*"|"?-|[0.]+,)')


def _is_priced_text(levels: Sequence[Sequence[Any]]) -> bool:
    """Whether it was left as text, and has no placeholder: nobody needs to look into it then."""
    return isinstance(levels, Rows) and _NO_PRICE.search(levels.text) is None


def _has_price(levels: Sequence[Sequence[Any]]) -> bool:
    """Whether one of the levels is no placeholder."""
    for level in levels:  # noqa: SIM110 - `any` of a generator takes as long as all the rest
        if to_number(level[0]) > 0:
            return True
    return False


def _with_price(levels: Sequence[Any]) -> list[BookLevel]:
    """Those that are no placeholders."""
    return [level for level in levels if level.price > 0]


class KucoinBookTickerMapper(KucoinMapper):
    channels = ("market/ticker",)
    topics = ("/market/ticker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        ticker = message["data"]
        return [
            BookTicker(
                symbol=_symbol_of(message),
                exchange=self.exchange,
                ask_amount=number_unless_null(ticker, "bestAskSize"),
                ask_price=number_unless_null(ticker, "bestAsk"),
                bid_price=number_unless_null(ticker, "bestBid"),
                bid_amount=number_unless_null(ticker, "bestBidSize"),
                timestamp=timestamp_from_ms(ticker.get("time", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


class KucoinFuturesTradeMapper(KucoinTradeMapper):
    channels = ("contractMarket/execution",)
    topics = ("/contractMarket/execution",)

    def time_of(self, trade: Json) -> str | None:
        """When it was."""
        return _timestamp_from_ns(trade.get("ts", UNSET))


def _timestamp_from_ns(value: Any) -> str | None:
    """Nanoseconds as a number: they are divided as a double, and only milliseconds are left."""
    milliseconds = float(value) / 1e6 if type(value) is int else to_number(value) / 1e6
    return timestamp_from_ms(int(milliseconds) if isfinite(milliseconds) else milliseconds)


class KucoinFuturesBookChangeMapper(KucoinMapper, JoinedBookMapper):
    """An update changes one level: `{"sequence": 7, "change": "0.2353,buy,146", "timestamp": 1705881600096}`."""

    channels = ("contractMarket/level2", "contractMarket/level2Snapshot")
    topics = ("/contractMarket/level2",)
    rules = JoinRules(empty_numbers=_EMPTY, skips_zero_price=True, as_sent=True)

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol = _symbol_of(message)
        data = message.get("data")
        if message.get("subject") == "level2Snapshot":
            if not data:
                return ()
            bids, asks = data.get("bids") or (), data.get("asks") or ()
            return self.join_snapshot(symbol, data.get("sequence", UNSET), bids, asks, local_timestamp, local_timestamp)
        price, side, amount = (*data["change"].split(","), UNSET, UNSET)[:3]
        level = ((to_number(price), to_number(amount)),)
        number = data.get("sequence", UNSET)
        timestamp = timestamp_from_ms(data.get("timestamp", UNSET))
        bids, asks = (level, ()) if side == "buy" else ((), level)
        return self.join_update(symbol, number, number, UNSET, bids, asks, timestamp, local_timestamp)


class KucoinFuturesDerivativeTickerMapper(KucoinMapper, TickerMapper):
    channels = ("contract/instrument", "contractMarket/execution", "contract/details")
    topics = ("/contract/instrument", "/contractMarket/execution", "/contract/details")

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # By symbol, told with its next message of contract/instrument.
        self._last_prices: Remembered[str, float] = Remembered()
        self._open_interests: Remembered[str, float] = Remembered()

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        symbol, subject, data = _symbol_of(message), message.get("subject"), message["data"]
        if subject == "match":
            self._last_prices[symbol] = to_number(data.get("price", UNSET))
            return
        if subject == "contractDetails":
            open_interest = nonzero_number(data.get("openInterest"))
            if open_interest is not UNSET:
                self._open_interests[symbol] = open_interest
            return
        ticker = self.tickers[symbol]
        if subject == "mark.index.price":
            ticker.update_index_price(verbatim(data.get("indexPrice")))
            ticker.update_mark_price(verbatim(data.get("markPrice")))
        elif subject == "funding.rate":
            ticker.update_timestamp(timestamp_from_ms(data.get("timestamp", UNSET)))
            ticker.update_funding_rate(verbatim(data.get("fundingRate")))
        ticker.update_last_price(self._last_prices.get(symbol))
        ticker.update_open_interest(self._open_interests.get(symbol))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class KucoinFuturesBookTickerMapper(KucoinMapper):
    channels = ("contractMarket/tickerV2",)
    topics = ("/contractMarket/tickerV2",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        ticker = message["data"]
        return [
            BookTicker(
                symbol=_symbol_of(message),
                exchange=self.exchange,
                ask_amount=_size(ticker.get("bestAskSize")),
                ask_price=number_unless_null(ticker, "bestAskPrice"),
                bid_price=number_unless_null(ticker, "bestBidPrice"),
                bid_amount=_size(ticker.get("bestBidSize")),
                timestamp=_timestamp_from_ns(ticker.get("ts", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def _size(value: Any) -> Any:
    return UNSET if value is None else verbatim(value)


_SPOT_CHANNELS = ("market/ticker", "market/snapshot", "market/level2", "market/match", "market/level2Snapshot")
_FUTURES_CHANNELS = (
    "contractMarket/execution",
    "contractMarket/level2",
    "contractMarket/level2Snapshot",
    "contractMarket/tickerV2",
    "contract/instrument",
    "contract/details",
    "contractMarket/snapshot",
)


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "subscribe", "topic": "/market/ticker:BTC-USDT,ETH-USDT"}`."""
    if message.get("type") != "subscribe":
        return None
    channel, colon, symbols = message.get("topic", "").removeprefix("/").partition(":")
    # Announcements, candles and accounts were not recorded.
    if channel not in _SPOT_CHANNELS and channel not in _FUTURES_CHANNELS:
        return []
    return [Filter(channel, symbols.split(",")) if colon else Filter(channel)]


class _Market(NamedTuple):
    """What differs between KuCoin's markets."""

    updates: str
    """The channel of book updates; that of snapshots begins with it."""
    snapshot_path: str
    snapshot_subject: str
    rules: JoinRules
    """Of its books."""
    options: Json
    """What a subscription says beside its topic."""


_MARKETS = {
    "kucoin": _Market(
        "market/level2",
        "/api/v1/market/orderbook/level2_100",
        "trade.l2Snapshot",
        KucoinBookChangeMapper.rules,
        {"privateChannel": False, "response": True},
    ),
    "kucoin-futures": _Market(
        "contractMarket/level2",
        "/api/v1/level2/snapshot",
        "level2Snapshot",
        KucoinFuturesBookChangeMapper.rules,
        {"response": True},
    ),
}
# Fetched, not sent.
_DETAILS = "contract/details"
_DETAILS_EVERY_S = 6.0


class KucoinFeed(Feed):
    """A call has an id, and `{"id": "1", "type": "ack"}` says that it is done. Then the book's snapshot can be fetched: from there on
    no update is missed."""

    # Topics of one connection are 300 at most, those of one call 100; calls are ten a second.
    max_subscriptions = 300
    subscribe_interval_s = 0.1

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self._market = _MARKETS[exchange]
        self.books: JoinedBookGate = JoinedBookGate(self._market.rules)
        self._update_topic = f"/{self._market.updates}:"
        # The last number of each book.
        self._last_numbers: Remembered[str, int] = Remembered()
        # Symbols whose books were asked for, by the id of the call, until it is answered.
        self._asked_books: dict[str, Sequence[str]] = {}

    def access_request(self, now_us: int) -> HttpRequest:
        return HttpRequest("/api/v1/bullet-public", "POST")

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        granted = orjson.loads(access or b"")["data"]
        return Handshake(f"/?token={granted['token']}&connectId={now_us}", granted["instanceServers"][0]["endpoint"])

    def subscribe(self, now_us: int) -> list[Action]:
        market = self._market
        actions: list[Action] = []
        for item in self.filters:
            symbols = list(dict.fromkeys(self.symbols(item)))
            if item.channel == _DETAILS:
                actions.append(_details(frozenset(symbols)))
            elif item.channel != f"{market.updates}Snapshot":
                for some in in_batches(symbols, 100):
                    number = str(len(actions) + 1)
                    if item.channel == market.updates:
                        self._asked_books[number] = some
                    topic = f"/{item.channel}:{','.join(some)}"
                    actions.append(to_frame({"id": number, "type": "subscribe", "topic": topic, **market.options}))
        return actions

    def ping(self, now_us: int) -> str:
        return to_frame({"id": str(now_us // 1000), "type": "ping"})

    def classify(self, message: Json) -> Heard:
        kind = message.get("type")
        if kind == "message":
            topic = message["topic"]
            return self._book_step(topic, message["data"]) if topic.startswith(self._update_topic) else FrameKind.DATA
        if kind == "pong":
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if kind == "error" else FrameKind.ANSWER

    def _book_step(self, topic: str, data: Json) -> BookStep:
        book = topic.partition(":")[2]
        first, last = (data["sequenceStart"], data["sequenceEnd"]) if "sequenceEnd" in data else (data["sequence"],) * 2
        # An update may begin with what the one before it had already: that is no gap.
        previous = max(first - 1, self._last_numbers.get(book, 0))
        self._last_numbers[book] = last
        return BookStep(book, False, last, previous, first)

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('code', '')} {message.get('data', '')}".strip()
        return FeedError(kind_of_error(details), details)

    def reply(self, message: Json, now_us: int) -> list[Fetch]:
        return [self._snapshot(symbol) for symbol in self._asked_books.pop(message.get("id"), ())]

    def _snapshot(self, symbol: str) -> Fetch:
        def to_messages(body: bytes) -> list[bytes] | None:
            data = orjson.loads(body).get("data") or {}
            number = data.get("sequence")
            return [head + body.lstrip()[1:]] if self.books.fits(symbol, None if number is None else int(number)) else None

        market = self._market
        topic = f"/{market.updates}Snapshot:{symbol}"
        head = f'{{"type":"message","generated":true,"topic":"{topic}","subject":"{market.snapshot_subject}",'.encode()
        return Fetch(topic, f"{market.snapshot_path}?symbol={symbol}", to_messages)


def _details(symbols: frozenset[str]) -> Fetch:
    """All instruments at once; those that were asked for are told one by one."""

    def to_messages(body: bytes) -> list[bytes]:
        return [
            orjson.dumps(
                {
                    "topic": f"/{_DETAILS}:{instrument['symbol']}",
                    "type": "message",
                    "subject": "contractDetails",
                    "generated": True,
                    "data": instrument,
                }
            )
            for instrument in orjson.loads(body)["data"]
            if instrument["symbol"] in symbols
        ]

    return Fetch(_DETAILS, "/api/v1/contracts/active", to_messages, _DETAILS_EVERY_S)


EXCHANGES = (
    Exchange(
        name="kucoin",
        docs="https://www.kucoin.com/docs-new/websocket-api/base-info/introduction",
        channels=_SPOT_CHANNELS,
        mappers={
            "trade": (Version(KucoinTradeMapper),),
            "book_change": (Version(KucoinBookChangeMapper),),
            "book_ticker": (Version(KucoinBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(KucoinFeed, "wss://ws-api-spot.kucoin.com", "https://api.kucoin.com"),
    ),
    Exchange(
        name="kucoin-futures",
        docs="https://www.kucoin.com/docs-new/websocket-api/base-info/introduction",
        channels=_FUTURES_CHANNELS,
        mappers={
            "trade": (Version(KucoinFuturesTradeMapper),),
            "book_change": (Version(KucoinFuturesBookChangeMapper),),
            "derivative_ticker": (Version(KucoinFuturesDerivativeTickerMapper),),
            "book_ticker": (Version(KucoinFuturesBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(KucoinFeed, "wss://ws-api-futures.kucoin.com", "https://api-futures.kucoin.com"),
    ),
)

ABOUT = {
    "kucoin": About(
        "100 levels a side from a snapshot over REST, then every change",
        "A token is asked for before connecting; updates that change no level have one of price 0.",
    ),
    "kucoin-futures": About(
        "what the venue sends, from a snapshot over REST", "As kucoin; open interest comes for all contracts in one poll."
    ),
}
