"""Batches that are being sent, and records of those that failed as a whole.

Invariant: records that came back are given out when nothing is in flight any more, in the order of their ordinals: of two sends at
once the later one may have failed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..contract import Records
from .lanes import Lane
from .record_groups import RecordRange

__all__ = ["Batch", "InFlight"]


class Batch:
    """What one `send` is given, and where each record of it came from."""

    __slots__ = ("lanes", "number", "ranges", "records", "size_bytes")

    def __init__(self, number: int, ranges: Sequence[RecordRange], size_bytes: int, lanes: Sequence[Lane]) -> None:
        self.number = number
        self.ranges = ranges
        self.records = Records.joined([range_.records for range_ in ranges])
        # The size as limits count it.
        self.size_bytes = size_bytes
        # Lanes that are kept out of other batches until this one is settled.
        self.lanes = lanes

    def __len__(self) -> int:
        return len(self.records)


class InFlight:
    """The batches of one bus that have no answer yet."""

    def __init__(self) -> None:
        # The number of the next batch.
        self._next_number = 0
        # Batches that are being sent, by number.
        self._batches: dict[int, Batch] = {}
        # Came back from a send that failed as a whole, while others are still running.
        self._returned: list[RecordRange] = []

    def __len__(self) -> int:
        """How many sends are running."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches.values())

    @property
    def returned(self) -> Iterable[RecordRange]:
        """What came back and was not given out yet."""
        return self._returned

    def start(self, ranges: Sequence[RecordRange], size_bytes: int, lanes: Sequence[Lane]) -> Batch:
        """A batch of these records, on its way."""
        batch = Batch(self._next_number, ranges, size_bytes, lanes)
        self._next_number += 1
        self._batches[batch.number] = batch
        return batch

    def land(self, batch: Batch) -> None:
        """It was answered."""
        del self._batches[batch.number]

    def put_back(self, batch: Batch) -> None:
        """Its records are to be sent again."""
        self._returned.extend(batch.ranges)

    def take_returned(self) -> list[RecordRange]:
        """What came back, in order, once no send is running."""
        if self._batches or not self._returned:
            return []
        returned, self._returned = sorted(self._returned, key=lambda range_: range_.first), []
        return returned
