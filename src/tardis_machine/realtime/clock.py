"""The recorder's clock: when a message arrived, as the history API writes it.

Invariant: a time has seven digits after the second and is 28 characters long; the first 26 and a Z are what messages show.
"""

from __future__ import annotations

import time

from ..messages import to_timestamp

__all__ = ["recorded_now"]


def recorded_now() -> str:
    """`2026-01-31T10:00:00.1234567Z`"""
    ticks = time.time_ns() // 100
    return f"{to_timestamp(ticks // 10)[:-1]}{ticks % 10}Z"
