"""What a delivery has its courier do with the disk, and what the courier brings back.

Invariant: plain data; doing the work changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..contract import Record
from ..spool_span import SpoolSpan
from .record_groups import RecordGroup, RecordRange

__all__ = ["Leftover", "Loaded", "Spill", "Undeliverable", "to_leftovers"]


class Spill(msgspec.Struct):
    """Groups to be written to the spool together."""

    groups: list[RecordGroup]
    in_new_segment: bool
    """True where records that are in memory only came since the last write: a shutdown must find a place for them between the two."""


class Loaded(msgspec.Struct):
    """Records that were read back from the spool."""

    records: Sequence[Record]
    size_bytes: int
    span: SpoolSpan
    accepted_at: float


class Undeliverable(msgspec.Struct):
    """A record for the dead letters."""

    group: RecordGroup
    """The record by itself."""
    reason: str

    @property
    def record(self) -> Record:
        return self.group.records[0]


class Leftover(msgspec.Struct):
    """Records that a shutdown finds in memory only, in order."""

    after_segment: int | None
    """The segment of the spool behind which they belong; None: behind all."""
    records: list[Record]


def to_leftovers(ranges: Iterable[RecordRange], tail: Iterable[RecordGroup]) -> list[Leftover]:
    """What of these is in memory only: ranges in any order, then the tail, which is behind all."""
    leftovers: list[Leftover] = []

    def add(after_segment: int | None, records: Sequence[Record]) -> None:
        if not leftovers or leftovers[-1].after_segment != after_segment:
            leftovers.append(Leftover(after_segment, []))
        leftovers[-1].records.extend(records)

    for range_ in sorted(ranges, key=lambda range_: range_.first):
        arrival = range_.group.arrival
        if arrival.span is None:
            add(arrival.after_segment, range_.records)
    for group in tail:
        add(None, group.records)
    return leftovers
