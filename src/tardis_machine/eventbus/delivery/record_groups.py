"""Records that came together, and ranges of them.

Invariant: nothing is done for each record where a whole group will do: records that came together stay in one list, and a batch is
cut from it by slicing. Ordinals count records in the order that a bus must keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..contract import Record, Records
from ..spool_span import SpoolSpan
from .memory import memory_of

__all__ = ["Arrival", "RecordGroup", "RecordRange", "single", "singles", "whole"]


class Arrival:
    """What is known of records that came together, until the last of them is resolved."""

    __slots__ = ("accepted_at", "after_segment", "ends_session", "first", "span", "unresolved")

    def __init__(self, count: int, accepted_at: float, ends_session: str | None = None) -> None:
        # Ordinal of the first record; `ArrivalOrder` gives it.
        self.first = 0
        # How many records are neither confirmed nor dead letters yet.
        self.unresolved = count
        self.accepted_at = accepted_at
        # Where the spool has these records, if it has.
        self.span: SpoolSpan | None = None
        # The spool's last segment when they came, where they are in memory only.
        self.after_segment = 0
        # The session whose `session_end` this is.
        self.ends_session = ends_session


class RecordGroup:
    """Records that came together, or one of them by itself."""

    __slots__ = ("arrival", "cases", "first", "queued_at", "records", "size_bytes")

    def __init__(
        self,
        records: Iterable[Record],
        size_bytes: int,
        arrival: Arrival,
        queued_at: float,
        cases: Mapping[str, int] | None = None,
        first: int = 0,
    ) -> None:
        self.records = Records.of(records)
        # The size as limits count it.
        self.size_bytes = size_bytes
        self.arrival = arrival
        # Since when a batch could take it.
        self.queued_at = queued_at
        # How many records there are of each payload case, where that is known.
        self.cases = cases
        # Ordinal of the first record.
        self.first = first

    def __len__(self) -> int:
        return len(self.records)

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory."""
        return memory_of(len(self.records), self.size_bytes)


class RecordRange(NamedTuple):
    """Neighbouring records of a group."""

    group: RecordGroup
    start: int
    stop: int

    @property
    def first(self) -> int:
        """Ordinal of the first record."""
        return self.group.first + self.start

    @property
    def length(self) -> int:
        """How many records there are."""
        return self.stop - self.start

    @property
    def records(self) -> Records:
        """The records themselves."""
        group, start, stop = self
        return group.records if stop - start == len(group.records) else group.records[start:stop]

    @property
    def size_bytes(self) -> int:
        """The size as limits count it."""
        group, start, stop = self
        if stop - start == len(group.records):
            return group.size_bytes
        return sum(group.records[start:stop].sizes)

    @property
    def cases(self) -> Mapping[str, int]:
        """How many records there are of each payload case."""
        group, start, stop = self
        if group.cases is not None and stop - start == len(group.records):
            return group.cases
        if stop - start == 1:
            return {group.records.routes[start].payload_case: 1}
        return Counter([route.payload_case for route in group.records.routes[start:stop]])


def whole(group: RecordGroup) -> RecordRange:
    """All records of a group."""
    return RecordRange(group, 0, len(group))


def single(group: RecordGroup, index: int) -> RecordGroup:
    """One record by itself, so that it does not keep its neighbours in memory."""
    route, event = group.records.routes[index], group.records.events[index]
    size_bytes = len(event.value) + route.overhead_bytes
    return RecordGroup(Records([route], [event]), size_bytes, group.arrival, group.queued_at, first=group.first + index)


def singles(ranges: Iterable[RecordRange]) -> Iterator[RecordGroup]:
    """Every record by itself."""
    for group, start, stop in ranges:
        if len(group) == 1:
            yield group
        else:
            for index in range(start, stop):
                yield single(group, index)
