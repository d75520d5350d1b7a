"""What waits behind an earlier record of its lane, and when it goes on."""

from __future__ import annotations

from tardis_machine.eventbus.delivery.lanes import Lane, Lanes
from tardis_machine.eventbus.delivery.record_groups import RecordRange, singles, whole
from tests.unit.eventbus.delivery.groups import make_group

A, B = ("base", "a"), ("base", "b")


def sequences(ranges: list[RecordRange]) -> list[int]:
    return [record.event.sequence for range_ in ranges for record in range_.records]


def sort_out(lanes: Lanes, *names: str, first: int = 0) -> tuple[list[int], dict[Lane, bool]]:
    """What of these joins a new batch, and the lanes that the batch keeps to itself."""
    kept: dict[Lane, bool] = {}
    return sequences([*lanes.sort_out(whole(make_group(*names, first=first)), kept)]), kept


def fail(lanes: Lanes, lane: Lane, *, first: int = 0, until: float = 1.0, is_suspect: bool = False) -> None:
    [group] = singles([whole(make_group(lane[1], first=first))])
    assert lanes.note_failure(lane, group.first, 0)[0] > 0
    lanes.pause(lane, [group], until, is_suspect=is_suspect)


def test_a_healthy_lane_leaves_no_trace() -> None:
    lanes = Lanes(locks=False, one_record_per_batch=False)
    assert sort_out(lanes, "a", "b", "a") == ([0, 1, 2], {})
    assert not lanes


def test_what_is_behind_a_failure_waits_and_other_lanes_pass() -> None:
    lanes = Lanes(locks=False, one_record_per_batch=False)
    fail(lanes, A)
    assert sort_out(lanes, "a", "b", "a", "b", first=1) == ([2, 4], {})
    lanes.end_pauses(0.9)
    assert lanes.due_count == 0
    assert lanes.next_pause_at == 1.0
    lanes.end_pauses(1.0)
    kept: dict[Lane, bool] = {}
    taken, size_bytes, is_full = lanes.take_due(10, 10_000, kept, spare_suspects=False)
    assert (sequences(taken), size_bytes, is_full, list(kept)) == ([0, 1, 3], 150, False, [A])
    lanes.release(kept)
    assert not lanes


def test_tries_of_one_record_are_counted_until_another_one_fails() -> None:
    lanes = Lanes(locks=False, one_record_per_batch=False)
    assert lanes.note_failure(A, 0, 7) == (1, 7)
    lanes.pause(A, [make_group("a")], 1.0, is_suspect=False)
    assert lanes.note_failure(A, 0, 9) == (2, 7), "what was confirmed before the first try counts"
    assert lanes.note_failure(A, 1, 9) == (1, 9)


def test_a_lane_that_is_locked_is_in_one_batch_until_it_is_settled() -> None:
    lanes = Lanes(locks=True, one_record_per_batch=False)
    taken, kept = sort_out(lanes, "a", "a", "b")
    assert taken == [0, 1, 2]
    assert kept == {A: True, B: True}
    assert sort_out(lanes, "a", "b", first=3) == ([], {})
    lanes.release(kept)
    assert lanes.due_count == 2
    assert sequences(lanes.take_due(10, 10_000, {}, spare_suspects=False)[0]) == [3, 4]


def test_one_record_of_a_lane_in_a_batch() -> None:
    lanes = Lanes(locks=True, one_record_per_batch=True)
    taken, kept = sort_out(lanes, "a", "b", "a")
    assert taken == [0, 1]
    assert kept == {A: False, B: False}


def test_a_suspect_goes_alone_and_waits_where_others_can_be_tried() -> None:
    lanes = Lanes(locks=False, one_record_per_batch=False)
    fail(lanes, A, is_suspect=True)
    fail(lanes, B, first=1)
    assert lanes.is_suspect(A)
    assert not lanes.is_suspect(B)
    lanes.end_pauses(1.0)
    assert sequences(lanes.take_due(10, 10_000, {}, spare_suspects=True)[0]) == [1]
    taken, _, is_full = lanes.take_due(10, 10_000, {}, spare_suspects=False)
    assert (sequences(taken), is_full) == ([0], True)


def test_records_of_a_whole_batch_that_came_back_join_their_backlog_in_order() -> None:
    lanes = Lanes(locks=False, one_record_per_batch=False)
    fail(lanes, A, first=2)
    others = lanes.give_back([whole(make_group("a", "b", first=0))])
    assert sequences(others) == [1]
    assert [group.first for group in lanes] == [0, 2]
