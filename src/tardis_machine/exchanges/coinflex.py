"""CoinFLEX, which became OPNX in April 2023 and closed with it in February 2024. https://docs.coinflex.com/v2/

A message names its table: `{"table": "trade", "data": [{"marketCode": "BTC-USD-SWAP-LIN", "tradeId": "160061323905884640", "side": "SELL",
"price": "9237.5", "quantity": "0.4999", "timestamp": "1594684856487"}]}`. Prices and times, in milliseconds, are text, but in books
prices are JSON numbers. Each message of a book is a whole one. Spot markets have a ticker, too, and one dash: `BTC-USD`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..filters import Filter
from ..messages import UNSET, BookChange, DerivativeTicker, Timestamp, Trade
from ._exchange import About, Exchange, Version
from ._mapper import Json, Mapper
from ._parsing import levels, number_if_there, timestamp_from_ms, to_number
from ._ticker import TickerMapper

_CHANNELS = ("futures/depth", "trade", "ticker")


def _time(row: Json) -> Timestamp:
    return timestamp_from_ms(to_number(row.get("timestamp", UNSET)))


class CoinflexTradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "trade"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]:
            yield Trade(
                trade.get("marketCode", UNSET),
                self.exchange,
                trade.get("tradeId", UNSET),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("quantity", UNSET)),
                "sell" if trade.get("side") == "SELL" else "buy",
                _time(trade),
                local_timestamp,
            )


class CoinflexBookChangeMapper(Mapper):
    channels = ("futures/depth",)

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "futures/depth"

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        is_snapshot = message.get("action") == "partial"
        for book in message["data"]:
            symbol = book.get("instrumentId", UNSET)
            bids, asks = levels(book["bids"]), levels(book["asks"])
            yield BookChange(symbol, self.exchange, is_snapshot, bids, asks, _time(book), local_timestamp)


class CoinflexDerivativeTickerMapper(TickerMapper):
    channels = ("ticker",)

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "ticker"

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        for row in message["data"]:
            symbol = row["marketCode"]
            if symbol.count("-") == 1:  # a spot market
                continue
            ticker = self.tickers[symbol]
            ticker.update_mark_price(number_if_there(row, "markPrice"))
            ticker.update_open_interest(number_if_there(row, "openInterest"))
            ticker.update_last_price(number_if_there(row, "last"))
            ticker.update_timestamp(_time(row))
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"op": "subscribe", "args": ["trade:BTC-USD-SWAP-LIN", "depth:BTC-USD"]}`; `depth` was recorded as `futures/depth`."""
    if message.get("op") != "subscribe":
        return None
    filters: list[Filter] = []
    for arg in message.get("args") or ():
        name, _, symbol = arg.partition(":")
        channel = "futures/depth" if name == "depth" else name
        if channel in _CHANNELS:
            filters.append(Filter(channel, [symbol]) if symbol else Filter(channel))
    return filters


EXCHANGES = (
    Exchange(
        name="coinflex",
        docs="https://docs.coinflex.com/v2/",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(CoinflexTradeMapper),),
            "book_change": (Version(CoinflexBookChangeMapper),),
            "derivative_ticker": (Version(CoinflexDerivativeTickerMapper),),
        },
        subscriptions=read_subscription,
    ),
)

ABOUT = {
    "coinflex": About("what the venue sent, whole each time", "Became OPNX in April 2023, and closed with it.", closed="2024-02"),
}
