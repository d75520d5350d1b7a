"""How long to wait before the next attempt to connect.

Invariant: waits grow with failures in a row, are never the same for two clients that failed together, and have an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from random import random as dice

import msgspec

__all__ = ["Backoff", "Timings"]


class Timings(msgspec.Struct, frozen=True):
    """The times that live streams and their connections keep to, in seconds."""

    first_s: float = 1.0
    most_s: float = 32.0
    limited_s: float = 16.0
    """The first wait where the exchange said that it was asked too often."""
    most_limited_s: float = 120.0
    banned_s: float = 120.0
    """The least wait after a 418, which an address gets that goes on asking too often, where no time is named."""
    connect_timeout_s: float = 10.0
    close_timeout_s: float = 1.0
    refetch_s: float = 1.0
    """Before what was fetched and did not fit, or could not be fetched, is fetched again."""
    summary_s: float = 60.0
    """How often errors that go on are told of."""
    linger_s: float = 3.0
    """How long a stream goes on that nobody listens to."""
    daily_s: float = 5.0
    """Within which connections that are recorded are made anew after midnight."""


class Backoff:
    """Counts failures in a row."""

    def __init__(self, timings: Timings, random: Callable[[], float] = dice) -> None:
        self._timings = timings
        self._random = random
        self._failures = 0

    def reset(self) -> None:
        """It works again."""
        self._failures = 0

    def next_s(self, *, limited: bool = False, at_least_s: float = 0.0) -> float:
        """The wait after another failure; longer where the exchange was asked too often, or names a time itself."""
        self._failures += 1
        timings = self._timings
        if limited:
            wait_s = min(timings.limited_s * self._failures, timings.most_limited_s)
        else:
            # The exponent has a bound too: an outage may last for days.
            wait_s = min(timings.first_s * 2 ** min(self._failures - 1, 30), timings.most_s)
        return max(wait_s * (0.5 + self._random() / 2), at_least_s)
