"""FTX and FTX US, which were closed in November 2022: history alone. https://docs.ftx.com/#websocket-api

A message names its channel and its market: `{"channel": "trades", "market": "BTC-PERP", "type": "update", "data": [{"id": 1,
"price": 54346, "size": 0.1, "side": "buy", "liquidation": false, "time": "2021-11-01T00:00:00.050312+00:00"}]}`. Answers have no
data. Numbers are JSON numbers, and come out as they are. Books and quotes tell the time in seconds, with a fraction.

What is known of a future (`instrument`) was fetched by the recorder every few seconds, and what came back was old at times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade, parse_timestamp_us
from ._exchange import About, Exchange, Version
from ._mapper import Json, Mapper
from ._parsing import levels_as_sent, nonzero_number, text_of, timestamp_from_seconds, timestamp_from_text, verbatim
from ._spelling import Spelling
from ._ticker import TickerMapper

_CHANNELS = (
    "orderbook",
    "trades",
    "instrument",
    "markets",
    "orderbookGrouped",
    "lendingRate",
    "borrowRate",
    "borrowSummary",
    "ticker",
    "leveragedTokenInfo",
    "busy",
)
_US_CHANNELS = ("orderbook", "trades", "markets", "orderbookGrouped", "ticker")


class FtxMapper(Mapper):
    """Reads one channel, but for the answers to its subscriptions."""

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == self.channels[0] and message.get("data") is not None


class FtxTradeMapper(FtxMapper):
    channels = ("trades",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message.get("market", UNSET)
        for trade in message["data"]:
            yield Trade(
                symbol,
                self.exchange,
                _id_of(trade),
                verbatim(trade.get("price", UNSET)),
                verbatim(trade.get("size", UNSET)),
                trade.get("side", UNSET),
                _time_of(trade),
                local_timestamp,
            )


def _id_of(trade: Json) -> Any:
    """Its number as text; null where the exchange told none, as in 2019."""
    number = trade.get("id", UNSET)
    return UNSET if number is None else text_of(number)


def _time_of(trade: Json) -> str | None:
    time = trade.get("time")
    if time is None:
        raise ValueError("a trade has no time")
    if type(time) is str and time[26:] == "+00:00":
        time = time[:26] + "Z"  # the form of most exchanges, which is read many times faster
    return timestamp_from_text(time, micros=True)


class FtxLiquidationMapper(FtxMapper):
    """A forced trade is a trade too, of the same side."""

    channels = ("trades",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for trade in message["data"]:
            if trade.get("liquidation"):
                yield Liquidation(
                    message.get("market", UNSET),
                    self.exchange,
                    _id_of(trade),
                    verbatim(trade.get("price", UNSET)),
                    verbatim(trade.get("size", UNSET)),
                    trade.get("side", UNSET),
                    _time_of(trade),
                    local_timestamp,
                )


class FtxBookChangeMapper(FtxMapper):
    channels = ("orderbook",)

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        data, kind = message["data"], message.get("type")
        bids, asks = data["bids"], data["asks"]
        if kind == "update" and len(bids) == 0 and len(asks) == 0:
            return ()
        return (
            BookChange(
                message.get("market", UNSET),
                self.exchange,
                kind == "partial",
                levels_as_sent(bids),
                levels_as_sent(asks),
                timestamp_from_seconds(data.get("time", UNSET)),
                local_timestamp,
            ),
        )


def _future_of(symbol: str) -> str | None:
    """`BTC-PERP`, `BTC-1227`; spot markets (`BTC/USD`) are not among the instruments."""
    return None if "/" in symbol else symbol.upper()


class FtxDerivativeTickerMapper(FtxMapper, TickerMapper):
    channels = ("instrument",)
    spelling = Spelling(_future_of)

    def map(self, message: Json, local_timestamp: str) -> Sequence[DerivativeTicker]:
        data = message["data"]
        ticker, stats = self.tickers[message.get("market", UNSET)], data["stats"]
        # Only perpetuals have funding.
        if "nextFundingTime" in stats:
            funding_time = timestamp_from_text(stats["nextFundingTime"])
            if _is_before(funding_time, ticker.funding_timestamp):
                return ()
            ticker.update_funding_timestamp(funding_time)
            ticker.update_funding_rate(verbatim(stats.get("nextFundingRate")))
        info = data["info"]
        ticker.update_index_price(verbatim(info.get("index")))
        ticker.update_mark_price(verbatim(info.get("mark")))
        ticker.update_last_price(verbatim(info.get("last")))
        ticker.update_open_interest(verbatim(stats.get("openInterest")))
        ticker.update_timestamp(local_timestamp)
        return (ticker.to_message(local_timestamp),) if ticker.has_changed else ()


def _is_before(timestamp: Any, known: Any) -> bool:
    """Whether a message is older than what is known; what is no date is not."""
    return bool(timestamp and known) and parse_timestamp_us(timestamp) < parse_timestamp_us(known)


class FtxBookTickerMapper(FtxMapper):
    channels = ("ticker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        quote = message["data"]
        return [
            BookTicker(
                symbol=message.get("market", UNSET),
                exchange=self.exchange,
                ask_amount=nonzero_number(quote.get("askSize")),
                ask_price=nonzero_number(quote.get("ask")),
                bid_price=nonzero_number(quote.get("bid")),
                bid_amount=nonzero_number(quote.get("bidSize")),
                timestamp=timestamp_from_seconds(quote.get("time", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int, *, channels: Collection[str]) -> list[Filter] | None:
    """`{"op": "subscribe", "channel": "trades", "market": "BTC-PERP"}`."""
    if message.get("op") != "subscribe":
        return None
    channel = message.get("channel")
    # Accounts were not recorded. A channel without a market asks for the symbol null, as it does in the reference.
    return [Filter(channel, [message.get("market")])] if channel in channels else []


EXCHANGES = (
    Exchange(
        name="ftx",
        docs="https://docs.ftx.com/#websocket-api",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(FtxTradeMapper),),
            "book_change": (Version(FtxBookChangeMapper),),
            "derivative_ticker": (Version(FtxDerivativeTickerMapper),),
            "liquidation": (Version(FtxLiquidationMapper),),
            "book_ticker": (Version(FtxBookTickerMapper),),
        },
        subscriptions=partial(read_subscription, channels=_CHANNELS),
    ),
    Exchange(
        name="ftx-us",
        docs="https://docs.ftx.us/#websocket-api",
        channels=_US_CHANNELS,
        mappers={
            "trade": (Version(FtxTradeMapper),),
            "book_change": (Version(FtxBookChangeMapper),),
            "book_ticker": (Version(FtxBookTickerMapper),),
        },
        subscriptions=partial(read_subscription, channels=_US_CHANNELS),
    ),
)

ABOUT = {
    "ftx": About("100 levels a side", "What is known of a future was polled, and old at times.", closed="2022-11"),
    "ftx-us": About("100 levels a side", "Spot alone: no tickers and no liquidations.", closed="2022-11"),
}
