"""Trades summed up by time, by count or by volume: `trade_bar_…`.

Invariant: a bar begins with its first trade and ends with the trade that fills it. A bar of time ends before the first trade of
a later interval, and is stamped with the end of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import copysign, inf, nan
from typing import ClassVar, Literal

from ..messages import Message, Trade, TradeBar, js_number
from .bucket import Bucket, is_not_before
from .contract import Computable, Computation
from .quantity import parse_quantity, to_text

__all__ = ["TradeBars"]

Kind = Literal["time", "tick", "volume"]

_NAME = re.compile(r"trade_bar_(?P<interval>[^_]+?)(?P<unit>ticks|vol|ms|s|m|h)")
_UNITS: dict[str, tuple[Kind, int]] = {
    "ms": ("time", 1),
    "s": ("time", 1000),
    "m": ("time", 60_000),
    "h": ("time", 3_600_000),
    "ticks": ("tick", 1),
    "vol": ("volume", 1),
}
_SUFFIXES: dict[Kind, str] = {"time": "ms", "tick": "ticks", "volume": "vol"}


@dataclass(frozen=True)
class TradeBars(Computable):
    """Bars of `interval` milliseconds, trades or contracts.

    >>> TradeBars.parse("trade_bar_1.5s")
    TradeBars(kind='time', interval=1500, name='trade_bar_1.5s')
    >>> TradeBars("volume", 12.5).name
    'trade_bar_12.5vol'
    """

    kind: Kind
    interval: float
    name: str = ""

    SOURCE: ClassVar[type[Message]] = Trade
    RESULT: ClassVar[type[Message]] = TradeBar
    FORMS: ClassVar[tuple[str, ...]] = ("trade_bar_{n}{ms|s|m|h|ticks|vol}",)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"trade_bar_{to_text(self.interval)}{_SUFFIXES[self.kind]}")

    @classmethod
    def parse(cls, data_type: str) -> TradeBars | None:
        """The one asked for by that name."""
        if not data_type.startswith("trade_bar_"):
            return None
        match = _NAME.fullmatch(data_type)
        if match is None:
            raise ValueError(f"'{data_type}' has no unit")
        kind, unit = _UNITS[match["unit"]]
        return cls(kind, parse_quantity(match["interval"], unit), data_type)

    def begin(self) -> Computation:
        """A bar without trades."""
        return _Bar(self)


# What a bar holds before its first trade, and keeps where no trade is a number or in its time.
_BEFORE_1970 = "1969-12-31T23:59:59.999Z"
_LOWEST, _HIGHEST = -(2**53 - 1), 2**53 - 1


class _Bar(Computation):
    """The bar in progress of one instrument."""

    __slots__ = (
        "_asked",
        "_bucket",
        "buy_volume",
        "close",
        "close_timestamp",
        "high",
        "low",
        "open",
        "open_timestamp",
        "sell_volume",
        "trades",
        "volume",
        "vwap",
    )

    def __init__(self, asked: TradeBars) -> None:
        self._asked = asked
        self._bucket = Bucket(asked.interval) if asked.kind == "time" else None
        self._reset()

    def _reset(self) -> None:
        self.open: float = 0
        self.high: float = _LOWEST
        self.low: float = _HIGHEST
        self.close: float = 0
        # Doubles throughout, as exact integers would add up differently.
        self.volume = self.buy_volume = self.sell_volume = self.vwap = 0.0
        self.trades = 0
        self.open_timestamp: str | None = _BEFORE_1970
        self.close_timestamp = _BEFORE_1970

    def update(self, message: Trade, out: list[Message]) -> None:
        """Ends the bar if its time is over, takes the trade, and ends the bar if that filled it."""
        bucket, timestamp = self._bucket, message.timestamp
        if bucket is not None and self.trades and not bucket.holds(timestamp):
            ended = bucket.ended_by(timestamp)
            if ended is not None:
                out.append(self._end(message, ended))
        self._take(message, timestamp)
        if bucket is not None:
            if self.trades == 1:
                bucket.move(timestamp)
        elif (self.volume if self._asked.kind == "volume" else self.trades) >= self._asked.interval:
            out.append(self._end(message, self.close_timestamp))

    def _take(self, trade: Trade, timestamp: str | None) -> None:
        # What an exchange sent as null counts as 0.
        price, amount = trade.price or 0, trade.amount or 0
        if self.trades == 0:
            self.open = price
            self.open_timestamp = timestamp
        if self.high < price:
            self.high = price
        if self.low > price:
            self.low = price
        # Some exchanges publish older trades after newer ones.
        if timestamp is not None and is_not_before(timestamp, self.close_timestamp):
            self.close = price
            self.close_timestamp = timestamp
        if trade.side == "buy":
            self.buy_volume += amount
        elif trade.side == "sell":
            self.sell_volume += amount
        self.trades += 1
        volume = self.volume + amount
        self.vwap = _divide(self.vwap * self.volume + float(price) * amount, volume)
        self.volume = volume

    def _end(self, message: Trade, timestamp: str | None) -> TradeBar:
        asked = self._asked
        bar = TradeBar(
            message.symbol,
            message.exchange,
            asked.name,
            asked.interval,
            asked.kind,
            self.open,
            self.high,
            self.low,
            self.close,
            js_number(self.volume),
            js_number(self.buy_volume),
            js_number(self.sell_volume),
            self.trades,
            js_number(self.vwap),
            self.open_timestamp,
            self.close_timestamp,
            timestamp,
            message.local_timestamp,
        )
        self._reset()
        return bar


def _divide(dividend: float, divisor: float) -> float:
    """A quotient of doubles: by 0 it is no number, or an infinite one; both print as null."""
    if divisor:
        return dividend / divisor
    return copysign(inf, dividend) * copysign(1, divisor) if dividend and dividend == dividend else nan
