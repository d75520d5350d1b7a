"""A line as the history API records it: when the message arrived, a space, and the message as the exchange sent it.

    2019-06-01T00:00:28.6190000Z {"table":"trade","action":"insert","data":[…]}

An empty line says that the connection was lost. The time has seven digits of a second. Messages show six, as `2019-06-01T00:00:28.619000Z`,
which is called the clock; lines are put in order by the same digits, which are called the key.

Invariant: only here is it known where the parts of a line begin and end. Lines are plain bytes, as there are millions of them; loops
over many of them slice with the lengths below, all others call the functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from .messages import to_timestamp

__all__ = [
    "KEY_LENGTH",
    "MESSAGE_START",
    "MINUTE_LENGTH",
    "TIME_LENGTH",
    "Lines",
    "begins_with_time",
    "clock_of",
    "message_of",
    "split_lines",
    "time_of",
    "to_clock",
    "to_line",
    "to_time",
    "to_time_of_ticks",
]

TIME_LENGTH = 28
MESSAGE_START = 29
KEY_LENGTH = 26
"""Of the time, all digits but the seventh."""
MINUTE_LENGTH = 16
"""Of the time, up to its minute."""

_HEAD = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z ")


def begins_with_time(line: bytes) -> bool:
    """Whether these bytes are a line, or the first of one."""
    return _HEAD.match(line) is not None


def time_of(line: bytes) -> bytes:
    """`2019-06-01T00:00:28.6190000Z`"""
    return line[:TIME_LENGTH]


def clock_of(line: bytes) -> str:
    """`2019-06-01T00:00:28.619000Z`"""
    return line[:KEY_LENGTH].decode() + "Z"


def message_of(line: bytes) -> bytes:
    """What the exchange sent."""
    return line[MESSAGE_START:]


def to_line(time: bytes, message: bytes) -> bytes:
    """The line of a message. A line is a line: JSON has no newline but between its parts."""
    return b"%b %b" % (time, message.replace(b"\n", b" "))


def to_clock(time: str) -> str:
    """The clock of a recorded time; one with fewer digits is a clock already."""
    return time[:KEY_LENGTH] + "Z" if len(time) == TIME_LENGTH else time


def to_time_of_ticks(ticks: int) -> str:
    """The recorded time of an instant in ticks of 100 ns since 1970."""
    return f"{to_timestamp(ticks // 10)[:-1]}{ticks % 10}Z"


@lru_cache(maxsize=64)
def to_time(instant_us: int) -> bytes:
    """The recorded time of an instant in microseconds since 1970."""
    # Every batch of lines is cut at the same two.
    return to_time_of_ticks(instant_us * 10).encode()


def split_lines(data: bytes) -> list[bytes]:
    """Lines without their newline; a last one that lacks it is kept, and so are empty ones."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


class Lines(Sequence[bytes]):
    """Lines that follow one another in one piece of bytes: what parses them all at once need not have an object for each.

    >>> lines = Lines(b"a\\n\\nb\\nc\\n", 2)
    >>> list(lines), [list(part) for part in lines.in_parts(1)]
    ([b'', b'b', b'c'], [[b''], [b'b'], [b'c']])
    """

    __slots__ = ("_cut", "data", "end", "start", "unread")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None, unread: tuple[bytes, ...] = ()) -> None:
        self.data = data
        self.start = start
        """Where the first of them begins."""
        self.end = len(data) if end is None else end
        """Behind the last of them, and its newline where there is one."""
        self.unread = unread
        """How messages begin whose lines lie there and are passed over."""
        self._cut: list[bytes] | None = None

    def cut(self) -> list[bytes]:
        """Each by itself."""
        if self._cut is None:
            self._cut = split_lines(self.data[self.start : self.end])
            if self.unread:
                self._cut = [line for line in self._cut if not line.startswith(self.unread, MESSAGE_START)]
        return self._cut

    def in_parts(self, size_bytes: int) -> Iterator[Lines]:
        """About so many bytes at a time."""
        start = self.start
        while start < self.end:
            end = self.data.find(b"\n", start + size_bytes - 1, self.end) + 1 or self.end
            yield Lines(self.data, start, end, self.unread)
            start = end

    @property
    def last_start(self) -> int:
        """Where the last of them begins."""
        return self.data.rfind(b"\n", self.start, self.end - 1) + 1 or self.start

    @property
    def has_empty(self) -> bool:
        """Whether one of them is empty."""
        return self.data.startswith(b"\n", self.start, self.end) or self.data.find(b"\n\n", self.start, self.end) >= 0

    def are_between(self, low: bytes, high: bytes) -> bool:
        """Whether they are in [low, high), by the first and the last of them; False also where one of these is empty."""
        last = self.last_start
        first_time = self.data[self.start : self.start + TIME_LENGTH]
        last_time = self.data[last : last + TIME_LENGTH]
        return b"\n" not in first_time + last_time and low <= first_time and last_time < high

    def __bool__(self) -> bool:
        return self.start < self.end

    def __len__(self) -> int:
        return len(self.cut())

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.cut())

    def __getitem__(self, place: Any) -> Any:
        return self.cut()[place]

    def __eq__(self, other: object) -> bool:
        return self.cut() == (other.cut() if isinstance(other, Lines) else other)

    __hash__ = None  # type: ignore[assignment]
