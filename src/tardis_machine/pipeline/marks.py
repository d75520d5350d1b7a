"""Marks: which of the finished bytes are of which instant, so that answers which several processes make are merged as bytes.

Invariant: the marks of some bytes follow one another without a gap, and hold all of them. A mark without bytes says that nothing
comes any more from before its instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from ..messages import parse_timestamp_us

__all__ = ["MARK", "MarkedSource", "Merged", "instant_us", "merge_marked"]

MARK = Struct("=qII")
"""An instant in microseconds, how many bytes it has, and how many messages these are."""

Merged = tuple[bytes, bytes, int, int]
"""Bytes in order, their marks, how many messages they are, and the instant of the last of these; 0 where there is none."""


def instant_us(clock: str) -> int:
    """When that is; 0 where it is no time, as a recording may hold anything."""
    try:
        return parse_timestamp_us(clock)
    except ValueError:
        return 0


class MarkedSource:
    """What one of those that are merged has given and has not left yet."""

    __slots__ = ("data", "is_open", "marks", "reached_us", "read_bytes", "read_marks")

    def __init__(self) -> None:
        self.data: bytes | memoryview = b""
        self.marks: bytes | memoryview = b""
        self.read_bytes = 0
        """Of the data, what has left."""
        self.read_marks = 0
        """Likewise of the marks, in bytes."""
        self.reached_us = 0
        """The latest instant that has left."""
        self.is_open = True
        """Whether more may come."""

    @property
    def is_empty(self) -> bool:
        """Whether all that was given has left."""
        return self.read_marks >= len(self.marks)

    def give(self, data: bytes | memoryview, marks: bytes | memoryview) -> None:
        """More, once all has left that was given."""
        self.data, self.marks, self.read_bytes, self.read_marks = data, marks, 0, 0


def merge_marked(sources: Sequence[MarkedSource]) -> Merged:
    """Takes what can leave in order, until an open source is empty; of one instant, what earlier sources have comes first.

    An instant that goes back counts as the latest before it: order within a source is kept.
    """
    parts: list[bytes | memoryview] = []
    marks: list[bytes | memoryview] = []
    messages = last_us = 0
    while not any(source.is_open and source.is_empty for source in sources):
        waiting = [
            (max(MARK.unpack_from(source.marks, source.read_marks)[0], source.reached_us), place)
            for place, source in enumerate(sources)
            if not source.is_empty
        ]
        if not waiting:
            break
        reached_us, place = min(waiting)
        source = sources[place]
        instant, size, count = MARK.unpack_from(source.marks, source.read_marks)
        messages += count
        last_us = instant if count else last_us
        parts.append(source.data[source.read_bytes : source.read_bytes + size])
        marks.append(source.marks[source.read_marks : source.read_marks + MARK.size])
        source.read_bytes += size
        source.read_marks += MARK.size
        source.reached_us = reached_us
    return b"".join(parts), b"".join(marks), messages, last_us


# Where it was compiled, it is done there.
with suppress(ImportError):
    from .marks_compiled import *  # noqa: F403
