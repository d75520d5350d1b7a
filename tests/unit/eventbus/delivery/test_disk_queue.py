"""What waits for the disk or is on it, and what may pass it by."""

from __future__ import annotations

import pytest

from tardis_machine.eventbus.delivery.disk_queue import DiskQueue
from tardis_machine.eventbus.delivery.memory import MemoryBudget
from tardis_machine.eventbus.policy import Overflow, Policy
from tardis_machine.eventbus.spool_span import SpoolSpan
from tests.unit.eventbus.delivery.groups import make_group


def make_queue(overflow: Overflow = "spool", *, write_ahead: bool = False) -> DiskQueue:
    policy = Policy(
        batch_records=10, batch_bytes=1000, batch_delay_s=0.0, queue_bytes=8000, overflow=overflow, write_ahead=write_ahead
    )
    return DiskQueue(policy, lambda: 1.0)


def span(segment: int, count: int) -> SpoolSpan:
    return SpoolSpan(segment, 0, 100, count)


def test_nothing_need_go_to_an_empty_disk_unless_it_is_written_ahead() -> None:
    assert make_queue().may_be_passed_by
    assert not make_queue(write_ahead=True).may_be_passed_by


def test_what_is_behind_an_earlier_run_waits_until_that_is_read() -> None:
    queue, sending = make_queue(), MemoryBudget(7000)
    queue.carry(5, 4)
    assert not queue.may_be_passed_by
    assert queue.is_overflow
    group = make_group("a")
    queue.push(group)
    assert list(queue.take_passing(sending)) == []
    assert queue.start_read(0.0, sending) > 0
    assert queue.start_read(0.0, sending) == 0, "one read at a time"
    queue.note_read(5)
    assert list(queue.take_passing(sending)) == [group]
    assert group.arrival.after_segment == 4
    assert not queue.is_overflow


def test_what_is_being_written_is_not_passed_by() -> None:
    queue, sending = make_queue(), MemoryBudget(7000)
    queue.push(make_group("a"))
    assert queue.start_write(0.0) is not None
    assert queue.start_write(0.0) is None, "one write at a time"
    assert list(queue.take_passing(sending)) == []
    queue.note_write_failure(0.0)
    assert len(list(queue.take_passing(sending))) == 1


def test_what_is_written_stays_in_memory_where_there_is_room_and_nothing_before_it_is_unread() -> None:
    queue, sending = make_queue(write_ahead=True), MemoryBudget(1000)
    groups = [make_group("a"), make_group("b"), make_group("c")]
    for group in groups:
        queue.push(group)
    spill = queue.start_write(0.0)
    assert spill is not None
    assert spill.groups == groups
    queue.note_written()
    assert queue.place(groups[0], span(2, 1), sending)
    sending.take(900)
    assert not queue.place(groups[1], span(2, 1), sending), "there is no room"
    sending.give_back(900)
    assert not queue.place(groups[2], span(4, 1), sending), "it would overtake the one before it"
    assert queue.unread == 2
    assert queue.last_segment == 4
    assert queue.tail_memory_bytes == 0


def test_a_write_after_records_in_memory_only_begins_a_new_segment() -> None:
    queue = make_queue(write_ahead=True)
    queue.pass_by(make_group("a").arrival)
    for expected in (True, False):
        group = make_group("b")
        queue.push(group)
        spill = queue.start_write(0.0)
        assert spill is not None
        assert spill.in_new_segment is expected
        queue.note_written()
        queue.place(group, span(2, 1), MemoryBudget(7000))


def test_a_failed_write_is_tried_again_after_a_pause_or_when_there_is_room() -> None:
    queue = make_queue(write_ahead=True)
    queue.push(make_group("a"))
    assert queue.start_write(0.0) is not None
    queue.note_write_failure(0.0)
    assert queue.start_write(0.05) is None
    assert list(queue.retry_times()) == [pytest.approx(0.1)]
    queue.note_room()
    assert queue.start_write(0.05) is not None


@pytest.mark.parametrize("overflow", ["block", "drop"])
def test_without_a_spool_the_tail_is_only_for_what_an_earlier_run_left(overflow: Overflow) -> None:
    queue, sending = make_queue(overflow), MemoryBudget(1000)
    assert not queue.fits(10, sending)
    queue.carry(1, 2)
    assert queue.fits(10, sending)
    sending.take(995)
    assert not queue.fits(10, sending), "both share the bound of the queue"
    queue.push(make_group("a"))
    assert queue.start_write(0.0) is None
