"""Binance's European options. https://developers.binance.com/docs/derivatives/options-trading/websocket-market-streams

Binance's envelope: `{"stream": "btc-251219-90000-c@optionTrade", "data": {...}}`. Books are always whole. Since 2025-12-17 (v2) streams
have other names, in lower case, and a summary comes for all options of an underlying at once.

Live, last prices are at another address than the mark prices and the open interest that summaries are made of: what both say goes to one
mapper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, OptionSummary, Trade
from ._exchange import About, Exchange, Version
from ._feed import FeedError, FrameKind, Heard, LiveApi, kind_of_error
from ._mapper import Json, Mapper
from ._parsing import levels, nonzero_number, text_of, timestamp_from_ms, timestamp_from_text, to_number
from ._remembered import Remembered
from ._spelling import UPPER_CASE, Spelling
from .binance import BinanceMapper, TwoPathFeed, subscription_reader

_V2_SINCE = "2025-12-17T00:00:00.000Z"


class BinanceOptionsV1TradeMapper(BinanceMapper):
    channels = ("trade",)
    endings = ("@trade",)
    spelling = UPPER_CASE

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        trade = message["data"]
        return [
            Trade(
                trade.get("s", UNSET),
                self.exchange,
                trade.get("t", UNSET),
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("q", UNSET)),
                "sell" if trade.get("S") == "-1" else "buy",
                timestamp_from_ms(trade.get("T", UNSET)),
                local_timestamp,
            )
        ]


class BinanceOptionsV2TradeMapper(BinanceMapper):
    channels = ("optionTrade",)
    endings = ("@optionTrade",)

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        trade = message["data"]
        return [
            Trade(
                trade.get("s", UNSET),
                self.exchange,
                text_of(trade.get("t", UNSET)),
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("q", UNSET)),
                "sell" if trade.get("m") else "buy",
                timestamp_from_ms(trade.get("T", UNSET)),
                local_timestamp,
            )
        ]


class BinanceOptionsV1BookChangeMapper(Mapper):
    channels = ("depth100",)

    def accepts(self, message: Json) -> bool:
        return "@depth100" in (message.get("stream") or "")

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        book = message["data"]
        bids, asks = levels(book["b"]), levels(book["a"])
        timestamp = timestamp_from_ms(book["E"] if "E" in book else book.get("T", UNSET))
        return [BookChange(book.get("s", UNSET), self.exchange, True, bids, asks, timestamp, local_timestamp)]


class BinanceOptionsV2BookChangeMapper(BinanceMapper):
    channels = ("depth20",)

    def accepts(self, message: Json) -> bool:
        return "@depth20" in (message.get("stream") or "")

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        book = message["data"]
        bids, asks = levels(book["b"]), levels(book["a"])
        timestamp = timestamp_from_ms(book.get("T", UNSET))
        return [BookChange(book.get("s", UNSET), self.exchange, True, bids, asks, timestamp, local_timestamp)]


class BinanceOptionsBookTickerMapper(BinanceMapper):
    channels = ("bookTicker",)
    endings = ("@bookTicker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        ticker = message["data"]
        return [
            BookTicker(
                symbol=ticker.get("s", UNSET),
                exchange=self.exchange,
                ask_amount=_above_zero(ticker.get("A", UNSET)),
                ask_price=_above_zero(ticker.get("a", UNSET)),
                bid_price=_above_zero(ticker.get("b", UNSET)),
                bid_amount=_above_zero(ticker.get("B", UNSET)),
                timestamp=timestamp_from_ms(ticker.get("T", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def _above_zero(value: Any) -> Any:
    number = to_number(value)
    return number if number > 0 else UNSET


class _Option(NamedTuple):
    """What an option's name says."""

    kind: Literal["put", "call"]
    strike: float
    expiration: str | None
    underlying: str
    """The name of its index."""


@lru_cache(maxsize=10_000)
def _option_named(symbol: str) -> _Option:
    """`BTC-251219-90000-C`; it expires at 08:00 UTC."""
    base, date, *rest = symbol.split("-")
    strike, kind = rest[0] if rest else UNSET, rest[1] if len(rest) > 1 else ""
    expiration = timestamp_from_text(f"20{date[:2]}-{date[2:4]}-{date[4:6]}T08:00:00.000Z")
    return _Option("put" if kind == "P" else "call", to_number(strike), expiration, f"{base}USDT")


class BinanceOptionsSummaryMapper(Mapper):
    """What both generations share: fields by the same short names, open interest in messages of its own."""

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._open_interests: Remembered[str | None, float] = Remembered()

    def note_open_interests(self, rows: Sequence[Json]) -> None:
        """By option; they are told with its next summary."""
        for row in rows:
            open_interest = to_number(row.get("o", UNSET))
            if open_interest >= 0:
                self._open_interests[row.get("s")] = open_interest

    def summary(self, row: Json, last_price: Any, mark_iv: Any, underlying_price: Any, local_timestamp: str) -> OptionSummary:
        """Of an option, given what the generations tell in ways of their own."""
        symbol = row["s"]
        option = _option_named(symbol)
        bid_price, ask_price = nonzero_number(row.get("bo")), nonzero_number(row.get("ao"))
        return OptionSummary(
            symbol=symbol,
            exchange=self.exchange,
            option_type=option.kind,
            strike_price=option.strike,
            expiration_date=option.expiration,
            best_bid_price=bid_price,
            best_bid_amount=nonzero_number(row.get("bq")),
            best_bid_iv=_volatility(bid_price, row.get("b")),
            best_ask_price=ask_price,
            best_ask_amount=nonzero_number(row.get("aq")),
            best_ask_iv=_volatility(ask_price, row.get("a")),
            last_price=last_price,
            open_interest=self._open_interests.get(symbol, UNSET),
            mark_price=nonzero_number(row.get("mp")),
            mark_iv=mark_iv,
            delta=nonzero_number(row.get("d")),
            gamma=nonzero_number(row.get("g")),
            vega=nonzero_number(row.get("v")),
            theta=nonzero_number(row.get("t")),
            rho=UNSET,
            underlying_price=underlying_price,
            underlying_index=option.underlying,
            timestamp=timestamp_from_ms(row.get("E", UNSET)),
            local_timestamp=local_timestamp,
        )


def _volatility(price: Any, value: Any) -> Any:
    """Of a side that has a price; -1 is none."""
    volatility = UNSET if price is UNSET else nonzero_number(value)
    return UNSET if volatility == -1 else volatility


def _base_of(symbol: str) -> str:
    return symbol.upper().partition("-")[0]


class BinanceOptionsV1SummaryMapper(BinanceOptionsSummaryMapper):
    channels = ("ticker", "index", "openInterest")
    spellings: ClassVar = {"index": Spelling(lambda symbol: f"{_base_of(symbol)}USDT"), "openInterest": Spelling(_base_of)}

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._index_prices: Remembered[str | None, float] = Remembered()

    def accepts(self, message: Json) -> bool:
        stream = message.get("stream") or ""
        return stream.endswith(("@ticker", "@index")) or "@openInterest" in stream

    def map(self, message: Json, local_timestamp: str) -> Sequence[OptionSummary]:
        stream, data = message["stream"], message["data"]
        if stream.endswith("@index"):
            price = to_number(data.get("p", UNSET))
            if price > 0:
                self._index_prices[data.get("s")] = price
            return ()
        if "@openInterest" in stream:
            self.note_open_interests(data)
            return ()
        index_price = self._index_prices.get(_option_named(data["s"]).underlying, UNSET)
        return (self.summary(data, nonzero_number(data.get("c")), UNSET, index_price, local_timestamp),)


def _underlying_of(symbol: str) -> str:
    return f"{symbol.lower().partition('-')[0]}usdt"


class BinanceOptionsV2SummaryMapper(BinanceMapper, BinanceOptionsSummaryMapper):
    channels = ("optionMarkPrice", "optionTicker", "optionOpenInterest")
    spellings: ClassVar = {"optionMarkPrice": Spelling(_underlying_of), "optionOpenInterest": Spelling(_underlying_of)}

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._last_prices: Remembered[str | None, float] = Remembered()

    def accepts(self, message: Json) -> bool:
        stream = message.get("stream") or ""
        return stream.endswith(("@optionMarkPrice", "@optionTicker")) or "@optionOpenInterest" in stream

    def map(self, message: Json, local_timestamp: str) -> Iterator[OptionSummary]:
        stream, data = message["stream"], message["data"]
        if stream.endswith("@optionTicker"):
            price = to_number(data.get("c", UNSET))
            if price > 0:
                self._last_prices[data.get("s")] = price
        elif "@optionOpenInterest" in stream:
            self.note_open_interests(data)
        else:
            for row in data:
                last_price = self._last_prices.get(row["s"], UNSET)
                yield self.summary(row, last_price, nonzero_number(row.get("vo")), nonzero_number(row.get("i")), local_timestamp)


_TICKER, _OPEN_INTEREST = "optionTicker", "optionOpenInterest"


class BinanceOptionsFeed(TwoPathFeed):
    """A complaint may also come in a stream: `{"stream": …, "data": {"e": "error", …}}`."""

    max_subscriptions = 200
    public_channels = ("optionTrade", "depth20", "bookTicker", _TICKER)

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        # Open interest is asked for by the day on which options expire: those of the tickers tell which.
        tickers = [item for item in filters if item.channel == _TICKER]
        sockets = super().split(exchange, filters)
        return [some if some[0].channel in cls.public_channels else [*some, *tickers] for some in sockets]

    def streams(self, item: Filter) -> list[str]:
        channel = item.channel
        if channel == _OPEN_INTEREST:
            options = [option for other in self.filters if other.channel == _TICKER for option in self.symbols(other)]
            return [
                f"{underlying}@{channel}@{option.split('-')[1]}"
                for underlying in self.symbols(item)
                for option in options
                if _underlying_of(option) == underlying
            ]
        if channel == _TICKER and not self.is_public:
            return []
        return [f"{symbol}@{channel}{'@100ms' if channel == 'depth20' else ''}" for symbol in self.symbols(item)]

    def classify(self, message: Json) -> Heard:
        data = message.get("data")
        return FrameKind.ERROR if isinstance(data, dict) and data.get("e") == "error" else super().classify(message)

    def error(self, message: Json) -> FeedError:
        if "data" not in message:
            return super().error(message)
        details = text_of(message["data"])
        return FeedError(kind_of_error(details), details)


_CHANNELS = (
    "trade",
    "depth100",
    "index",
    "markPrice",
    "ticker",
    "openInterest",
    "optionTrade",
    "optionTicker",
    "depth20",
    "bookTicker",
    "optionIndexPrice",
    "optionMarkPrice",
    "optionOpenInterest",
    "!optionSymbol",
)

EXCHANGES = (
    Exchange(
        name="binance-european-options",
        docs="https://developers.binance.com/docs/derivatives/options-trading/websocket-market-streams",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(BinanceOptionsV1TradeMapper, _V2_SINCE), Version(BinanceOptionsV2TradeMapper)),
            "book_change": (Version(BinanceOptionsV1BookChangeMapper, _V2_SINCE), Version(BinanceOptionsV2BookChangeMapper)),
            "option_summary": (Version(BinanceOptionsV1SummaryMapper, _V2_SINCE), Version(BinanceOptionsV2SummaryMapper)),
            "book_ticker": (Version(BinanceOptionsBookTickerMapper),),
        },
        subscriptions=subscription_reader(_CHANNELS),
        live=LiveApi(BinanceOptionsFeed, "wss://fstream.binance.com"),
    ),
)

ABOUT = {
    "binance-european-options": About(
        "20 levels a side, always whole; 100 before 2025-12-17", "A summary comes for all options of an underlying at once."
    ),
}
