"""Bullish: spot, perpetuals, futures and options. https://api.exchange.bullish.com/docs/api/rest/trading-api/v2/

A message says what its data is: `{"type": "snapshot", "dataType": "V1TALevel2", "data": {"symbol": "BTCUSDC", "bids": ["94.519", "56.3",
"94.489", "53.7"], …}}`. Numbers are text; the levels of a side are one array, price and amount by turns. A book is sent whole each
time, though the venue reserves changes. Trades of type `snapshot` happened before the subscription. The time of some books is cut
short: only 13 digits are taken for one.

One ticker serves all markets, told apart by their names: `BTC-USDC-PERP`, `BTC-USDC-20260426`, `BTC-USDC-20260426-90000-C`. The index is
by asset, which is what stands before the first dash.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, OptionSummary, Side, Timestamp, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels, nonzero_number, optional_number, text_of, timestamp_from_ms, timestamp_from_text, to_number
from ._remembered import Remembered
from ._spelling import AS_TYPED, Spelling
from ._ticker import TickerMapper

_TYPES = ("snapshot", "update")
_MARKET_DATA = "/trading-api/v1/market-data"


class BullishTopic(NamedTuple):
    """How a channel is asked for."""

    name: str
    path: str
    """The socket that has it."""
    symbol_field: str = "symbol"


_TOPICS = {
    "V1TALevel2": BullishTopic("l2Orderbook", f"{_MARKET_DATA}/orderbook"),
    "V1TALevel1": BullishTopic("l1Orderbook", f"{_MARKET_DATA}/orderbook"),
    "V1TAAnonymousTradeUpdate": BullishTopic("anonymousTrades", f"{_MARKET_DATA}/trades"),
    "V1TATickerResponse": BullishTopic("tick", f"{_MARKET_DATA}/tick"),
    "V1TAIndexPrice": BullishTopic("indexPrice", "/trading-api/v1/index-data", "assetSymbol"),
}


class BullishTradeMapper(Mapper):
    channels = ("V1TAAnonymousTradeUpdate",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return message.get("dataType") == "V1TAAnonymousTradeUpdate" and message.get("type") == "update"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]["trades"]:
            yield Trade(
                trade.get("symbol", UNSET),
                self.exchange,
                trade.get("tradeId", UNSET),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("quantity", UNSET)),
                _taker_side(trade),
                timestamp_from_text(trade.get("createdAtDatetime", UNSET)),
                local_timestamp,
            )


def _taker_side(trade: Json) -> Side:
    """A trade is told by the taker or by the maker, each with its own side."""
    is_buy = trade.get("side") == "BUY"
    return "buy" if is_buy is bool(trade.get("isTaker")) else "sell"


class BullishBookChangeMapper(Mapper):
    channels = ("V1TALevel2",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return message.get("dataType") == "V1TALevel2"

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        book = message["data"]
        return [
            BookChange(
                book.get("symbol", UNSET),
                self.exchange,
                message.get("type") == "snapshot",
                _levels(book["bids"]),
                _levels(book["asks"]),
                _time_of(book, local_timestamp),
                local_timestamp,
            )
        ]


def _levels(side: Sequence[Any]) -> list[BookLevel]:
    if len(side) % 2:
        raise ValueError(f"expected a price and an amount by turns, got {len(side)} of them")
    return levels(zip(side[::2], side[1::2], strict=True))


def _time_of(book: Json, local_timestamp: str) -> Timestamp:
    time = book.get("timestamp")
    if type(time) is str and len(time) == 13:
        milliseconds = to_number(time)
        if type(milliseconds) is int:
            return timestamp_from_ms(milliseconds)
    return local_timestamp


class BullishBookTickerMapper(Mapper):
    channels = ("V1TALevel1",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return message.get("dataType") == "V1TALevel1" and message.get("type") in _TYPES

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        best = message["data"]
        bid_price, bid_amount = [*best["bid"], None, None][:2]
        ask_price, ask_amount = [*best["ask"], None, None][:2]
        return [
            BookTicker(
                symbol=best.get("symbol", UNSET),
                exchange=self.exchange,
                ask_amount=nonzero_number(ask_amount),
                ask_price=nonzero_number(ask_price),
                bid_price=nonzero_number(bid_price),
                bid_amount=nonzero_number(bid_amount),
                timestamp=_time_of(best, local_timestamp),
                local_timestamp=local_timestamp,
            )
        ]


def _asset_of(symbol: str) -> str:
    return symbol.partition("-")[0]


_EXPIRATION = re.compile(r"-[0-9]{8}\Z")


@lru_cache(10_000)
def _is_derivative(symbol: str) -> bool:
    return symbol.endswith("-PERP") or _EXPIRATION.search(symbol) is not None


class BullishTickerMapper(Mapper):
    """What mappers of the ticker share: its markets are told apart by name, and prices of indexes wait for the next ticker."""

    channels = ("V1TATickerResponse", "V1TAIndexPrice")
    spelling = AS_TYPED
    spellings = MappingProxyType({"V1TAIndexPrice": Spelling(_asset_of, unique=True)})
    index_prices: Remembered[str, float]

    def accepts(self, message: Json) -> bool:
        channel = message.get("dataType")
        if channel not in self.channels or message.get("type") not in _TYPES:
            return False
        if channel == "V1TAIndexPrice":
            return True
        market = message.get("data")
        return bool(market) and "symbol" in market and self.reads(market["symbol"])

    @abstractmethod
    def reads(self, symbol: str) -> bool:
        """Whether it is of a market that the mapper reads."""

    def note_index(self, index: Json) -> None:
        """Remembers the price of an asset; 0 is none."""
        price = nonzero_number(index.get("price"))
        if price is not UNSET:
            self.index_prices[index.get("assetSymbol")] = price


class BullishDerivativeTickerMapper(BullishTickerMapper, TickerMapper):
    def reads(self, symbol: str) -> bool:
        return _is_derivative(symbol)

    def map(self, message: Json, local_timestamp: str) -> list[DerivativeTicker]:
        market = message["data"]
        if message["dataType"] == "V1TAIndexPrice":
            self.note_index(market)
            return []
        symbol = market["symbol"]
        ticker = self.tickers[symbol]
        ticker.update_last_price(nonzero_number(market.get("last")))
        ticker.update_mark_price(nonzero_number(market.get("markPrice")))
        ticker.update_funding_rate(optional_number(market.get("fundingRate")))
        ticker.update_open_interest(optional_number(market.get("openInterest")))
        ticker.update_index_price(self.index_prices.get(_asset_of(symbol)))
        if not ticker.has_changed:
            return []
        ticker.update_timestamp(timestamp_from_text(market.get("createdAtDatetime", UNSET)))
        return [ticker.to_message(local_timestamp)]


class BullishOption(NamedTuple):
    """What the name of an option says."""

    asset: str
    expiration: Timestamp
    strike: float
    kind: Literal["put", "call"]


@lru_cache(10_000)
def _option(symbol: str) -> BullishOption:
    parts: list[Any] = symbol.split("-")
    date = parts[2]
    strike, kind = [*parts[3:], UNSET, UNSET][:2]
    expiration = timestamp_from_text(f"{date[:4]}-{date[4:6]}-{date[6:8]}T08:00:00.000Z")
    return BullishOption(parts[0], expiration, to_number(strike), "put" if kind == "P" else "call")


class BullishOptionSummaryMapper(BullishTickerMapper):
    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self.index_prices = Remembered()

    def reads(self, symbol: str) -> bool:
        return symbol.endswith(("-C", "-P"))

    def map(self, message: Json, local_timestamp: str) -> list[OptionSummary]:
        market = message["data"]
        if message["dataType"] == "V1TAIndexPrice":
            self.note_index(market)
            return []
        symbol = market["symbol"]
        option = _option(symbol)
        return [
            OptionSummary(
                symbol=symbol,
                exchange=self.exchange,
                option_type=option.kind,
                strike_price=option.strike,
                expiration_date=option.expiration,
                best_bid_price=nonzero_number(market.get("bestBid")),
                best_bid_amount=nonzero_number(market.get("bidVolume")),
                best_bid_iv=UNSET,
                best_ask_price=nonzero_number(market.get("bestAsk")),
                best_ask_amount=nonzero_number(market.get("askVolume")),
                best_ask_iv=UNSET,
                last_price=nonzero_number(market.get("last")),
                open_interest=optional_number(market.get("openInterest")),
                mark_price=optional_number(market.get("markPrice")),
                mark_iv=nonzero_number(market.get("impliedVolatility")),
                delta=optional_number(market.get("delta")),
                gamma=optional_number(market.get("gamma")),
                vega=optional_number(market.get("vega")),
                theta=optional_number(market.get("theta")),
                rho=UNSET,
                underlying_price=self.index_prices.get(option.asset, UNSET),
                underlying_index=option.asset,
                timestamp=timestamp_from_text(market.get("createdAtDatetime", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "subscribe", "params": {"topic": "l2Orderbook", "symbol": "BTCUSDC"}, …}`; an index has an `assetSymbol`."""
    if message.get("method") != "subscribe":
        return None
    params = message.get("params") or {}
    channel = next((channel for channel, topic in _TOPICS.items() if topic.name == params.get("topic")), None)
    symbol = params.get("symbol") or params.get("assetSymbol")
    # Heartbeats, auctions and accounts were not recorded.
    return [Filter(channel, [symbol])] if channel and symbol else []


class BullishFeed(Feed):
    """Answers `{"id": …, "result": …}` or `{"id": …, "error": …}`. Each path is a socket of its own, and closes without a
    `keepalivePing` for a minute. Books are numbered from `sequenceNumberRange[0]` to `[1]`, without a hole."""

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        by_path: dict[str, list[Filter]] = {}
        for item in filters:
            by_path.setdefault(_TOPICS[item.channel].path, []).append(item)
        return list(by_path.values())

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake(_TOPICS[self.filters[0].channel].path)

    def subscribe(self, now_us: int) -> list[str]:
        asked = [
            {"topic": topic.name, topic.symbol_field: symbol}
            for item, topic in ((item, _TOPICS[item.channel]) for item in self.filters)
            for symbol in dict.fromkeys(self.symbols(item))
        ]
        return [_command("subscribe", str(number), {"params": params}) for number, params in enumerate(asked, start=1)]

    def ping(self, now_us: int) -> str:
        return _command("keepalivePing", str(now_us // 1000), {})

    def classify(self, message: Json) -> Heard:
        channel = message.get("dataType")
        if channel == "V1TALevel2":
            book = message["data"]
            first, last = book["sequenceNumberRange"]
            return BookStep(book["symbol"], message["type"] == "snapshot", last, first - 1)
        if channel in _TOPICS:
            return FrameKind.DATA
        if message.get("error") is not None:
            return FrameKind.ERROR
        result = message.get("result")
        is_pong = isinstance(result, dict) and result.get("message") == "Keep alive pong"
        return FrameKind.HEARTBEAT if is_pong or channel == "V1TAHeartbeat" else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        """`{"code": "-32602", "errorCode": "29013", "errorCodeName": "'NOPE' is not a valid symbol"}`."""
        error = message["error"]
        if isinstance(error, dict):
            error = " ".join(text_of(error[name]) for name in ("errorCode", "errorCodeName", "message") if error.get(name))
        details = text_of(error) or "an error without details"
        return FeedError(kind_of_error(details), details)


def _command(method: str, number: str, rest: Json) -> str:
    return to_frame({"jsonrpc": "2.0", "type": "command", "method": method, "id": number, **rest})


EXCHANGES = (
    Exchange(
        name="bullish",
        docs="https://api.exchange.bullish.com/docs/api/rest/trading-api/v2/",
        channels=tuple(_TOPICS),
        mappers={
            "trade": (Version(BullishTradeMapper),),
            "book_change": (Version(BullishBookChangeMapper),),
            "derivative_ticker": (Version(BullishDerivativeTickerMapper),),
            "option_summary": (Version(BullishOptionSummaryMapper),),
            "book_ticker": (Version(BullishBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(BullishFeed, "wss://api.exchange.bullish.com"),
    ),
)

ABOUT = {
    "bullish": About(
        "what the venue sends, whole each time",
        "One ticker serves perpetuals, futures and options; its index is heard at an address of its own.",
    ),
}
