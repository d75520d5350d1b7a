"""Where the records of one bus are, in numbers.

Invariant: every record is counted in exactly one place. Each method either counts a new record into a place or moves one from place
to place, so that the books balance after every call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..contract import Record
from .record_groups import RecordRange

__all__ = ["Accounts", "Books", "DropReport"]


class Books(msgspec.Struct, frozen=True):
    """Where all records are: `accepted + carried` is the sum of the rest."""

    accepted: int
    carried: int
    """Found in the spool at start."""
    queued: int
    in_flight: int
    spooled: int
    """On disk only; those that are also in memory count there."""
    confirmed: int
    dead_lettered: int
    dropped: int


class DropReport(msgspec.Struct):
    """What was dropped since the last report."""

    count: int
    first_at: float


class Accounts:
    """Counts the records of one bus."""

    def __init__(self) -> None:
        # Ever accepted.
        self._accepted = 0
        # Found in the spool at start.
        self._carried = 0
        # In memory, and not in flight.
        self._queued = 0
        # In memory, and being sent.
        self._in_flight = 0
        # On disk only.
        self._spooled = 0
        # The three ends of a record.
        self._confirmed = 0
        self._dead_lettered = 0
        self._dropped = 0
        # How often a record was to be sent again.
        self.retried = 0
        # The same by payload case, for metrics; `spooled` counts each record that was ever written to the spool.
        self.by_case: dict[str, Counter[str]] = {
            name: Counter() for name in ("published", "confirmed", "retried", "dropped", "dead_lettered", "spooled")
        }
        # What was dropped and is not reported yet.
        self._drops: DropReport | None = None

    @property
    def books(self) -> Books:
        """All places as they are now."""
        return Books(
            accepted=self._accepted,
            carried=self._carried,
            queued=self._queued,
            in_flight=self._in_flight,
            spooled=self._spooled,
            confirmed=self._confirmed,
            dead_lettered=self._dead_lettered,
            dropped=self._dropped,
        )

    @property
    def in_memory(self) -> int:
        """How many records are queued or in flight."""
        return self._queued + self._in_flight

    @property
    def has_drops(self) -> bool:
        """Whether something was dropped since the last report."""
        return self._drops is not None

    def take_drops(self) -> DropReport | None:
        """What was dropped since the last call."""
        report, self._drops = self._drops, None
        return report

    def carry(self, count: int) -> None:
        """An earlier run left so many in the spool."""
        self._carried += count
        self._spooled += count

    def accept(self, count: int, cases: Mapping[str, int]) -> None:
        """New records are in memory."""
        self._accepted += count
        self._queued += count
        self._add("published", cases)

    def drop(self, records: Sequence[Record], now: float) -> None:
        """New records are dropped."""
        cases = Counter([record.route.payload_case for record in records])
        self._accepted += len(records)
        self._dropped += len(records)
        self._add("published", cases)
        self._add("dropped", cases)
        if self._drops is None:
            self._drops = DropReport(0, now)
        self._drops.count += len(records)

    def send(self, count: int) -> None:
        """Queued ones are in flight."""
        self._queued -= count
        self._in_flight += count

    def land(self, count: int) -> None:
        """Those in flight are queued again, until it is known what became of each."""
        self._in_flight -= count
        self._queued += count

    def confirm(self, ranges: Iterable[RecordRange], count: int) -> None:
        """The bus confirmed queued ones, so many in all."""
        self._queued -= count
        self._confirmed += count
        counter = self.by_case["confirmed"]
        for range_ in ranges:
            for case, in_range in range_.cases.items():
                counter[case] += in_range

    def retry(self, ranges: Iterable[RecordRange]) -> None:
        """Queued ones stay where they are, to be sent again."""
        for range_ in ranges:
            self.retried += range_.length
            self._add("retried", range_.cases)

    def dead_letter(self, record: Record) -> None:
        """A queued one is a dead letter."""
        self._queued -= 1
        self._dead_lettered += 1
        self.by_case["dead_lettered"][record.route.payload_case] += 1

    def write(self, range_: RecordRange) -> None:
        """Queued ones were written to the spool, and are still in memory."""
        self._add("spooled", range_.cases)

    def leave_memory(self, count: int) -> None:
        """Queued ones are on disk only."""
        self._queued -= count
        self._spooled += count

    def load(self, count: int) -> None:
        """Ones that were on disk only are queued."""
        self._spooled -= count
        self._queued += count

    def lose(self, count: int) -> None:
        """Ones that were on disk only turned out to be damaged, and count as dropped."""
        self._spooled -= count
        self._dropped += count

    def end(self, in_spool: int) -> None:
        """Nothing is in flight any more, and of all in memory so many are in the spool."""
        self.land(self._in_flight)
        self.leave_memory(in_spool)

    def _add(self, what: str, cases: Mapping[str, int]) -> None:
        counter = self.by_case[what]
        for case, count in cases.items():
            counter[case] += count
