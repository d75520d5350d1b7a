"""Records that may not be sent yet, because an earlier one of their lane failed or is still on its way.

A lane is a destination and a key: its records must arrive in order. Those of it that wait are its backlog.

Invariant: a lane without a failure has no backlog here (unless lanes are locked while in flight), so that records of a healthy bus
cost nothing. The records of a backlog are in the order of their ordinals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from .record_groups import RecordGroup, RecordRange, single, singles

__all__ = ["Lane", "LaneBacklog", "Lanes"]

Lane = tuple[str, str]


class LaneBacklog:
    """The records of one lane that wait, single and in order."""

    __slots__ = ("attempts", "confirmed_before", "front", "in_flight", "is_suspect", "waiting")

    def __init__(self) -> None:
        # A group for each record.
        self.waiting: deque[RecordGroup] = deque()
        # Records of the lane are in a batch that keeps it to itself.
        self.in_flight = False
        # Its first record was alone in a batch that failed as a whole: it goes alone, until it is known whose fault it was.
        self.is_suspect = False
        # The ordinal of the record that failed.
        self.front = -1
        # How often that record failed.
        self.attempts = 0
        # How many records the bus had confirmed before it first failed.
        self.confirmed_before = 0

    def put_back(self, groups: Sequence[RecordGroup]) -> None:
        """Puts records in front, where they were taken from."""
        if self.waiting and groups[-1].first > self.waiting[0].first:
            # Of two sends at once the later one failed first.
            self.waiting = deque(sorted((*groups, *self.waiting), key=lambda group: group.first))
        else:
            self.waiting.extendleft(reversed(groups))


class Lanes:
    """The backlogs of one bus.

    With `locks`, every lane in flight is kept to one batch; with `one_record_per_batch`, to one record in it.
    """

    def __init__(self, *, locks: bool, one_record_per_batch: bool) -> None:
        # Whether every lane in flight is kept to one batch.
        self.locks = locks
        self._one_record_per_batch = one_record_per_batch
        self._backlogs: dict[Lane, LaneBacklog] = {}
        # Lanes whose backlog may be sent now; may name one that is no more.
        self._due: deque[Lane] = deque()
        # A heap of the lanes that pause: when the pause ends, the ordinal that failed, the lane; may name one that is no more.
        self._pauses: list[tuple[float, int, Lane]] = []

    def __bool__(self) -> bool:
        return bool(self._backlogs)

    def __iter__(self) -> Iterator[RecordGroup]:
        """All records that wait, each a group."""
        for backlog in self._backlogs.values():
            yield from backlog.waiting

    @property
    def due_count(self) -> int:
        """How many backlogs may be sent, at most."""
        return len(self._due)

    @property
    def next_pause_at(self) -> float | None:
        """When the next pause ends."""
        return self._pauses[0][0] if self._pauses else None

    def end_pauses(self, now: float) -> None:
        """Makes the backlogs due whose pause is over."""
        while self._pauses and self._pauses[0][0] <= now:
            self._due.append(heappop(self._pauses)[2])

    def is_suspect(self, lane: Lane) -> bool:
        """Whether the lane is set aside already."""
        backlog = self._backlogs.get(lane)
        return backlog is not None and backlog.is_suspect

    def take_due(
        self, max_records: int, max_bytes: int, lanes: dict[Lane, bool], *, spare_suspects: bool
    ) -> tuple[list[RecordRange], int, bool]:
        """Records of the backlogs that are due, their bytes, and whether nothing else may join them.

        `lanes` gets the lanes that the batch keeps to itself, each with whether the batch may take more of it. With
        `spare_suspects`, suspects wait until it is known whether the bus works for others.
        """
        taken: list[RecordRange] = []
        spared: list[Lane] = []
        size_bytes, is_full = 0, False
        while self._due and len(taken) < max_records and not is_full:
            lane = self._due.popleft()
            backlog = self._backlogs.get(lane)
            if backlog is None or backlog.in_flight or not backlog.waiting:
                continue
            if backlog.is_suspect and spare_suspects:
                spared.append(lane)
            elif taken and (backlog.is_suspect or size_bytes + backlog.waiting[0].size_bytes > max_bytes):
                self._due.appendleft(lane)
                is_full = True
            else:
                lanes[lane] = not self._one_record_per_batch
                size_bytes += self._take(backlog, max_records, max_bytes, taken, size_bytes)
                is_full = backlog.is_suspect
        self._due.extend(spared)
        return taken, size_bytes, is_full

    def _take(self, backlog: LaneBacklog, max_records: int, max_bytes: int, taken: list[RecordRange], size_bytes: int) -> int:
        """Adds the beginning of a backlog to what was taken; returns how many bytes it added."""
        added_bytes = 0
        backlog.in_flight = True
        while backlog.waiting and len(taken) < max_records:
            group = backlog.waiting[0]
            if taken and size_bytes + added_bytes + group.size_bytes > max_bytes:
                break
            taken.append(RecordRange(backlog.waiting.popleft(), 0, 1))
            added_bytes += group.size_bytes
            if self._one_record_per_batch or backlog.is_suspect:
                break
        return added_bytes

    def sort_out(self, range_: RecordRange, lanes: dict[Lane, bool]) -> Iterator[RecordRange]:
        """The parts of a range that may join the batch that keeps these lanes; the rest joins the backlogs."""
        group, start, stop = range_
        free_from = start
        for index in range(start, stop):
            lane = group.records.routes[index].lane
            backlog = self._backlogs.get(lane)
            if backlog is None:
                if self.locks:
                    backlog = self._backlogs[lane] = LaneBacklog()
                    backlog.in_flight = True
                    lanes[lane] = not self._one_record_per_batch
            elif backlog.waiting or not lanes.get(lane, False):
                backlog.waiting.append(single(group, index))
                if free_from < index:
                    yield RecordRange(group, free_from, index)
                free_from = index + 1
        if free_from < stop:
            yield RecordRange(group, free_from, stop)

    def note_failure(self, lane: Lane, front: int, confirmed_before: int) -> tuple[int, int]:
        """A try of the record `front` failed: how many of it did by now, and how many records were confirmed before the first.

        `pause` must follow.
        """
        backlog = self._backlogs.get(lane)
        if backlog is None:
            backlog = self._backlogs[lane] = LaneBacklog()
        if backlog.front != front:
            backlog.front, backlog.attempts, backlog.confirmed_before = front, 0, confirmed_before
        backlog.attempts += 1
        return backlog.attempts, backlog.confirmed_before

    def pause(self, lane: Lane, returned: Sequence[RecordGroup], until: float, *, is_suspect: bool) -> None:
        """Puts records that failed back into their lane, which is due again at `until`; without any, it may be free at once."""
        backlog = self._backlogs[lane]
        backlog.in_flight = False
        backlog.is_suspect = is_suspect
        if returned:
            backlog.put_back(returned)
        if backlog.waiting:
            heappush(self._pauses, (until, backlog.front, lane))
        else:
            del self._backlogs[lane]

    def give_back(self, ranges: Iterable[RecordRange]) -> list[RecordRange]:
        """Puts records whose lane has a backlog back into it, and returns the others; both in order."""
        if not self._backlogs:
            return list(ranges)
        others: list[RecordRange] = []
        returning: dict[Lane, list[RecordGroup]] = {}
        for group in singles(ranges):
            lane = group.records.routes[0].lane
            if lane in self._backlogs:
                returning.setdefault(lane, []).append(group)
            else:
                others.append(RecordRange(group, 0, 1))
        for lane, groups in returning.items():
            self._backlogs[lane].put_back(groups)
        return others

    def release(self, lanes: Iterable[Lane]) -> None:
        """A batch that kept these lanes to itself is settled: they are free, or their backlogs go on."""
        for lane in lanes:
            backlog = self._backlogs.get(lane)
            if backlog is None or not backlog.in_flight:
                continue  # a record of it failed: the backlog pauses, or is no more
            backlog.in_flight = backlog.is_suspect = False
            if backlog.waiting:
                self._due.append(lane)
            else:
                del self._backlogs[lane]
