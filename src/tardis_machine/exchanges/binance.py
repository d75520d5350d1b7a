"""Binance: spot (also .us and the closed Jersey), USDT and coin margined futures.
https://developers.binance.com/docs/binance-spot-api-docs/web-socket-streams

A message names its stream: `{"stream": "btcusdt@depth@100ms", "data": {...}}`. Prices and amounts are text. Books are built from a
REST snapshot, which the recorder stores as `@depthSnapshot`, and the updates around it; their ids say which of them it holds already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from ._exchange import Exchange, Version
from ._feed import Feed, FeedError, FrameKind, HttpRequest, Live, kind_of_error, portions, to_frame
from ._joined_book import JoinedBookMapper, JoinRules, surrounds
from ._mapper import Json, Mapper
from ._parsing import text_of, timestamp_from_ms, timestamp_from_us, to_number
from ._spelling import LOWER_CASE, Spelling
from ._ticker import TickerMapper

OFF_BOOK = ("INSURANCE_FUND", "ADL", "NA")
# More than a recorder ever has to hold until its snapshot arrives; a bound all the same.
MAX_BUFFERED = 2000


class BinanceMapper(Mapper):
    """What all of Binance's mappers share: streams by their name's ending, symbols in lower case."""

    spelling = LOWER_CASE
    endings: tuple[str, ...]

    def accepts(self, message: Json) -> bool:
        return message.get("stream", "").endswith(self.endings)


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


class _Numbers:
    """How the updates of a book are counted: from `U` to `u`, without a gap."""

    @staticmethod
    def is_held(final: float, last: float) -> bool:
        """Whether a snapshot of number `last` holds the update that ends with `final` already."""
        return final <= last

    @staticmethod
    def joins(first: float, final: float, update: Json, last: float) -> bool:
        """Whether an update is the one that goes on from the snapshot."""
        # -1: an instrument so new that its book is empty.
        return first <= last + 1 <= final or last == -1

    @staticmethod
    def follows(update: Json, last: int) -> bool:
        """Whether an update is the next one after that which ended with `last`."""
        return update["U"] == last + 1


class _FuturesNumbers(_Numbers):
    """Futures count otherwise: an update names the one before it (`pu`), and the snapshot's own number lies within the first."""

    @staticmethod
    def is_held(final: float, last: float) -> bool:
        return final < last

    @staticmethod
    def joins(first: float, final: float, update: Json, last: float) -> bool:
        return first <= last <= final or to_number(update.get("pu", UNSET)) == last

    @staticmethod
    def follows(update: Json, last: int) -> bool:
        return update["pu"] == last


class BinanceBookChangeMapper(BinanceMapper, JoinedBookMapper):
    channels = ("depth", "depthSnapshot")
    # -1: an instrument so new that its book is empty.
    rules = JoinRules(empty_numbers=(-1,))

    def accepts(self, message: Json) -> bool:
        return "@depth" in message.get("stream", "")

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
        stream = message.get("stream", "")
        return stream.endswith(("@ticker", "@openInterest")) or "@markPrice" in stream or "@indexPrice" in stream

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        data = message["data"]
        event = data.get("e")
        if event == "indexPriceUpdate":
            self.index_prices[data["i"]] = to_number(data.get("p", UNSET))
            return
        symbol = data["s"] if "s" in data else data["symbol"]
        ticker = self.tickers[symbol]
        ticker.update_index_price(self.index_prices.get(symbol.partition("_")[0]))
        if event == "markPriceUpdate":
            # Futures that expire have no funding: their rate is empty or their time 0.
            if "r" in data and data["r"] != "" and data.get("T") != 0:
                ticker.update_funding_rate(to_number(data["r"]))
                ticker.update_funding_timestamp(timestamp_from_ms(data.get("T", UNSET)))
            if "i" in data:
                ticker.update_index_price(to_number(data["i"]))
            ticker.update_mark_price(to_number(data.get("p", UNSET)))
            ticker.update_timestamp(timestamp_from_us(data.get("E", UNSET)))
        elif event == "24hrTicker":
            ticker.update_last_price(to_number(data.get("c", UNSET)))
            ticker.update_timestamp(timestamp_from_us(data.get("E", UNSET)))
        if "openInterest" in data:
            ticker.update_open_interest(to_number(data["openInterest"]))
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
                ask_amount=to_number(ticker["A"]) if "A" in ticker else UNSET,
                ask_price=to_number(ticker["a"]) if "a" in ticker else UNSET,
                bid_price=to_number(ticker["b"]) if "b" in ticker else UNSET,
                bid_amount=to_number(ticker["B"]) if "B" in ticker else UNSET,
                timestamp=timestamp_from_us(ticker["E"]) if "E" in ticker else local_timestamp,
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "SUBSCRIBE", "params": ["btcusdt@depth@100ms", "!contractInfo"]}`."""
    if message.get("method") != "SUBSCRIBE":
        return None
    filters = []
    for stream in message.get("params", ()):
        symbol, _, channel = stream.partition("@")
        filters.append(Filter(channel.partition("@")[0], [symbol]) if channel else Filter(symbol))
    return filters


class _Market(NamedTuple):
    """What differs between Binance's markets."""

    path: str
    rest_path: str
    weight_limit: int
    """Of REST requests in a minute."""
    numbers: type[_Numbers]
    intervals: Mapping[str, str]
    """What follows the name of a channel."""


_SPOT_INTERVALS = {"depth": "@100ms"}
_FUTURES_INTERVALS = {"depth": "@0ms", "markPrice": "@1s", "indexPrice": "@1s"}
_MARKETS = {
    "binance": _Market("/stream?timeUnit=MICROSECOND", "/api/v3", 6000, _Numbers, _SPOT_INTERVALS),
    "binance-us": _Market("/stream", "/api/v3", 1200, _Numbers, _SPOT_INTERVALS),
    "binance-futures": _Market("/stream", "/fapi/v1", 2400, _FuturesNumbers, _FUTURES_INTERVALS),
    "binance-delivery": _Market("/stream", "/dapi/v1", 2400, _FuturesNumbers, _FUTURES_INTERVALS),
}
# Fetched, not sent.
_SNAPSHOT, _OPEN_INTEREST = "depthSnapshot", "openInterest"
_OPEN_INTEREST_EVERY_S = 3.0


class _Followed:
    """The numbers of one symbol's updates."""

    __slots__ = ("last", "snapshot", "waiting")

    def __init__(self) -> None:
        # The end of the last update.
        self.last: int | None = None
        # Updates that no snapshot was joined to yet, without their levels; None once one was.
        self.waiting: list[Json] | None = []
        # The number of the snapshot, once there is one.
        self.snapshot: int | None = None


class BinanceFeed(Feed):
    """A call has an id, and `{"result": null, "id": 1}` says that it is done. Then the book's snapshot can be fetched: from
    there on no update is missed. One that is older than the first update does not fit, and is fetched again."""

    # Streams of one connection are 1,024 at most, calls five a second.
    max_subscriptions = 1000
    subscribe_interval_s = 0.25

    def __init__(self, exchange: str, filters: Sequence[Filter]) -> None:
        super().__init__(exchange, filters)
        self._market = _MARKETS[exchange]
        # Streams asked for, by the id of the call, until it is answered.
        self._asked: dict[int, Sequence[str]] = {}
        self._followed: dict[str, _Followed] = {}

    @property
    def path(self) -> str:
        return self._market.path

    def subscribe(self) -> list[str]:
        streams = [
            f"{symbol}@{item.channel}{self._market.intervals.get(item.channel, '')}"
            for item in self.filters
            for symbol in self.symbols(item)
            if item.channel not in (_SNAPSHOT, _OPEN_INTEREST)
        ]
        self._asked = dict(enumerate(portions(streams, 100), start=1))
        return [to_frame({"method": "SUBSCRIBE", "params": some, "id": number}) for number, some in self._asked.items()]

    def classify(self, message: Json) -> FrameKind:
        if "stream" in message:
            return FrameKind.DATA
        return FrameKind.ERROR if "error" in message or "code" in message else FrameKind.IGNORED

    def error(self, message: Json) -> FeedError:
        error = message.get("error", message)
        details = f"{error.get('code', '')} {error.get('msg', '')}".strip()
        return FeedError("rate_limit" if error.get("code") == -1003 else kind_of_error(details), details)

    def requests(self, answer: Json | None) -> list[HttpRequest]:
        if answer is None:
            return [
                self._request(_OPEN_INTEREST, symbol, f"{_OPEN_INTEREST}?symbol={symbol.upper()}", _OPEN_INTEREST_EVERY_S)
                for item in self.filters
                if item.channel == _OPEN_INTEREST
                for symbol in self.symbols(item)
            ]
        return [
            self._request(_SNAPSHOT, symbol, f"depth?symbol={symbol.upper()}&limit=1000")
            for symbol, _, channel in (stream.partition("@") for stream in self._asked.pop(answer.get("id"), ()))
            if channel.startswith("depth")
        ]

    def _request(self, channel: str, symbol: str, path: str, every_s: float | None = None) -> HttpRequest:
        return HttpRequest(f"{self._market.rest_path}/{path}", f"{symbol}@{channel}", every_s)

    def answer(self, request: HttpRequest, body: bytes) -> bytes | None:
        data = orjson.loads(body)
        symbol, _, channel = request.stream.partition("@")
        if channel == _SNAPSHOT and not self._fits(self._following(symbol), data["lastUpdateId"]):
            return None
        return b'{"stream":"%b","generated":true,"data":%b}' % (request.stream.encode(), body)

    def _fits(self, followed: _Followed, number: int) -> bool:
        later = [update for update in followed.waiting or () if not self._market.numbers.is_held(update["u"], number)]
        if later and not self._market.numbers.joins(later[0]["U"], later[0]["u"], later[0], number):
            return False
        followed.snapshot = number
        followed.waiting = None if later else []
        return True

    def _following(self, symbol: str) -> _Followed:
        followed = self._followed.get(symbol)
        if followed is None:
            followed = self._followed[symbol] = _Followed()
        return followed

    def follow(self, message: Json) -> str | None:
        stream = message["stream"]
        if "@depth" not in stream:
            return None
        update, followed, numbers = message["data"], self._following(stream.partition("@")[0]), self._market.numbers
        last, followed.last = followed.last, update["u"]
        if last is not None and not numbers.follows(update, last):
            return f"{stream}: update {update['U']} to {update['u']} follows {last}"
        if followed.waiting is None:
            return None
        if followed.snapshot is None:
            followed.waiting.append({name: update[name] for name in ("U", "u", "pu") if name in update})
            return f"{stream}: no snapshot in {MAX_BUFFERED} updates" if len(followed.waiting) > MAX_BUFFERED else None
        if numbers.is_held(update["u"], followed.snapshot):
            return None
        followed.waiting = None
        if numbers.joins(update["U"], update["u"], update, followed.snapshot):
            return None
        return f"{stream}: update {update['U']} to {update['u']} does not join the snapshot {followed.snapshot}"

    def spare_s(self, headers: Mapping[str, str]) -> float:
        used = headers.get("x-mbx-used-weight-1m", "")
        return 10.0 if used.isdecimal() and int(used) > self._market.weight_limit * 0.8 else 0.0


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
        read_subscription,
        live=Live(BinanceFeed, "wss://stream.binance.com:9443", "https://api.binance.com"),
    ),
    Exchange(
        "binance-us",
        _DOCS,
        _SPOT_CHANNELS,
        _SPOT,
        read_subscription,
        live=Live(BinanceFeed, "wss://stream.binance.us:9443", "https://api.binance.us"),
    ),
    Exchange("binance-jersey", _DOCS, _SPOT_CHANNELS, _TRADES_AND_BOOK, read_subscription),
    Exchange(
        "binance-futures",
        _DOCS_FUTURES,
        _FUTURES_CHANNELS,
        _FUTURES,
        read_subscription,
        live=Live(BinanceFeed, "wss://fstream.binance.com", "https://fapi.binance.com"),
    ),
    Exchange(
        "binance-delivery",
        _DOCS_DELIVERY,
        _DELIVERY_CHANNELS,
        _DELIVERY,
        read_subscription,
        live=Live(BinanceFeed, "wss://dstream.binance.com", "https://dapi.binance.com"),
    ),
)
