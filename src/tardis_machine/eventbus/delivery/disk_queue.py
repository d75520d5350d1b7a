"""Records that are in the spool, or wait to be written there.

What comes behind something on disk waits in the tail until it is written too, so that it is not overtaken. Where the disk is read
empty before that, the tail need not be written at all.

Invariant: everything in the tail came after everything on disk. One write and one read at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ..policy import Policy
from ..spool_span import SpoolSpan
from .disk_work import Spill
from .memory import MemoryBudget
from .record_groups import Arrival, RecordGroup
from .retry_pause import RetryPause

__all__ = ["DiskQueue"]

_LOAD_BYTES = 4 * 1024**2


class DiskQueue:
    """The disk of one bus as its delivery knows it."""

    def __init__(self, policy: Policy, random: Callable[[], float]) -> None:
        self._policy = policy
        # Accepted behind what is on disk.
        self._tail: deque[RecordGroup] = deque()
        # What the tail takes.
        self._memory = MemoryBudget(policy.tail_memory_bytes)
        # Records on disk that are not in memory.
        self._unread = 0
        # The spool's last segment.
        self._last_segment = 0
        # Records passed the disk by since the last write, and are in memory only.
        self._was_passed_by = False
        self._is_writing = False
        self._is_reading = False
        # Failures of each.
        self._write_pause = RetryPause(policy, random)
        self._read_pause = RetryPause(policy, random)

    @property
    def tail(self) -> Iterable[RecordGroup]:
        """What waits to be written, oldest first."""
        return self._tail

    @property
    def unread(self) -> int:
        """How many records are on disk and not in memory."""
        return self._unread

    @property
    def last_segment(self) -> int:
        """The spool's last segment."""
        return self._last_segment

    @property
    def tail_memory_bytes(self) -> int:
        """What the tail takes in memory."""
        return self._memory.used_bytes

    @property
    def oldest_at(self) -> float | None:
        """When the oldest record of the tail was accepted."""
        return self._tail[0].arrival.accepted_at if self._tail else None

    @property
    def may_be_passed_by(self) -> bool:
        """Whether what comes now is behind nothing on disk, and need not go there."""
        return not (self._policy.write_ahead or self._unread or self._tail)

    @property
    def is_overflow(self) -> bool:
        """Whether what comes now is behind something on disk, though it was not asked to be."""
        return bool(self._unread or (self._tail and not self._policy.write_ahead))

    def carry(self, count: int, last_segment: int) -> None:
        """An earlier run left so many records in the spool."""
        self._unread = count
        self._last_segment = last_segment

    def pass_by(self, arrival: Arrival) -> None:
        """These records are in memory only, behind the last segment."""
        arrival.after_segment = self._last_segment
        self._was_passed_by = True

    def fits(self, memory_bytes: int, sending: MemoryBudget) -> bool:
        """Whether the tail takes so much more. `sending` is the budget of what is to be sent."""
        if self._policy.spills:
            return self._memory.fits(memory_bytes)
        if self.may_be_passed_by:
            return False
        # Nothing is written, so the tail only waits for the spool of an earlier run, and shares the budget.
        held = sending.used_bytes + self._memory.used_bytes
        return held == 0 or held + memory_bytes <= sending.limit_bytes

    def push(self, group: RecordGroup) -> None:
        """Puts a group at the end of the tail."""
        self._tail.append(group)
        self._memory.take(group.memory_bytes)

    def take_passing(self, sending: MemoryBudget) -> Iterator[RecordGroup]:
        """Groups of the tail that are behind nothing on disk any more, and need not go there, as long as they fit."""
        while self._tail and not (self._policy.write_ahead or self._is_writing or self._unread):
            if not sending.fits(self._tail[0].memory_bytes):
                return
            group = self._pop()
            self.pass_by(group.arrival)
            yield group

    def _pop(self) -> RecordGroup:
        group = self._tail.popleft()
        self._memory.give_back(group.memory_bytes)
        return group

    def start_write(self, now: float) -> Spill | None:
        """What is to be written now; `note_written` or `note_write_failure` must follow."""
        if self._is_writing or not self._tail or not self._policy.spills or not self._write_pause.allows(now):
            return None
        self._is_writing = True
        return Spill(list(self._tail), self._was_passed_by)

    def note_written(self) -> None:
        """All of the spill is on disk; `place` must follow for each of its groups, in order."""
        self._is_writing = self._was_passed_by = False
        self._write_pause.note_success()

    def place(self, group: RecordGroup, span: SpoolSpan, sending: MemoryBudget) -> bool:
        """Takes the first group of the tail, which is on disk at `span` now. Whether it may stay in memory too."""
        popped = self._pop()
        assert popped is group
        group.arrival.span = span
        self._last_segment = span.segment
        if self._unread == 0 and sending.fits(group.memory_bytes):
            return True
        self._unread += len(group)
        return False

    def note_write_failure(self, now: float) -> None:
        """The tail stays as it is."""
        self._is_writing = False
        self._write_pause.note_failure(now)

    def note_room(self) -> None:
        """The spool has room again: what could not be written may be tried at once."""
        self._write_pause.end()

    def start_read(self, now: float, sending: MemoryBudget) -> int:
        """How many bytes are to be read back now; `note_read` or `note_read_failure` must follow where there are any."""
        room = sending.limit_bytes - sending.used_bytes
        if self._is_reading or not self._unread or not self._read_pause.allows(now) or room < sending.limit_bytes // 4:
            return 0
        self._is_reading = True
        return min(room // 2, _LOAD_BYTES)

    def note_read(self, count: int) -> None:
        """So many records are no longer unread: in memory, or lost to damage."""
        self._is_reading = False
        self._read_pause.note_success()
        self._unread -= count

    def note_read_failure(self, now: float) -> None:
        """They are still unread."""
        self._is_reading = False
        self._read_pause.note_failure(now)

    def retry_times(self) -> Iterator[float]:
        """When writing and reading may be tried again, where something waits for that."""
        if self._tail:
            yield self._write_pause.until
        if self._unread:
            yield self._read_pause.until
