"""Which dated contracts the sample market lists: they expire on the last Friday of a quarter, 08:00 UTC.

Invariant: in any minute the contracts listed are those of the next two quarters that end at least a month later.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from ...messages import to_timestamp

__all__ = ["STRIKES", "compact_date", "quarter_ends", "spelled_date"]

STRIKES = {"BTC": (24_000, 27_000, 30_000, 33_000, 36_000)}
"""Of options, around what the market's prices walk about."""

_DAY_MINUTES = 1_440
_LEAD_DAYS = 30
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


def quarter_ends(minute_index: int) -> tuple[int, int]:
    """Expiries (us since 1970) of the near and the far contract listed in a minute since 1970."""
    return _quarter_ends(minute_index // _DAY_MINUTES)


@lru_cache(maxsize=64)
def _quarter_ends(day: int) -> tuple[int, int]:
    today = date(1970, 1, 1) + timedelta(days=day)
    ends = (_last_friday(year, month) for year in (today.year, today.year + 1) for month in (3, 6, 9, 12))
    near, far, *_ = (end for end in ends if end - today >= timedelta(days=_LEAD_DAYS))
    return _expiry_us(near), _expiry_us(far)


def _last_friday(year: int, month: int) -> date:
    last = date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
    return last - timedelta(days=(last.weekday() - 4) % 7)


def _expiry_us(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, 8, tzinfo=UTC).timestamp()) * 1_000_000


def compact_date(instant_us: int) -> str:
    """As symbols of dated contracts write it: 240329."""
    return to_timestamp(instant_us)[2:10].replace("-", "")


def spelled_date(instant_us: int) -> str:
    """As Deribit writes it: 29MAR24."""
    moment = datetime.fromtimestamp(instant_us // 1_000_000, UTC)
    return f"{moment.day}{_MONTHS[moment.month - 1]}{moment.year % 100:02d}"
