"""The grid of time that gold is computed on.

Windows lie on multiples of their interval since 1970, UTC. What concerns trades and tickers is put into windows by the exchange's clock
(`event_ts`), unless that is absent or more than an hour from the recorder's (`local_ts`), which then counts: so a row's window
depends on the row alone, and its rows are found near it. What concerns books goes by the recorder's clock, as that is the order
in which changes apply.

Invariant: the window of a row never depends on other rows.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ...errors import OptionsError

__all__ = ["CLOCK", "HOUR_US", "MAX_SKEW_US", "MINUTE_US", "SECOND_US", "floor_to", "interval_us", "later", "to_instant", "to_us"]

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
MAX_SKEW_US = HOUR_US
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_US = {"ms": 1_000, "s": SECOND_US, "m": MINUTE_US, "h": HOUR_US, "d": 24 * HOUR_US}

CLOCK = f"CASE WHEN abs(unix_micros(event_ts) - unix_micros(local_ts)) <= {MAX_SKEW_US} THEN event_ts ELSE local_ts END"  # null: local_ts
"""The instant by which a row is put into a window, in SQL."""


def interval_us(text: str) -> int:
    """The length of an interval in microseconds: `1s`, `5m`, `100ms`, `1d`."""
    found = re.fullmatch(r"([1-9]\d{0,5})(ms|s|m|h|d)", text)
    if found is None:
        raise OptionsError(
            f"{text!r} is no interval of a gold product; --gold takes intervals such as 100ms, 1s, 5m, 1h and 1d", "gold"
        )
    return int(found[1]) * _UNITS_US[found[2]]


def floor_to(instant: str, length_us: int) -> str:
    """The start of the window that an instant lies in, in SQL."""
    return f"timestamp_micros(unix_micros({instant}) - pmod(unix_micros({instant}), {length_us}))"


def later(instant: str, length_us: int) -> str:
    """An instant moved, in SQL."""
    return f"timestamp_micros(unix_micros({instant}) + {length_us})"


def to_us(instant: datetime) -> int:
    """Microseconds since 1970."""
    return (instant - _EPOCH) // timedelta(microseconds=1)


def to_instant(micros: int) -> datetime:
    """The instant so many microseconds after 1970."""
    return _EPOCH + timedelta(microseconds=micros)
