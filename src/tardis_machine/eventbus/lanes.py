"""Which records may not be sent, because an earlier one of their lane failed or is still on its way.

Invariant: a lane without a failure has no entry here (unless lanes are locked while in flight), so that records of a healthy bus
cost nothing. The records of a line are in the order of their ordinals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from .batching import Chunk, Piece, single, singles

__all__ = ["Lane", "Lanes", "Line"]

Lane = tuple[str, str]


class Line:
    """The records of one lane that wait, single and in order."""

    __slots__ = ("attempts", "chunks", "confirmed_before", "front", "in_flight", "is_suspect")

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        # Records of the lane are in a batch that keeps it to itself.
        self.in_flight = False
        # Its first record was alone in a batch that failed as a whole: it goes alone, until it is known whose fault it was.
        self.is_suspect = False
        # The ordinal of the record that failed, how often it did, and what the bus had confirmed before it first did.
        self.front = -1
        self.attempts = 0
        self.confirmed_before = 0

    def put_back(self, chunks: Sequence[Chunk]) -> None:
        """In front, where they were taken from."""
        if self.chunks and chunks[-1].first > self.chunks[0].first:
            # Of two sends at once the later one failed first.
            self.chunks = deque(sorted((*chunks, *self.chunks), key=lambda chunk: chunk.first))
        else:
            self.chunks.extendleft(reversed(chunks))


class Lanes:
    """The lines of one bus. `locks`: every lane in flight is kept to one batch; `one_of_a_lane`: and to one record of it."""

    def __init__(self, *, locks: bool, one_of_a_lane: bool) -> None:
        self.locks = locks
        self._one_of_a_lane = one_of_a_lane
        self._lines: dict[Lane, Line] = {}
        # Lanes whose line may be sent now, and those whose pause ends at a time; either may name one that is no more.
        self._due: deque[Lane] = deque()
        self._pauses: list[tuple[float, int, Lane]] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[Chunk]:
        """All records that wait."""
        for line in self._lines.values():
            yield from line.chunks

    @property
    def has_due(self) -> bool:
        """Whether a line may be sent."""
        return bool(self._due)

    @property
    def due_count(self) -> int:
        """How many, at most."""
        return len(self._due)

    @property
    def next_pause_at(self) -> float | None:
        """When the next pause ends."""
        return self._pauses[0][0] if self._pauses else None

    def wake(self, now: float) -> None:
        """Ends the pauses that are over."""
        while self._pauses and self._pauses[0][0] <= now:
            self._due.append(heappop(self._pauses)[2])

    def is_suspect(self, lane: Lane) -> bool:
        """Whether the lane is set aside already."""
        line = self._lines.get(lane)
        return line is not None and line.is_suspect

    # --- into a batch --------------------------------------------------------------------------------------------------------

    def take_due(
        self, max_records: int, max_bytes: int, lanes: dict[Lane, bool], *, spare_suspects: bool
    ) -> tuple[list[Piece], int, bool]:
        """From lines that are due: records, their bytes, and whether nothing else may join them.

        `lanes` gets the lanes that the batch keeps to itself, each with whether it may take more of them. Suspects may have to wait
        until it is known whether the bus works for others.
        """
        taken: list[Piece] = []
        spared: list[Lane] = []
        size_bytes, is_full = 0, False
        while self._due and len(taken) < max_records and not is_full:
            lane = self._due.popleft()
            line = self._lines.get(lane)
            if line is None or line.in_flight or not line.chunks:
                continue
            if line.is_suspect and spare_suspects:
                spared.append(lane)
            elif taken and (line.is_suspect or size_bytes + line.chunks[0].size_bytes > max_bytes):
                self._due.appendleft(lane)
                is_full = True
            else:
                lanes[lane] = not self._one_of_a_lane
                size_bytes += self._take(line, max_records, max_bytes, taken, size_bytes)
                is_full = line.is_suspect
        self._due.extend(spared)
        return taken, size_bytes, is_full

    def _take(self, line: Line, max_records: int, max_bytes: int, taken: list[Piece], size_bytes: int) -> int:
        """Adds the beginning of a line to what was taken; how many bytes it added."""
        added_bytes = 0
        line.in_flight = True
        while line.chunks and len(taken) < max_records:
            chunk = line.chunks[0]
            if taken and size_bytes + added_bytes + chunk.size_bytes > max_bytes:
                break
            taken.append(Piece(line.chunks.popleft(), 0, 1))
            added_bytes += chunk.size_bytes
            if self._one_of_a_lane or line.is_suspect:
                break
        return added_bytes

    def sort_out(self, piece: Piece, lanes: dict[Lane, bool]) -> Iterator[Piece]:
        """The parts of a piece that may join the batch with these lanes; the rest joins its lines."""
        chunk, start, stop = piece
        free_from = start
        for index in range(start, stop):
            lane = chunk.records.routes[index].lane
            line = self._lines.get(lane)
            if line is None:
                if self.locks:
                    line = self._lines[lane] = Line()
                    line.in_flight = True
                    lanes[lane] = not self._one_of_a_lane
            elif line.chunks or not lanes.get(lane, False):
                line.chunks.append(single(chunk, index))
                if free_from < index:
                    yield Piece(chunk, free_from, index)
                free_from = index + 1
        if free_from < stop:
            yield Piece(chunk, free_from, stop)

    # --- out of a batch ------------------------------------------------------------------------------------------------------

    def note_failure(self, lane: Lane, front: int, confirmed_before: int, *, is_suspect: bool = False) -> Line:
        """The line of a lane whose record `front` has used up a try; it has that record no longer, nor is it in flight."""
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = Line()
        if line.front != front:
            line.front, line.attempts, line.confirmed_before = front, 0, confirmed_before
        line.attempts += 1
        line.in_flight = False
        line.is_suspect = is_suspect
        return line

    def pause(self, lane: Lane, until: float) -> None:
        """The line is due again then; one without records is none."""
        line = self._lines[lane]
        if line.chunks:
            heappush(self._pauses, (until, line.front, lane))
        else:
            del self._lines[lane]

    def give_back(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Puts records that have a line back into it; takes and returns them in order."""
        if not self._lines:
            return list(pieces)
        others: list[Piece] = []
        to_lines: dict[Lane, list[Chunk]] = {}
        for chunk in singles(pieces):
            lane = chunk.records.routes[0].lane
            if lane in self._lines:
                to_lines.setdefault(lane, []).append(chunk)
            else:
                others.append(Piece(chunk, 0, 1))
        for lane, chunks in to_lines.items():
            self._lines[lane].put_back(chunks)
        return others

    def release(self, lanes: Iterable[Lane]) -> None:
        """A batch that kept these lanes to itself is settled: they are free, or their lines go on."""
        for lane in lanes:
            line = self._lines.get(lane)
            if line is None or not line.in_flight:
                continue  # a record of it failed: the line pauses, or is no more
            line.in_flight = line.is_suspect = False
            if line.chunks:
                self._due.append(lane)
            else:
                del self._lines[lane]
