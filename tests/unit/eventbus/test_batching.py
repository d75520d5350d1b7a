"""Cutting batches from chunks, and sorting events into portions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.eventbus.batching import Arrival, Chunk, Piece, Queue, singles
from tests.unit.eventbus.events import make_record, make_route


def make_chunk(first: int, sizes: list[int]) -> Chunk:
    records = [make_record(make_route("a"), first + index, size) for index, size in enumerate(sizes)]
    return Chunk(records, sum(sizes), Arrival(first, len(sizes), 0.0), first, 0.0)


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=8), max_size=8),
    st.integers(1, 20),
    st.integers(1, 120),
)
def test_batches_are_the_queue_in_order_and_within_limits(chunks: list[list[int]], max_records: int, max_bytes: int) -> None:
    queue = Queue()
    first = 0
    for sizes in chunks:
        queue.push(make_chunk(first, sizes))
        first += len(sizes)
    cut: list[int] = []
    while queue:
        pieces, size_bytes = queue.cut(max_records, max_bytes)
        records = [record for piece in pieces for record in piece.records]
        assert 0 < len(records) <= max_records
        assert size_bytes == sum(record.size_bytes for record in records)
        assert size_bytes <= max_bytes or len(records) == 1
        cut += [record.event.sequence for record in records]
        assert queue.count == first - len(cut)
        assert queue.size_bytes == sum(piece.size_bytes for piece in queue.pieces)
    assert cut == list(range(first))


def test_a_batch_is_as_full_as_it_can_be() -> None:
    queue = Queue()
    queue.push(make_chunk(0, [10] * 10))
    pieces, size_bytes = queue.cut(100, 45)
    assert [(piece.start, piece.stop) for piece in pieces] == [(0, 4)]
    assert size_bytes == 40
    assert queue.cut(100, 5, at_least=0) == ([], 0)
    assert queue.cut(100, 5)[1] == 10


def test_what_came_back_goes_in_front() -> None:
    queue = Queue()
    queue.push(make_chunk(0, [1] * 5))
    queue.push(make_chunk(5, [1] * 5))
    pieces, _ = queue.cut(7, 1000)
    assert [piece.first for piece in pieces] == [0, 5]
    queue.push_front(pieces)
    assert [piece.first for piece in queue.pieces] == [0, 5, 7]
    assert (queue.count, queue.size_bytes) == (10, 10)


def test_singles_know_their_ordinals() -> None:
    chunk = make_chunk(10, [1, 2, 3, 4])
    found = list(singles([Piece(chunk, 1, 3)]))
    assert [(single.first, single.size_bytes, single.arrival) for single in found] == [
        (11, 2, chunk.arrival),
        (12, 3, chunk.arrival),
    ]
