"""Records that are ready to be sent, in order.

Invariant: what is cut from the front is gone from the queue; `count` and `size_bytes` are always those of what is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import accumulate

from .record_groups import RecordGroup, RecordRange, whole

__all__ = ["SendQueue"]


class SendQueue:
    """Ranges of records from the oldest to the newest."""

    def __init__(self) -> None:
        self._ranges: deque[RecordRange] = deque()
        # How many records wait.
        self.count = 0
        # Their size as limits count it.
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> Iterator[RecordRange]:
        return iter(self._ranges)

    @property
    def queued_at(self) -> float:
        """Since when the first record waits."""
        return self._ranges[0].group.queued_at

    def push(self, group: RecordGroup) -> None:
        """Puts a group behind everything."""
        self._ranges.append(whole(group))
        self.count += len(group)
        self.size_bytes += group.size_bytes

    def push_front(self, ranges: Iterable[RecordRange]) -> None:
        """Puts ranges in front of everything, in their order."""
        for range_ in reversed(list(ranges)):
            self._ranges.appendleft(range_)
            self.count += range_.length
            self.size_bytes += range_.size_bytes

    def cut(self, max_records: int, max_bytes: int, at_least: int = 1) -> tuple[list[RecordRange], int]:
        """The first records within the limits, and their bytes; `at_least` so many go even if they are larger."""
        taken: list[RecordRange] = []
        count, size_bytes = 0, 0
        while self._ranges and count < max_records:
            group, start, stop = self._ranges[0]
            part = RecordRange(group, start, min(stop, start + max_records - count))
            part_bytes = part.size_bytes
            if size_bytes + part_bytes > max_bytes:
                part, part_bytes = _within(part, max_bytes - size_bytes, at_least=0 if taken else at_least)
                if part.start == part.stop:
                    break
            taken.append(part)
            count += part.stop - part.start
            size_bytes += part_bytes
            if part.stop == stop:
                self._ranges.popleft()
            else:
                self._ranges[0] = RecordRange(group, part.stop, stop)
        self.count -= count
        self.size_bytes -= size_bytes
        return taken, size_bytes


def _within(range_: RecordRange, max_bytes: int, at_least: int) -> tuple[RecordRange, int]:
    """As much of the beginning as fits, and its bytes."""
    group, start, stop = range_
    end, size_bytes = start, 0
    for position, total in enumerate(accumulate(group.records[start:stop].sizes), 1):
        if total > max_bytes and position > at_least:
            break
        end, size_bytes = start + position, total
    return RecordRange(group, start, end), size_bytes
