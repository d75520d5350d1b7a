"""Derivative tickers: what is known of each derivative, put together from messages that tell a few fields each.

Invariant: a ticker is emitted only after a field changed, keeps what it was told before, and its timestamp never moves backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from ..messages import UNSET, DerivativeTicker, parse_timestamp_us
from ._mapper import Mapper
from ._remembered import Remembered

__all__ = ["PendingTicker", "PendingTickers", "TickerMapper"]


def _updater(field: str) -> Callable[[PendingTicker, Any], None]:
    def update(self: PendingTicker, value: Any) -> None:
        if value is not None and value is not UNSET and value != getattr(self._ticker, field):
            setattr(self._ticker, field, value)
            self.has_changed = True

    update.__name__ = update.__qualname__ = f"update_{field}"
    update.__doc__ = f"Takes a new {field}; absent and null say nothing new."
    return update


class PendingTicker:
    """The next ticker of one derivative, told field by field; when `has_changed`, its mapper emits it with `to_message`."""

    __slots__ = ("_ticker", "has_changed")

    def __init__(self, symbol: str, exchange: str) -> None:
        # `to_message` sets both clocks where no message has told them.
        unset: Any = UNSET
        self._ticker = DerivativeTicker(
            symbol=symbol,
            exchange=exchange,
            last_price=UNSET,
            open_interest=UNSET,
            funding_rate=UNSET,
            funding_timestamp=UNSET,
            predicted_funding_rate=UNSET,
            index_price=UNSET,
            mark_price=UNSET,
            timestamp=unset,
            local_timestamp=unset,
        )
        self.has_changed = False

    update_last_price = _updater("last_price")
    update_open_interest = _updater("open_interest")
    update_funding_rate = _updater("funding_rate")
    update_predicted_funding_rate = _updater("predicted_funding_rate")
    update_index_price = _updater("index_price")
    update_mark_price = _updater("mark_price")

    @property
    def funding_timestamp(self) -> Any:
        """The funding time last told; UNSET before the first, None where it was no date."""
        return self._ticker.funding_timestamp

    def update_funding_timestamp(self, timestamp: Any) -> None:
        """Takes a new funding time. UNSET says nothing new; None is an invalid date, and differs from any date, itself too."""
        if timestamp is UNSET:
            return
        known = self._ticker.funding_timestamp
        if known is UNSET or known is None or timestamp is None or _clock(known) != _clock(timestamp):
            self._ticker.funding_timestamp = timestamp
            self.has_changed = True

    def update_timestamp(self, timestamp: Any) -> None:
        """Takes the exchange's time, unless it is a millisecond or more earlier; an invalid date stays if it came first."""
        known: Any = self._ticker.timestamp
        if known is UNSET or (known is not None and timestamp is not None and _clock(known) <= _clock(timestamp)):
            self._ticker.timestamp = timestamp

    def to_message(self, local_timestamp: str) -> DerivativeTicker:
        """All that is known now; from here on `has_changed` tells of later changes."""
        self.has_changed = False
        ticker = self._ticker
        ticker.local_timestamp = local_timestamp
        known: Any = ticker.timestamp
        if known is UNSET:
            ticker.timestamp = local_timestamp
        return copy(ticker)


class PendingTickers(Remembered[str, PendingTicker]):
    """Every derivative of an exchange by symbol: `tickers[symbol]` starts one, `symbol in tickers` says whether there is one."""

    def __init__(self, exchange: str) -> None:
        super().__init__()
        self.exchange = exchange

    def __missing__(self, symbol: str) -> PendingTicker:
        ticker = self[symbol] = PendingTicker(symbol, self.exchange)
        return ticker


class TickerMapper(Mapper):
    """A mapper that puts derivative tickers together.

    `map` tells `self.tickers[symbol]` what a message says, and emits it if it `has_changed`. What is told without being emitted
    comes out with the next message of that symbol.
    """

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self.tickers = PendingTickers(exchange)
        # By index, where an index has messages of its own: told with the next message of each derivative that follows it.
        self.index_prices: Remembered[str, float] = Remembered()


def _clock(timestamp: str) -> Any:
    """The time to the millisecond, in a form that orders: text where years have four digits."""
    return timestamp[:23] if timestamp[0] not in "+-" else _expanded(timestamp)


def _expanded(timestamp: str) -> str:
    # Years before 0 order before all text that starts with a digit, those past 9999 after it.
    instant_ms = parse_timestamp_us(timestamp) // 1000
    return f"~{instant_ms:020d}" if instant_ms >= 0 else f"!{instant_ms + 10**20:021d}"
