"""Intervals of time, counted from 1970 by the exchange's clock in milliseconds.

Invariant: a timestamp in the bucket at hand is told so by comparing text; the calendar is consulted only when a bucket ends.
"""

from __future__ import annotations

import math

from ..messages import parse_timestamp_us, to_timestamp

__all__ = ["CLOCK", "Bucket", "is_not_before"]

CLOCK = 23
"""Characters of a timestamp up to its milliseconds: they order as time does, in years of four digits."""


class Bucket:
    """The bucket that the last `move` led to; none at first, which is before all others."""

    __slots__ = ("_end", "_index", "_interval", "_last", "_start")

    def __init__(self, interval_ms: float) -> None:
        self._interval = interval_ms
        self._index: float = -math.inf
        # The bucket's bounds as text; such that no text is between them where text does not order as time does.
        self._start = "~"
        self._end = ""
        # The last time that was worked out, and its index: where one bucket ended, the next one mostly begins.
        self._last: tuple[float, str | None] = (math.nan, None)

    def holds(self, timestamp: str | None) -> bool:
        """Whether a time certainly is in this bucket; False also where it takes `move` to tell."""
        return timestamp is not None and self._start <= timestamp[:CLOCK] < self._end

    @property
    def bounds(self) -> tuple[str, str]:
        """What `holds` compares the beginning of a time with: where the bucket begins, and where it has ended."""
        return self._start, self._end

    def ended_by(self, timestamp: str | None) -> str | None:
        """When this bucket ended, if a time is in a later one; None if it is not."""
        return None if self.holds(timestamp) else self._ended_before(_index(timestamp, self._interval))

    def move(self, timestamp: str | None) -> str | None:
        """Goes to the bucket of a time; answers as `ended_by` of the bucket it left."""
        index = _index(timestamp, self._interval)
        ended = self._ended_before(index)
        self._index = index
        self._start, self._end = "~", ""
        if self._interval > 0 and isinstance(index, int):
            start, end = self._time_at(index), self._time_at(index + 1)
            if start is not None and end is not None and start[0].isdigit() and end[0].isdigit():
                self._start, self._end = start[:CLOCK], end[:CLOCK]
        return ended

    def _ended_before(self, index: float) -> str | None:
        return self._time_at(self._index + 1) if index > self._index > -math.inf else None

    def _time_at(self, index: float) -> str | None:
        if index != self._last[0]:
            instant_ms = index * self._interval
            time = to_timestamp(int(instant_ms) * 1000, milliseconds=True) if abs(instant_ms) <= 8.64e15 else None
            self._last = index, time
        return self._last[1]


def _index(timestamp: str | None, interval_ms: float) -> float:
    """Which bucket a time is in. An interval of 0 has one that never ends; what is no date is in none."""
    try:
        index = parse_timestamp_us(timestamp) // 1000 / interval_ms if timestamp is not None else math.nan
    except ZeroDivisionError:
        return math.inf
    except ValueError:
        return math.nan
    return math.floor(index) if math.isfinite(index) else index


def is_not_before(timestamp: str, other: str) -> bool:
    """Whether a time is not before another, to the millisecond."""
    if timestamp[0].isdigit() and other[0].isdigit():
        return timestamp[:CLOCK] >= other[:CLOCK]
    return parse_timestamp_us(timestamp) // 1000 >= parse_timestamp_us(other) // 1000
