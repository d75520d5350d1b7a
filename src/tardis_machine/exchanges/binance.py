"""Binance: spot (also .us and the closed Jersey), USDT and coin margined futures.
https://developers.binance.com/docs/binance-spot-api-docs/web-socket-streams

A message names its stream: `{"stream": "btcusdt@depth@100ms", "data": {...}}`. Prices and amounts are text. Books are built from a
REST snapshot, which the recorder stores as `@depthSnapshot`, and the updates around it; their ids say which of them it holds already.
USDT margined futures are live at two addresses: one for trades and books, one for all else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from ._exchange import About, Exchange, SubscriptionReader, Version
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
    LiveApi,
    in_batches,
    kind_of_error,
    to_frame,
)
from ._joined_book import JoinedBookMapper, JoinRules, surrounds
from ._joined_book_gate import JoinedBookGate
from ._mapper import Json, Mapper
from ._parsing import number_if_there, text_of, timestamp_from_ms, timestamp_from_us, to_number
from ._spelling import LOWER_CASE, Spelling
from ._ticker import TickerMapper

OFF_BOOK = ("INSURANCE_FUND", "ADL", "NA")


class BinanceMapper(Mapper):
    """What all of Binance's mappers share: streams by their name's ending, symbols in lower case."""

    spelling = LOWER_CASE
    endings: tuple[str, ...]

    def accepts(self, message: Json) -> bool:
        return (message.get("stream") or "").endswith(self.endings)


class BinanceTradeMapper(BinanceMapper):
    channels = ("trade",)
    endings = ("@trade",)

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        trade = message["data"]
        if trade.get("X") in OFF_BOOK:
            return ()
        return (
            Trade(
                trade.get("s", UNSET),
                self.exchange,
                text_of(trade.get("t", UNSET)),
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("q", UNSET)),
                "sell" if trade.get("m") else "buy",
                timestamp_from_us(trade.get("T", UNSET)),
                local_timestamp,
            ),
        )


class BinanceBookChangeMapper(BinanceMapper, JoinedBookMapper):
    channels = ("depth", "depthSnapshot")
    # -1: an instrument so new that its book is empty.
    rules = JoinRules(empty_numbers=(-1,))

    def accepts(self, message: Json) -> bool:
        return "@depth" in (message.get("stream") or "")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol = message["stream"].partition("@")[0].upper()
        data = message["data"]
        if "lastUpdateId" in data:
            timestamp = timestamp_from_us(data["T"]) if "T" in data else local_timestamp
            return self.join_snapshot(symbol, data["lastUpdateId"], data["bids"], data["asks"], timestamp, local_timestamp)
        return self.join_update(
            symbol,
            data.get("U", UNSET),
            data.get("u", UNSET),
            data.get("pu", UNSET),
            data["b"],
            data["a"],
            timestamp_from_us(data.get("E", UNSET)),
            local_timestamp,
        )


class BinanceFuturesBookChangeMapper(BinanceBookChangeMapper):
    rules = JoinRules(overlaps=surrounds, holds_own_number=False)


def _spell_pair(symbol: str) -> str:
    return symbol.lower().partition("_")[0]


class BinanceDerivativeTickerMapper(BinanceMapper, TickerMapper):
    channels: tuple[str, ...] = ("markPrice", "ticker", "openInterest")

    def accepts(self, message: Json) -> bool:
        stream = message.get("stream") or ""
        return stream.endswith(("@ticker", "@openInterest")) or "@markPrice" in stream or "@indexPrice" in stream

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        data = message["data"]
        event = data.get("e")
        if event == "indexPriceUpdate":
            self.index_prices[data.get("i")] = to_number(data.get("p", UNSET))
            return
        symbol = data["s"] if "s" in data else data["symbol"]
        ticker = self.tickers[symbol]
        ticker.update_index_price(self.index_prices.get(symbol.partition("_")[0]))
        if event == "markPriceUpdate":
            # Futures that expire have no funding: their rate is empty or their time 0.
            if "r" in data and data["r"] != "" and data.get("T") != 0:
                ticker.update_funding_rate(to_number(data["r"]))
                ticker.update_funding_timestamp(timestamp_from_ms(data.get("T", UNSET)))
            ticker.update_index_price(number_if_there(data, "i"))
            ticker.update_mark_price(to_number(data.get("p", UNSET)))
            ticker.update_timestamp(timestamp_from_us(data.get("E", UNSET)))
        elif event == "24hrTicker":
            ticker.update_last_price(to_number(data.get("c", UNSET)))
            ticker.update_timestamp(timestamp_from_us(data.get("E", UNSET)))
        ticker.update_open_interest(number_if_there(data, "openInterest"))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class BinanceDeliveryTickerMapper(BinanceDerivativeTickerMapper):
    """Coin margined futures have their index in a stream of its own, by pair."""

    channels = (*BinanceDerivativeTickerMapper.channels, "indexPrice")
    spellings: ClassVar = {"indexPrice": Spelling(_spell_pair)}


class BinanceLiquidationMapper(BinanceMapper):
    channels = ("forceOrder",)
    endings = ("@forceOrder",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        order = message["data"]["o"]
        if order.get("X") != "FILLED":
            return
        yield Liquidation(
            order.get("s", UNSET),
            self.exchange,
            UNSET,
            to_number(order.get("p", UNSET)),
            to_number(order.get("z", UNSET)),
            "sell" if order.get("S") == "SELL" else "buy",
            timestamp_from_us(order.get("T", UNSET)),
            local_timestamp,
        )


class BinanceBookTickerMapper(BinanceMapper):
    channels = ("bookTicker",)
    endings = ("@bookTicker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        ticker = message["data"]
        return [
            BookTicker(
                symbol=ticker.get("s", UNSET),
                exchange=self.exchange,
                ask_amount=number_if_there(ticker, "A"),
                ask_price=number_if_there(ticker, "a"),
                bid_price=number_if_there(ticker, "b"),
                bid_amount=number_if_there(ticker, "B"),
                timestamp=timestamp_from_us(ticker["E"]) if "E" in ticker else local_timestamp,
                local_timestamp=local_timestamp,
            )
        ]


def subscription_reader(channels: Collection[str]) -> SubscriptionReader:
    """Reads `{"method": "SUBSCRIBE", "params": ["btcusdt@depth@100ms", "!contractInfo"]}`; other channels were not recorded."""

    def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
        if message.get("method") != "SUBSCRIBE":
            return None
        filters = []
        for stream in message.get("params", ()):
            symbol, _, channel = stream.partition("@")
            filters.append(Filter(channel.partition("@")[0], [symbol]) if channel else Filter(symbol))
        return [item for item in filters if item.channel in channels]

    return read_subscription


class StreamFeed(Feed):
    """A call has an id, and `{"result": null, "id": 1}` says that it is done."""

    # Streams of one connection are 1,024 at most, calls five a second.
    max_subscriptions = 1000
    subscribe_interval_s = 0.25

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        # Streams asked for, by the id of the call, until it is answered.
        self._asked: dict[int, Sequence[str]] = {}

    @abstractmethod
    def streams(self, item: Filter) -> Iterable[str]:
        """What a filter asks for, by the names of streams."""

    def subscribe(self, now_us: int) -> list[Action]:
        calls = [some for item in self.filters for some in in_batches(list(dict.fromkeys(self.streams(item))), 100)]
        self._asked = dict(enumerate(calls, start=1))
        return [to_frame({"method": "SUBSCRIBE", "params": some, "id": number}) for number, some in self._asked.items()]

    def classify(self, message: Json) -> Heard:
        if "stream" in message:
            return FrameKind.DATA
        return FrameKind.ERROR if "error" in message or "code" in message else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        error = message.get("error", message)
        details = f"{error.get('code', '')} {error.get('msg', '')}".strip()
        return FeedError("rate_limit" if error.get("code") == -1003 else kind_of_error(details), details)


class TwoPathFeed(StreamFeed):
    """Streams have one of two addresses, by their channel: those of trades and books the one, all others the other."""

    public_channels: ClassVar[Collection[str]]

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        public = [item for item in filters if item.channel in cls.public_channels]
        market = [item for item in filters if item.channel not in cls.public_channels]
        return [some for some in (public, market) if some]

    @property
    def is_public(self) -> bool:
        """Whether this connection is to the address of trades and books."""
        return self.filters[0].channel in self.public_channels

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/public/stream" if self.is_public else "/market/stream")


class Market(NamedTuple):
    """What differs between markets."""

    path: str
    rest_path: str
    weight_limit: int
    """Of REST requests in a minute."""
    rules: JoinRules
    """Of its books."""
    intervals: Mapping[str, str]
    """What follows the name of a channel."""
    open_interest_every_s: float = 5.0


_SPOT_INTERVALS = {"depth": "@100ms"}
FUTURES_INTERVALS = {"depth": "@0ms", "markPrice": "@1s", "indexPrice": "@1s"}
# Fetched, not sent.
_SNAPSHOT, _OPEN_INTEREST = "depthSnapshot", "openInterest"


class BinanceFeed(StreamFeed):
    """As soon as a stream of a book is answered for, the snapshot can be fetched: from there on no update is missed."""

    markets: ClassVar[Mapping[str, Market]] = {
        "binance": Market("/stream?timeUnit=MICROSECOND", "/api/v3", 6000, BinanceBookChangeMapper.rules, _SPOT_INTERVALS),
        "binance-us": Market("/stream", "/api/v3", 1200, BinanceBookChangeMapper.rules, _SPOT_INTERVALS),
        "binance-futures": Market("", "/fapi/v1", 2400, BinanceFuturesBookChangeMapper.rules, FUTURES_INTERVALS),
        "binance-delivery": Market("/stream", "/dapi/v1", 2400, BinanceFuturesBookChangeMapper.rules, FUTURES_INTERVALS),
    }

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self._market = self.markets[exchange]
        self.books: JoinedBookGate = JoinedBookGate(self._market.rules)

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake(self._market.path)

    def streams(self, item: Filter) -> list[str]:
        if item.channel in (_SNAPSHOT, _OPEN_INTEREST):
            return []
        interval = self._market.intervals.get(item.channel, "")
        return [f"{symbol}@{item.channel}{interval}" for symbol in self.symbols(item)]

    def subscribe(self, now_us: int) -> list[Action]:
        polled = [symbol for item in self.filters if item.channel == _OPEN_INTEREST for symbol in self.symbols(item)]
        return [*map(self._open_interest, polled), *super().subscribe(now_us)]

    def classify(self, message: Json) -> Heard:
        if "@depth" not in message.get("stream", ""):
            return super().classify(message)
        update = message["data"]
        first = update["U"]
        # Futures name the update before; others count without a gap.
        return BookStep(message["stream"].partition("@")[0], False, update["u"], update.get("pu", first - 1), first)

    def reply(self, message: Json, now_us: int) -> list[Fetch]:
        streams = (stream.partition("@") for stream in self._asked.pop(message.get("id"), ()))
        return [self._snapshot(symbol) for symbol, _, channel in streams if channel.startswith("depth")]

    def _snapshot(self, symbol: str) -> Fetch:
        def to_messages(body: bytes) -> list[bytes] | None:
            return [generated(stream, body)] if self.books.fits(symbol, orjson.loads(body)["lastUpdateId"]) else None

        stream = f"{symbol}@{_SNAPSHOT}"
        return Fetch(stream, f"{self._market.rest_path}/depth?symbol={symbol.upper()}&limit=1000", to_messages)

    def _open_interest(self, symbol: str) -> Fetch:
        stream = f"{symbol}@{_OPEN_INTEREST}"
        path = f"{self._market.rest_path}/{_OPEN_INTEREST}?symbol={symbol.upper()}"
        return Fetch(stream, path, lambda body: [generated(stream, body)], self._market.open_interest_every_s)

    def pause_after_s(self, headers: Mapping[str, str]) -> float:
        used = headers.get("x-mbx-used-weight-1m", "")
        return 10.0 if used.isdecimal() and int(used) > self._market.weight_limit * 0.8 else 0.0


class BinanceFuturesFeed(TwoPathFeed, BinanceFeed):
    public_channels = ("trade", "depth", _SNAPSHOT, "bookTicker")


def generated(stream: str, body: bytes) -> bytes:
    """What was fetched, as the recorder has it."""
    return b'{"stream":"%b","generated":true,"data":%b}' % (stream.encode(), body)


_DOCS = "https://developers.binance.com/docs/binance-spot-api-docs/web-socket-streams"
_DOCS_FUTURES = "https://developers.binance.com/docs/derivatives/usds-margined-futures/websocket-market-streams"
_DOCS_DELIVERY = "https://developers.binance.com/docs/derivatives/coin-margined-futures/websocket-market-streams"

_SPOT_CHANNELS = ("trade", "aggTrade", "ticker", "depth", "depthSnapshot", "bookTicker", "recentTrades", "borrowInterest")
_FUTURES_CHANNELS = (
    "trade",
    "aggTrade",
    "ticker",
    "depth",
    "markPrice",
    "premiumIndex",
    "indexConstituents",
    "depthSnapshot",
    "bookTicker",
    "forceOrder",
    "openInterest",
    "fundingInfo",
    "insuranceBalance",
    "recentTrades",
    "compositeIndex",
    "topLongShortAccountRatio",
    "topLongShortPositionRatio",
    "globalLongShortAccountRatio",
    "takerlongshortRatio",
    "!contractInfo",
    "assetIndex",
)
_DELIVERY_CHANNELS = (
    "trade",
    "aggTrade",
    "ticker",
    "depth",
    "markPrice",
    "indexPrice",
    "depthSnapshot",
    "bookTicker",
    "forceOrder",
    "openInterest",
    "fundingInfo",
    "recentTrades",
    "topLongShortAccountRatio",
    "topLongShortPositionRatio",
    "globalLongShortAccountRatio",
    "takerBuySellVol",
    "!contractInfo",
)

_TRADES_AND_BOOK = {"trade": (Version(BinanceTradeMapper),), "book_change": (Version(BinanceBookChangeMapper),)}
_SPOT = {**_TRADES_AND_BOOK, "book_ticker": (Version(BinanceBookTickerMapper),)}
_FUTURES = {
    "trade": (Version(BinanceTradeMapper),),
    "book_change": (Version(BinanceFuturesBookChangeMapper),),
    "derivative_ticker": (Version(BinanceDerivativeTickerMapper),),
    "liquidation": (Version(BinanceLiquidationMapper),),
    "book_ticker": (Version(BinanceBookTickerMapper),),
}
_DELIVERY = {**_FUTURES, "derivative_ticker": (Version(BinanceDeliveryTickerMapper),)}

EXCHANGES = (
    Exchange(
        "binance",
        _DOCS,
        _SPOT_CHANNELS,
        _SPOT,
        subscription_reader(_SPOT_CHANNELS),
        live=LiveApi(BinanceFeed, "wss://stream.binance.com:9443", "https://api.binance.com"),
    ),
    Exchange(
        "binance-us",
        _DOCS,
        _SPOT_CHANNELS,
        _SPOT,
        subscription_reader(_SPOT_CHANNELS),
        live=LiveApi(BinanceFeed, "wss://stream.binance.us:9443", "https://api.binance.us"),
    ),
    Exchange("binance-jersey", _DOCS, _SPOT_CHANNELS, _TRADES_AND_BOOK, subscription_reader(_SPOT_CHANNELS)),
    Exchange(
        "binance-futures",
        _DOCS_FUTURES,
        _FUTURES_CHANNELS,
        _FUTURES,
        subscription_reader(_FUTURES_CHANNELS),
        live=LiveApi(BinanceFuturesFeed, "wss://fstream.binance.com", "https://fapi.binance.com"),
    ),
    Exchange(
        "binance-delivery",
        _DOCS_DELIVERY,
        _DELIVERY_CHANNELS,
        _DELIVERY,
        subscription_reader(_DELIVERY_CHANNELS),
        live=LiveApi(BinanceFeed, "wss://dstream.binance.com", "https://dapi.binance.com"),
    ),
)

ABOUT = {
    "binance": About(
        "1,000 levels a side from a snapshot over REST, then every change",
        "Snapshot and updates of a book are joined by their ids.",
    ),
    "binance-us": About("1,000 levels a side from a snapshot over REST, then every change", "As binance."),
    "binance-jersey": About(
        "1,000 levels a side from a snapshot over REST, then every change",
        "As binance; trades and books alone.",
        closed="2020-11",
    ),
    "binance-futures": About(
        "1,000 levels a side from a snapshot over REST, then every change",
        "Live at two addresses: trades, books and quotes at one, all else at the other; open interest is polled.",
    ),
    "binance-delivery": About(
        "1,000 levels a side from a snapshot over REST, then every change",
        "Coin margined; one address live, open interest is polled.",
    ),
}
