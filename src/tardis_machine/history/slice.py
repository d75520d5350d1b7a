"""One slice: some whole minutes of one exchange's recorded lines, compressed, on disk or in memory.

Invariant: a slice is picklable and holds nothing secret, so that it can be sent to a worker process and be shown in a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from ..filters import Filter

__all__ = ["MINUTE_US", "Encoding", "Slice", "to_minute_text"]

MINUTE_US = 60_000_000

Encoding = Literal["zst", "gz"]
"""How a slice is compressed; also its file's extension."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Slice:
    """Lines recorded in [start_us, end_us), compressed as upstream sent them: a file at `path`, or `data`, never both."""

    exchange: str
    start_us: int
    minutes: int
    path: str | None
    data: bytes | None = field(repr=False)
    encoding: Encoding
    filters: tuple[Filter, ...] = field(default=(), repr=False)
    """What was asked for, so that it can be asked for again."""
    partial: bool = False
    """The bytes cover more minutes than this slice does: the reader cuts."""

    @property
    def end_us(self) -> int:
        """Just past the last instant covered."""
        return self.start_us + self.minutes * MINUTE_US

    @property
    def name(self) -> str:
        """Names the slice in errors and logs: exchange, first minute, and how many when more than one."""
        return to_slice_name(self.exchange, self.start_us, self.minutes)


def to_slice_name(exchange: str, start_us: int, minutes: int) -> str:
    """`bitmex 2019-06-01T00:03Z` or `bitmex 2019-06-01T00:03Z+5min`."""
    return f"{exchange} {to_minute_text(start_us)}" + (f"+{minutes}min" if minutes > 1 else "")


def to_datetime(time_us: int) -> datetime:
    """Exact, where dividing to float seconds would round."""
    return _EPOCH + timedelta(microseconds=time_us)


def to_minute_text(time_us: int) -> str:
    """The minute as people write it: `2019-06-01T00:03Z`."""
    return f"{to_datetime(time_us):%Y-%m-%dT%H:%MZ}"
