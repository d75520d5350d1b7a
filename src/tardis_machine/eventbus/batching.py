"""Records in the order they came, and batches cut from them.

Invariant: nothing is done for each record where whole chunks will do: records that came together stay together in one list, and a
batch is cut by slicing. Ordinals count records in the order a bus must keep.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from .contract import Record, Records
from .mark import Mark

__all__ = ["Arrival", "Batch", "Chunk", "Piece", "Queue", "single", "singles"]


class Arrival:
    """What is known of records that came together, until the last of them is resolved."""

    __slots__ = ("accepted_at", "after_segment", "ends_session", "first", "mark", "unresolved")

    def __init__(self, first: int, count: int, accepted_at: float) -> None:
        # Ordinal of its first record.
        self.first = first
        self.unresolved = count
        self.accepted_at = accepted_at
        # Where the spool has these records, if it has.
        self.mark: Mark | None = None
        # The spool's last segment when they came, where they are in memory only.
        self.after_segment = 0
        # The session whose `session_end` this is.
        self.ends_session: str | None = None


class Chunk:
    """Records that came together, or some of them."""

    __slots__ = ("arrival", "cases", "first", "queued_at", "records", "size_bytes")

    def __init__(
        self,
        records: Iterable[Record],
        size_bytes: int,
        arrival: Arrival,
        first: int,
        queued_at: float,
        cases: Mapping[str, int] | None = None,
    ) -> None:
        self.records = Records.of(records)
        # What limits count.
        self.size_bytes = size_bytes
        self.arrival = arrival
        # Ordinal of its first record.
        self.first = first
        # Since when a batch could take it.
        self.queued_at = queued_at
        # How many there are of each payload case, where that is known.
        self.cases = cases

    def __len__(self) -> int:
        return len(self.records)


class Piece(NamedTuple):
    """Neighbouring records of a chunk."""

    chunk: Chunk
    start: int
    stop: int

    @property
    def first(self) -> int:
        """Ordinal of its first record."""
        return self.chunk.first + self.start

    @property
    def records(self) -> Records:
        chunk, start, stop = self
        return chunk.records if stop - start == len(chunk.records) else chunk.records[start:stop]

    @property
    def size_bytes(self) -> int:
        chunk, start, stop = self
        if stop - start == len(chunk.records):
            return chunk.size_bytes
        return sum(chunk.records[start:stop].sizes)

    @property
    def cases(self) -> Mapping[str, int]:
        """How many records there are of each payload case."""
        chunk, start, stop = self
        if chunk.cases is not None and stop - start == len(chunk.records):
            return chunk.cases
        if stop - start == 1:
            return {chunk.records.routes[start].payload_case: 1}
        return Counter([route.payload_case for route in chunk.records.routes[start:stop]])


class Batch:
    """What one `send` is given, and where each record of it came from."""

    __slots__ = ("lanes", "number", "pieces", "records", "size_bytes")

    def __init__(self, number: int, pieces: Sequence[Piece], size_bytes: int, lanes: Sequence[tuple[str, str]]) -> None:
        self.number = number
        self.pieces = pieces
        self.records = Records.joined([piece.records for piece in pieces])
        self.size_bytes = size_bytes
        # Lanes that are kept out of other batches until this one is settled.
        self.lanes = lanes

    def __len__(self) -> int:
        return len(self.records)


class Queue:
    """Pieces in order, with their number of records and bytes."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.count = 0
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def pieces(self) -> Iterable[Piece]:
        """From the oldest to the newest."""
        return self._pieces

    @property
    def queued_at(self) -> float:
        """Since when the first piece waits."""
        return self._pieces[0].chunk.queued_at

    def push(self, chunk: Chunk) -> None:
        """Behind everything."""
        self._pieces.append(Piece(chunk, 0, len(chunk)))
        self.count += len(chunk)
        self.size_bytes += chunk.size_bytes

    def push_front(self, pieces: Iterable[Piece]) -> None:
        """In front of everything, in their order."""
        for piece in reversed(list(pieces)):
            self._pieces.appendleft(piece)
            self.count += piece.stop - piece.start
            self.size_bytes += piece.size_bytes

    def cut(self, max_records: int, max_bytes: int, at_least: int = 1) -> tuple[list[Piece], int]:
        """The first records within the limits, and their bytes; `at_least` so many go even if they are larger."""
        taken: list[Piece] = []
        count, size_bytes = 0, 0
        while self._pieces and count < max_records:
            piece = self._pieces[0]
            chunk, start, stop = piece
            part = Piece(chunk, start, min(stop, start + max_records - count))
            part_bytes = part.size_bytes
            if size_bytes + part_bytes > max_bytes:
                part, part_bytes = _within(part, max_bytes - size_bytes, at_least=0 if taken else at_least)
                if part.start == part.stop:
                    break
            taken.append(part)
            count += part.stop - part.start
            size_bytes += part_bytes
            if part.stop == stop:
                self._pieces.popleft()
            else:
                self._pieces[0] = Piece(chunk, part.stop, stop)
        self.count -= count
        self.size_bytes -= size_bytes
        return taken, size_bytes


def _within(piece: Piece, max_bytes: int, at_least: int) -> tuple[Piece, int]:
    """As much of the beginning as fits."""
    chunk, start, stop = piece
    end, size_bytes = start, 0
    for position, total in enumerate(accumulate(chunk.records[start:stop].sizes), 1):
        if total > max_bytes and position > at_least:
            break
        end, size_bytes = start + position, total
    return Piece(chunk, start, end), size_bytes


def single(chunk: Chunk, index: int) -> Chunk:
    """One record by itself, so that it does not keep its neighbours in memory."""
    route, event = chunk.records.routes[index], chunk.records.events[index]
    size_bytes = len(event.value) + route.overhead_bytes
    return Chunk(Records([route], [event]), size_bytes, chunk.arrival, chunk.first + index, chunk.queued_at)


def singles(pieces: Iterable[Piece]) -> Iterator[Chunk]:
    """Every record by itself."""
    for chunk, start, stop in pieces:
        if len(chunk) == 1:
            yield chunk
        else:
            for index in range(start, stop):
                yield single(chunk, index)
