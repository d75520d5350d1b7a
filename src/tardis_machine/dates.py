"""Dates as text, read as instants: those that users type, and those of exchanges in forms that are not usual.

Invariant: what is read is what JavaScript's `Date` would read of it, but that a time without a zone is UTC.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date

__all__ = ["parse_date_us", "parse_instant_us"]

_LAST_US = 8_640_000_000_000_000_000  # as far from 1970 as a JavaScript date goes, both ways, to the last of that millisecond
_DAY_1970 = date(1970, 1, 1).toordinal()
_DAYS_IN_CYCLE = 146_097  # 400 Gregorian years always have as many days

_DATE = re.compile(
    r"(?P<year>\d{4}|[+-]\d{6})(?:[-/](?P<month>\d\d?)(?:[-/](?P<day>\d\d?))?)?"
    r"(?:[Tt ](?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d+))?)?)?"
    r" ?(?:[Zz]|UTC|GMT|(?P<sign>[+-])(?P<zone_hours>\d\d):?(?P<zone_minutes>\d\d))?",
    re.ASCII,
)


def parse_instant_us(text: str, *, strict: bool = False) -> int | None:
    """Microseconds since 1970; without a zone the time is UTC. June 31 is July 1, unless `strict`."""
    match = _DATE.fullmatch(text)
    if match is None or match["year"] == "-000000":
        return None
    year, month, day = int(match["year"]), int(match["month"] or 1), int(match["day"] or 1)
    hour, minute, second = int(match["hour"] or 0), int(match["minute"] or 0), int(match["second"] or 0)
    fraction_us = int((match["fraction"] or "").ljust(6, "0")[:6])
    zone_hours, zone_minutes = int(match["zone_hours"] or 0), int(match["zone_minutes"] or 0)
    if not (1 <= month <= 12 and 1 <= day <= 31 and minute < 60 and second < 60 and zone_hours < 24 and zone_minutes < 60):
        return None
    if hour > 24 or (hour == 24 and (minute or second or fraction_us)):
        return None
    cycles, year_of_cycle = divmod(year, 400)
    if strict and day > monthrange(2000 + year_of_cycle, month)[1]:
        return None
    days = date(2000 + year_of_cycle, month, 1).toordinal() - _DAY_1970 + (cycles - 5) * _DAYS_IN_CYCLE + day - 1
    zone_minutes = (zone_hours * 60 + zone_minutes) * (-1 if match["sign"] == "-" else 1)
    instant_us = (((days * 24 + hour) * 60 + minute - zone_minutes) * 60 + second) * 1_000_000 + fraction_us
    return instant_us if -_LAST_US <= instant_us < _LAST_US + 1000 else None


def parse_date_us(text: str) -> int:
    """Microseconds since 1970 of a date that a user wrote; without a zone it is UTC.

    >>> parse_date_us("2019-06-01T00:00:01.5+02:00") == parse_date_us("2019-05-31 22:00:01.5")
    True
    """
    instant_us = parse_instant_us(text, strict=True)
    if instant_us is None:
        raise ValueError(f"'{text}' is no date; a date is written like 2019-06-01 or 2019-06-01T12:30:15Z")
    return instant_us
