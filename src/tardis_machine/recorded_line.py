"""A line as the history API records it: when the message arrived, a space, and the message as the exchange sent it.

    2019-06-01T00:00:28.6190000Z {"table":"trade","action":"insert","data":[…]}

An empty line says that the connection was lost. The time has seven digits of a second. Messages show six, as `2019-06-01T00:00:28.619000Z`,
which is called the clock; lines are put in order by the same digits, which are called the key.

Invariant: only here is it known where the parts of a line begin and end. Lines are plain bytes, as there are millions of them; loops
over many of them slice with the lengths below, all others call the functions.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .messages import to_timestamp

__all__ = [
    "KEY_LENGTH",
    "MESSAGE_START",
    "MINUTE_LENGTH",
    "TIME_LENGTH",
    "begins_with_time",
    "clock_of",
    "message_of",
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
