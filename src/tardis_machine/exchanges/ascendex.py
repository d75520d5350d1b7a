"""AscendEX, history alone. https://ascendex.github.io/ascendex-pro-api/

A message names its channel in `m`: `{"m": "trades", "symbol": "BTC/USDT", "data": [{"p": "51297.85", "q": "0.03393", "ts": 1616716801842,
"bm": false, "seqnum": 72057619793078350}]}`. Prices and amounts are text, times milliseconds; snapshots of books say 0, which is none.

What futures are worth comes for all of them at once, without their last price: that is told by their trades.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Timestamp, Trade
from ._exchange import About, Exchange, Version
from ._mapper import Json, Mapper
from ._parsing import levels, text_of, timestamp_from_ms, to_number
from ._spelling import EMPTY_LIST
from ._ticker import TickerMapper

_CHANNELS = ("trades", "depth-realtime", "depth-snapshot-realtime", "bbo", "futures-pricing-data")


class AscendexTradeMapper(Mapper):
    channels = ("trades",)

    def accepts(self, message: Json) -> bool:
        return message.get("m") == "trades"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message.get("symbol", UNSET)
        for trade in message["data"]:
            yield Trade(
                symbol,
                self.exchange,
                UNSET,
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("q", UNSET)),
                "sell" if trade.get("bm") is True else "buy",  # the buyer is the maker
                timestamp_from_ms(trade.get("ts", UNSET)),
                local_timestamp,
            )


class AscendexBookChangeMapper(Mapper):
    channels = ("depth-realtime", "depth-snapshot-realtime")

    def accepts(self, message: Json) -> bool:
        return message.get("m") in ("depth-realtime", "depth-snapshot-realtime")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol = message.get("symbol")
        if not symbol:
            return ()
        data = message["data"]
        bids, asks, time_ms = data.get("bids"), data.get("asks"), data.get("ts", UNSET)
        if _is_missing(bids) or _is_missing(asks):
            return ()
        is_snapshot = message["m"] == "depth-snapshot-realtime"
        timestamp: Timestamp = timestamp_from_ms(time_ms) if to_number(time_ms) > 0 else local_timestamp
        return (BookChange(symbol, self.exchange, is_snapshot, levels(bids), levels(asks), timestamp, local_timestamp),)


def _is_missing(side: Any) -> bool:
    """An empty side is there."""
    return not side and side != []


class AscendexDerivativeTickerMapper(TickerMapper):
    channels = ("futures-pricing-data", "trades")
    spellings = MappingProxyType({"futures-pricing-data": EMPTY_LIST})

    def accepts(self, message: Json) -> bool:
        return message.get("m") in ("trades", "futures-pricing-data")

    def map(self, message: Json, local_timestamp: str) -> Iterable[DerivativeTicker]:
        if message["m"] == "trades":
            last_price = to_number(message["data"][-1].get("p", UNSET))
            self.tickers[message.get("symbol", UNSET)].update_last_price(last_price)
            return ()
        return self._map_pricing(message["con"], local_timestamp)

    def _map_pricing(self, rows: Sequence[Json], local_timestamp: str) -> Iterator[DerivativeTicker]:
        for row in rows:
            ticker = self.tickers[row.get("s", UNSET)]
            ticker.update_index_price(to_number(row.get("ip", UNSET)))
            ticker.update_mark_price(to_number(row.get("mp", UNSET)))
            ticker.update_open_interest(to_number(row.get("oi", UNSET)))
            ticker.update_timestamp(timestamp_from_ms(row.get("t", UNSET)))
            ticker.update_funding_timestamp(timestamp_from_ms(row.get("f", UNSET)))
            ticker.update_funding_rate(to_number(row.get("r", UNSET)))
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)


class AscendexBookTickerMapper(Mapper):
    channels = ("bbo",)

    def accepts(self, message: Json) -> bool:
        return message.get("m") == "bbo"

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        data = message["data"]
        bid, ask = data.get("bid", ()), data.get("ask", ())
        return [
            BookTicker(
                symbol=message.get("symbol", UNSET),
                exchange=self.exchange,
                ask_amount=_number_at(ask, 1),
                ask_price=_number_at(ask, 0),
                bid_price=_number_at(bid, 0),
                bid_amount=_number_at(bid, 1),
                timestamp=timestamp_from_ms(data.get("ts", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def _number_at(pair: Sequence[Any], place: int) -> Any:
    """Of a price and an amount; UNSET where there is none."""
    return to_number(pair[place]) if place < len(pair) else UNSET


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"op": "sub", "ch": "trades:ASD/USDT"}` or `{"op": "req", "action": "depth-snapshot-realtime", "args": {"symbol": "ASD/USDT"}}`."""
    if message.get("op") not in ("sub", "req"):
        return None
    name, _, symbols = text_of(message.get("ch") or "").partition(":")
    channel = message.get("action") or name
    symbol = (message.get("args") or {}).get("symbol") or symbols.partition(":")[0]
    # Candles, summaries and accounts were not recorded.
    return [Filter(channel, [symbol] if symbol else [])] if channel in _CHANNELS else []


EXCHANGES = (
    Exchange(
        name="ascendex",
        docs="https://ascendex.github.io/ascendex-pro-api/",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(AscendexTradeMapper),),
            "book_change": (Version(AscendexBookChangeMapper),),
            "derivative_ticker": (Version(AscendexDerivativeTickerMapper),),
            "book_ticker": (Version(AscendexBookTickerMapper),),
        },
        subscriptions=read_subscription,
    ),
)

ABOUT = {
    "ascendex": About(
        "what the venue sends: snapshot and changes",
        "Futures are told all at once without their last price, which their trades tell.",
    ),
}
