"""Binance DEX, whose chain was shut down in 2024. https://docs.bnbchain.org/docs/beaconchain/develop/api-reference/dex-api/ws-streams

A message names its stream, which is the channel alone: `{"stream": "trades", "data": [{"s": "BNB_BTCB-1DE", "p": "0.002", …}]}`. Prices
and amounts are text. Times of trades are nanoseconds, of tickers seconds. Book changes have no time and no number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, Trade
from ._exchange import About, Exchange, Version
from ._mapper import Json, Mapper
from ._parsing import levels, number_if_there, timestamp_from_ms, to_number

_CHANNELS = ("trades", "marketDiff", "depthSnapshot", "ticker")


class BinanceDexTradeMapper(Mapper):
    channels = ("trades",)

    def accepts(self, message: Json) -> bool:
        return message.get("stream") == "trades"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]:
            yield Trade(
                trade.get("s", UNSET),
                self.exchange,
                trade.get("t", UNSET),
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("q", UNSET)),
                "sell" if trade.get("tt") == 2 else "buy",
                _timestamp_from_ns(trade.get("T", UNSET)),
                local_timestamp,
            )


def _timestamp_from_ns(value: Any) -> str | None:
    milliseconds = to_number(value) / 1e6
    return timestamp_from_ms(math.floor(milliseconds)) if math.isfinite(milliseconds) else None


class BinanceDexBookChangeMapper(Mapper):
    channels = ("depthSnapshot", "marketDiff")

    def accepts(self, message: Json) -> bool:
        return message.get("stream") in ("marketDiff", "depthSnapshot")

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        book = message["data"]
        if "symbol" in book:
            symbol, is_snapshot, bids, asks = book["symbol"], True, book["bids"], book["asks"]
        else:
            symbol, is_snapshot, bids, asks = book.get("s", UNSET), False, book["b"], book["a"]
        return [BookChange(symbol, self.exchange, is_snapshot, levels(bids), levels(asks), local_timestamp, local_timestamp)]


class BinanceDexBookTickerMapper(Mapper):
    channels = ("ticker",)

    def accepts(self, message: Json) -> bool:
        return message.get("stream") == "ticker"

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
                timestamp=timestamp_from_ms(to_number(ticker["E"]) * 1000) if "E" in ticker else local_timestamp,
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "subscribe", "topic": "trades", "symbols": ["BNB_BTCB-1DE"]}`."""
    if message.get("method") != "subscribe":
        return None
    channel = message.get("topic")
    # Candles, blocks and accounts were not recorded.
    return [Filter(channel, message.get("symbols", UNSET))] if channel in _CHANNELS else []


EXCHANGES = (
    Exchange(
        name="binance-dex",
        docs="https://docs.bnbchain.org/docs/beaconchain/develop/api-reference/dex-api/ws-streams",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(BinanceDexTradeMapper),),
            "book_change": (Version(BinanceDexBookChangeMapper),),
            "book_ticker": (Version(BinanceDexBookTickerMapper),),
        },
        subscriptions=read_subscription,
    ),
)

ABOUT = {
    "binance-dex": About(
        "1,000 levels a side, then every change",
        "Its chain was shut down; changes of a book have no time and no number.",
        closed="2024",
    ),
}
