"""Cutting batches from groups of records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.eventbus.delivery.record_groups import Arrival, RecordGroup, RecordRange, singles
from tardis_machine.eventbus.delivery.send_queue import SendQueue
from tests.unit.eventbus.events import make_record, make_route


def make_group(first: int, sizes: list[int]) -> RecordGroup:
    records = [make_record(make_route("a"), first + index, size) for index, size in enumerate(sizes)]
    return RecordGroup(records, sum(sizes), Arrival(len(sizes), 0.0), 0.0, first=first)


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=8), max_size=8),
    st.integers(1, 20),
    st.integers(1, 120),
)
def test_batches_are_the_queue_in_order_and_within_limits(groups: list[list[int]], max_records: int, max_bytes: int) -> None:
    queue = SendQueue()
    first = 0
    for sizes in groups:
        queue.push(make_group(first, sizes))
        first += len(sizes)
    cut: list[int] = []
    while queue:
        ranges, size_bytes = queue.cut(max_records, max_bytes)
        records = [record for range_ in ranges for record in range_.records]
        assert 0 < len(records) <= max_records
        assert size_bytes == sum(record.size_bytes for record in records)
        assert size_bytes <= max_bytes or len(records) == 1
        cut += [record.event.sequence for record in records]
        assert queue.count == first - len(cut)
        assert queue.size_bytes == sum(range_.size_bytes for range_ in queue)
    assert cut == list(range(first))


def test_a_batch_is_as_full_as_it_can_be() -> None:
    queue = SendQueue()
    queue.push(make_group(0, [10] * 10))
    ranges, size_bytes = queue.cut(100, 45)
    assert [(range_.start, range_.stop) for range_ in ranges] == [(0, 4)]
    assert size_bytes == 40
    assert queue.cut(100, 5, at_least=0) == ([], 0)
    assert queue.cut(100, 5)[1] == 10


def test_what_came_back_goes_in_front() -> None:
    queue = SendQueue()
    queue.push(make_group(0, [1] * 5))
    queue.push(make_group(5, [1] * 5))
    ranges, _ = queue.cut(7, 1000)
    assert [range_.first for range_ in ranges] == [0, 5]
    queue.push_front(ranges)
    assert [range_.first for range_ in queue] == [0, 5, 7]
    assert (queue.count, queue.size_bytes) == (10, 10)


def test_singles_know_their_ordinals() -> None:
    group = make_group(10, [1, 2, 3, 4])
    found = list(singles([RecordRange(group, 1, 3)]))
    assert [(single.first, single.size_bytes, single.arrival) for single in found] == [
        (11, 2, group.arrival),
        (12, 3, group.arrival),
    ]
