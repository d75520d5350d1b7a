"""The recorder's clock: when a message arrived, as the history API writes it.

Invariant: a time is written as recorded lines begin with it.
"""

from __future__ import annotations

import time

from ..recorded_line import to_time_of_ticks

__all__ = ["now_us", "recorded_now"]


def recorded_now() -> str:
    """`2026-01-31T10:00:00.1234567Z`"""
    return to_time_of_ticks(time.time_ns() // 100)


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
