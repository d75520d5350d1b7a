"""Ordinals, and the ends of sessions, which wait for what came before them."""

from __future__ import annotations

from tardis_machine.eventbus.delivery.arrival_order import ArrivalOrder
from tardis_machine.eventbus.spool_span import SpoolSpan
from tests.unit.eventbus.delivery.groups import make_group


def test_records_are_numbered_in_the_order_they_came() -> None:
    order = ArrivalOrder()
    groups = [make_group("a", "b"), make_group("c"), make_group("d")]
    assert all(order.enter(group) for group in groups)
    assert [(group.first, group.arrival.first) for group in groups] == [(0, 0), (2, 2), (3, 3)]


def test_an_end_waits_for_what_came_before_it_and_for_nothing_else() -> None:
    order = ArrivalOrder()
    before, end, after = make_group("a", "b"), make_group("end", ends_session="s1"), make_group("c")
    other_end = make_group("end", ends_session="s2")
    assert [order.enter(group) for group in (before, end, after, other_end)] == [True, False, True, False]
    assert list(order.waiting_ends) == [end, other_end]
    order.resolve(before.arrival, 1)
    assert list(order.release_ends(())) == []
    order.resolve(before.arrival, 1)
    assert list(order.release_ends(())) == [end]
    order.resolve(after.arrival, 1)
    assert list(order.release_ends(())) == [other_end], "an end does not wait for another one"


def test_an_end_waits_for_its_ledger_and_those_behind_it_wait_with_it() -> None:
    order = ArrivalOrder()
    ends = [make_group("end", ends_session=session) for session in ("s1", "s2")]
    for end in ends:
        order.enter(end)
    assert list(order.release_ends({"s1"})) == []
    assert list(order.release_ends({"s2"})) == ends[:1]
    assert list(order.release_ends(())) == ends[1:]


def test_what_is_resolved_is_told_once() -> None:
    order = ArrivalOrder()
    kept, end = make_group("a", "b"), make_group("end", ends_session="s1")
    kept.arrival.span = SpoolSpan(2, 0, 100, 2)
    for group in (kept, end):
        order.enter(group)
    order.resolve(kept.arrival, 1)
    assert order.take_resolved_spans() == []
    assert order.unresolved_in_spool == 1
    order.resolve(kept.arrival, 1)
    order.resolve(end.arrival, 1)
    assert order.take_resolved_spans() == [SpoolSpan(2, 0, 100, 2)]
    assert order.take_ended_sessions() == ["s1"]
    assert order.take_resolved_spans() == order.take_ended_sessions() == []


def test_the_oldest_is_one_that_is_not_resolved() -> None:
    order = ArrivalOrder()
    groups = [make_group("a"), make_group("b")]
    for moment, group in enumerate(groups):
        group.arrival.accepted_at = moment
        order.enter(group)
    assert order.oldest_at == 0.0
    order.resolve(groups[0].arrival, 1)
    assert order.oldest_at == 1.0
    order.resolve(groups[1].arrival, 1)
    assert order.oldest_at is None
