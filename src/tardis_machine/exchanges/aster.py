"""Aster: spot and futures. https://github.com/asterdex/api-docs

Its API is a copy of Binance's: `{"stream": "btcusdt@depth@0ms", "data": {...}}`, prices and amounts as text, books from a REST snapshot and
the updates around it. Unlike there, each update names the one before it (`pu`), also on spot, and one that does not follow is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ..messages import UNSET, BookTicker, DerivativeTicker
from ._exchange import About, Exchange, Version
from ._feed import LiveApi
from ._joined_book import JoinRules, links, surrounds
from ._mapper import Json
from ._parsing import number_if_there, optional_number, timestamp_from_ms, to_number
from ._ticker import TickerMapper
from .binance import (
    FUTURES_INTERVALS,
    BinanceBookChangeMapper,
    BinanceFeed,
    BinanceLiquidationMapper,
    BinanceMapper,
    BinanceTradeMapper,
    Market,
    subscription_reader,
)


class AsterBookChangeMapper(BinanceBookChangeMapper):
    # -1: an instrument so new that its book is empty.
    rules = JoinRules(overlaps=links, is_chain=True, empty_numbers=(-1,))


class AsterFuturesBookChangeMapper(BinanceBookChangeMapper):
    rules = JoinRules(overlaps=surrounds, holds_own_number=False, is_chain=True, empty_numbers=(-1,))


class AsterDerivativeTickerMapper(BinanceMapper, TickerMapper):
    channels = ("markPrice", "ticker", "openInterest")

    def accepts(self, message: Json) -> bool:
        stream = message.get("stream") or ""
        return stream.endswith(("@ticker", "@openInterest")) or "@markPrice" in stream

    def map(self, message: Json, local_timestamp: str) -> list[DerivativeTicker]:
        data = message["data"]
        ticker = self.tickers[data["s"] if "s" in data else data.get("symbol", UNSET)]
        event = data.get("e")
        if event == "markPriceUpdate":
            ticker.update_mark_price(to_number(data.get("p", UNSET)))
            ticker.update_index_price(number_if_there(data, "i"))
            # Futures that expire have no funding.
            if data.get("r") != "" and data.get("T") != 0:
                ticker.update_funding_rate(to_number(data.get("r", UNSET)))
                ticker.update_funding_timestamp(timestamp_from_ms(data.get("T", UNSET)))
            ticker.update_timestamp(timestamp_from_ms(data.get("E", UNSET)))
        elif event == "24hrTicker":
            ticker.update_last_price(to_number(data.get("c", UNSET)))
            ticker.update_timestamp(timestamp_from_ms(data.get("E", UNSET)))
        elif "e" not in data and "openInterest" in data:
            ticker.update_open_interest(to_number(data["openInterest"]))
            ticker.update_timestamp(timestamp_from_ms(data.get("time", UNSET)))
        return [ticker.to_message(local_timestamp)] if ticker.has_changed else []


class AsterBookTickerMapper(BinanceMapper):
    channels = ("bookTicker",)
    endings = ("@bookTicker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        ticker = message["data"]
        return [
            BookTicker(
                symbol=ticker.get("s", UNSET),
                exchange=self.exchange,
                ask_amount=optional_number(ticker.get("A")),
                ask_price=optional_number(ticker.get("a")),
                bid_price=optional_number(ticker.get("b")),
                bid_amount=optional_number(ticker.get("B")),
                timestamp=timestamp_from_ms(ticker["E"]) if "E" in ticker else local_timestamp,
                local_timestamp=local_timestamp,
            )
        ]


class AsterFeed(BinanceFeed):
    max_subscriptions = 200
    markets: ClassVar[Mapping[str, Market]] = {
        "aster": Market("/stream", "/api/v3", 1200, AsterBookChangeMapper.rules, FUTURES_INTERVALS),
        "aster-futures": Market("/stream", "/fapi/v3", 2400, AsterFuturesBookChangeMapper.rules, FUTURES_INTERVALS, 30.0),
    }


_CHANNELS = ("trade", "aggTrade", "ticker", "depth", "depthSnapshot", "bookTicker")
_FUTURES_CHANNELS = (*_CHANNELS, "markPrice", "forceOrder", "assetIndex", "openInterest")

EXCHANGES = (
    Exchange(
        name="aster",
        docs="https://github.com/asterdex/api-docs",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(BinanceTradeMapper),),
            "book_change": (Version(AsterBookChangeMapper),),
            "book_ticker": (Version(AsterBookTickerMapper),),
        },
        subscriptions=subscription_reader(_CHANNELS),
        live=LiveApi(AsterFeed, "wss://sstream.asterdex.com", "https://sapi.asterdex.com"),
    ),
    Exchange(
        name="aster-futures",
        docs="https://github.com/asterdex/api-docs",
        channels=_FUTURES_CHANNELS,
        mappers={
            "trade": (Version(BinanceTradeMapper),),
            "book_change": (Version(AsterFuturesBookChangeMapper),),
            "derivative_ticker": (Version(AsterDerivativeTickerMapper),),
            "liquidation": (Version(BinanceLiquidationMapper),),
            "book_ticker": (Version(AsterBookTickerMapper),),
        },
        subscriptions=subscription_reader(_FUTURES_CHANNELS),
        live=LiveApi(AsterFeed, "wss://fstream.asterdex.com", "https://fapi.asterdex.com"),
    ),
)

ABOUT = {
    "aster": About(
        "1,000 levels a side from a snapshot over REST, then every change",
        "A copy of Binance's API, in which each update of a book names the one before it.",
    ),
    "aster-futures": About(
        "1,000 levels a side from a snapshot over REST, then every change",
        "A copy of Binance's API, with its request weights; open interest is polled.",
    ),
}
