"""A stretch of a spool's segment, whose events are resolved together.

Invariant: the marks of a segment touch each other and do not overlap.
"""

from __future__ import annotations

import msgspec

__all__ = ["Mark"]


class Mark(msgspec.Struct, frozen=True, gc=False):
    """Where some events are on disk."""

    segment: int
    start: int
    stop: int
    count: int
