"""The API in force until 2021-12-23, at OKCoin until 2023-04-27. https://www.okx.com/docs/en/

A message names its table, which starts with the market: `{"table": "spot/trade", "data": [{"instrument_id": …}]}`. Prices are
text, in 2019 some are numbers; times are ISO text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ...messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, OptionSummary, Trade
from .._mapper import Json, Mapper
from .._parsing import levels, timestamp_from_text, to_number
from .._remembered import Remembered
from .._spelling import Spelling
from .._ticker import TickerMapper
from .instrument import option_terms
from .rows import EPOCH, GREEKS, numbers_of

_MARKETS = {"okex": "spot", "okex-futures": "futures", "okex-swap": "swap", "okex-options": "option", "okcoin": "spot"}
_BEST = {"bid_price": "best_bid", "bid_amount": "best_bid_size", "ask_price": "best_ask", "ask_amount": "best_ask_size"}
_SUMMARY = {
    **{f"best_{ours}": theirs for ours, theirs in _BEST.items()},
    "best_bid_iv": "bid_vol",
    "best_ask_iv": "ask_vol",
    "last_price": "last",
    "open_interest": "open_interest",
    "mark_price": "mark_price",
    "mark_iv": "mark_vol",
    **GREEKS,
}


def _timestamp_of(data: Json) -> str | None:
    return timestamp_from_text(data.get("timestamp", UNSET))


class OkexV3Mapper(Mapper):
    """What these mappers share: the same tables for every market."""

    tables: ClassVar[tuple[str, ...]]

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self.channels = tuple(f"{_MARKETS[exchange]}/{table}" for table in self.tables)

    def accepts(self, message: Json) -> bool:
        return message.get("table") in self.channels


class OkexV3TradeMapper(OkexV3Mapper):
    tables = ("trade",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]:
            trade_id = trade.get("trade_id")
            yield Trade(
                trade.get("instrument_id", UNSET),
                self.exchange,
                trade_id if type(trade_id) is str else UNSET,
                to_number(trade.get("price", UNSET)),
                to_number(trade["qty"] if "qty" in trade else trade.get("size", UNSET)),
                trade.get("side", UNSET),
                _timestamp_of(trade),
                local_timestamp,
            )


class OkexV3BookChangeMapper(OkexV3Mapper):
    """Every change of the book."""

    tables: ClassVar[tuple[str, ...]] = ("depth_l2_tbt",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        is_snapshot = message.get("action") == "partial"
        for book in message["data"]:
            bids, asks = levels(book["bids"]), levels(book["asks"])
            timestamp = _timestamp_of(book)
            if (bids or asks or is_snapshot) and timestamp != EPOCH:
                symbol = book.get("instrument_id", UNSET)
                yield BookChange(symbol, self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp)


class OkexV3DepthMapper(OkexV3BookChangeMapper):
    """Before there was every change: the book ten times a second. Both are asked for, as recordings overlap."""

    tables = ("depth_l2_tbt", "depth")

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self.unread = b'{"table":"%b"' % self.channels[0].encode()

    def accepts(self, message: Json) -> bool:
        return message.get("table") == self.channels[1]


class OkexV3DerivativeTickerMapper(OkexV3Mapper, TickerMapper):
    tables: ClassVar[tuple[str, ...]] = ("ticker", "mark_price")

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        for data in message["data"]:
            ticker = self.tickers[data.get("instrument_id", UNSET)]
            if "funding_rate" in data:
                ticker.update_funding_rate(to_number(data["funding_rate"]))
                ticker.update_funding_timestamp(timestamp_from_text(data.get("funding_time", UNSET)))
                if "estimated_rate" in data:
                    ticker.update_predicted_funding_rate(to_number(data["estimated_rate"]))
            if "mark_price" in data:
                ticker.update_mark_price(to_number(data["mark_price"]))
            if "open_interest" in data:
                open_interest = to_number(data["open_interest"])
                if open_interest > 0:
                    ticker.update_open_interest(open_interest)
            if "last" in data:
                ticker.update_last_price(to_number(data["last"]))
            if "timestamp" in data:
                ticker.update_timestamp(timestamp_from_text(data["timestamp"]))
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)


class OkexV3SwapTickerMapper(OkexV3DerivativeTickerMapper):
    tables = ("ticker", "mark_price", "funding_rate")


class OkexV3LiquidationMapper(OkexV3Mapper):
    tables = ("liquidation",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for order in message["data"]:
            yield Liquidation(
                order.get("instrument_id", UNSET),
                self.exchange,
                UNSET,
                to_number(order.get("price", UNSET)),
                to_number(order.get("size", UNSET)),
                "sell" if order.get("type") == "3" else "buy",  # 3 closes a long, 4 a short
                timestamp_from_text(order.get("created_at", UNSET)),
                local_timestamp,
            )


def _spell_index(symbol: str) -> str:
    # What has no second part is no option; it is asked for all the same, as the cache of other clients holds it so.
    return "-".join([*symbol.upper().split("-"), "undefined"][:2])


class OkexV3OptionSummaryMapper(Mapper):
    """A summary holds everything but the price of the underlying, which is that of the index."""

    channels = ("option/summary", "index/ticker")
    spellings: ClassVar = {"index/ticker": Spelling(_spell_index)}

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._index_prices: Remembered[str, float] = Remembered()

    def accepts(self, message: Json) -> bool:
        return message.get("table") in self.channels

    def map(self, message: Json, local_timestamp: str) -> Iterator[OptionSummary]:
        if message["table"] == "index/ticker":
            for index in message["data"]:
                price = to_number(index.get("last", UNSET))
                if price > 0:
                    self._index_prices[index.get("instrument_id", UNSET)] = price
            return
        for option in message["data"]:
            name, underlying = option["instrument_id"], option.get("underlying", UNSET)
            kind, strike, expiration = option_terms(name)
            yield OptionSummary(
                symbol=name,
                exchange=self.exchange,
                option_type=kind,
                strike_price=strike,
                expiration_date=expiration,
                **numbers_of(option, _SUMMARY),
                rho=UNSET,
                underlying_price=self._index_prices.get(underlying, UNSET),
                underlying_index=underlying,
                timestamp=_timestamp_of(option),
                local_timestamp=local_timestamp,
            )


class OkexV3BookTickerMapper(OkexV3Mapper):
    tables = ("ticker",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        for ticker in message["data"]:
            yield BookTicker(
                symbol=ticker.get("instrument_id", UNSET),
                exchange=self.exchange,
                **numbers_of(ticker, _BEST),
                timestamp=_timestamp_of(ticker),
                local_timestamp=local_timestamp,
            )
