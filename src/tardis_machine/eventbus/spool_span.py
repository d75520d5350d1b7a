"""Where events are in the spool: a stretch of one segment, whose events are resolved together.

Invariant: the spans of a segment touch each other and do not overlap.
"""

from __future__ import annotations

import msgspec

__all__ = ["SpoolSpan"]


class SpoolSpan(msgspec.Struct, frozen=True, gc=False):
    """The bytes from `start` to `stop` of a segment."""

    segment: int
    start: int
    stop: int
    count: int
    """How many events they hold."""
