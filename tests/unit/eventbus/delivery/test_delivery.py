"""The delivery's rules one by one; `test_delivery_model` has them all at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.contract import Failure, Limits, Record
from tardis_machine.eventbus.delivery import Delivery
from tardis_machine.eventbus.delivery.in_flight import Batch
from tardis_machine.eventbus.delivery.retry_pause import RetryPause
from tardis_machine.eventbus.policy import Policy
from tests.unit.eventbus.events import cases_of, is_balanced, make_record, make_route

LIMITS = Limits(batch_records=100, batch_bytes=100_000, record_bytes=1000)
POLICY = Policy(batch_records=10, batch_bytes=100_000, batch_delay_s=1.0, queue_bytes=1_000_000)


def make_delivery(limits: Limits = LIMITS, *, connect: bool = True, carried: int = 0, **policy: Any) -> Delivery:
    delivery = Delivery(msgspec.structs.replace(POLICY, **policy), limits, lambda: 1.0)
    delivery.carry(carried, 0)
    if connect:
        assert delivery.wants_connect(0.0)
        delivery.connect_succeeded(limits)
    return delivery


def offer(delivery: Delivery, count: int, lane: str = "a", first: int = 0, now: float = 0.0) -> list[Record]:
    records = [make_record(make_route(lane), first + number) for number in range(count)]
    assert delivery.offer(records, sum(record.size_bytes for record in records), now, cases_of(records)) is not None
    return records


def sequences(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [record.event.sequence for record in batch.records]


def test_a_batch_leaves_when_it_is_full_or_old_or_asked_for() -> None:
    delivery = make_delivery()
    offer(delivery, 9)
    assert delivery.next_batch(0.5) is None
    assert delivery.deadline(0.5) == 1.0
    offer(delivery, 1, first=9)
    assert len(sequences(delivery.next_batch(0.5))) == 10
    delivery = make_delivery()
    offer(delivery, 3)
    assert sequences(delivery.next_batch(1.0)) == [0, 1, 2]
    delivery = make_delivery()
    offer(delivery, 3)
    delivery.set_flushing(is_flushing=True)
    assert sequences(delivery.next_batch(0.0)) == [0, 1, 2]


def test_bytes_limit_a_batch() -> None:
    delivery = make_delivery(batch_bytes=120)
    offer(delivery, 10)
    assert sequences(delivery.next_batch(0.0)) == [0, 1]


def test_the_services_own_limits_are_known_when_it_is_connected() -> None:
    delivery = make_delivery(connect=False)
    delivery.wants_connect(0.0)
    delivery.connect_succeeded(msgspec.structs.replace(LIMITS, batch_records=4))
    offer(delivery, 10)
    assert sequences(delivery.next_batch(0.0)) == [0, 1, 2, 3]


def test_backoff_doubles_to_its_bound_and_is_spread_over_the_upper_half() -> None:
    policy = msgspec.structs.replace(POLICY, backoff_base_s=0.1, backoff_max_s=5.0)
    assert [policy.backoff_s(attempt, lambda: 1.0) for attempt in (1, 2, 3, 4, 7, 1000)] == [0.1, 0.2, 0.4, 0.8, 5.0, 5.0]
    assert policy.backoff_s(3, lambda: 0.0) == 0.2
    pause = RetryPause(policy, lambda: 1.0)
    for _ in range(3):
        pause.note_failure(10.0)
    assert (pause.failures, pause.until) == (3, 10.4)


def test_a_failed_connect_is_tried_again_after_a_pause() -> None:
    delivery = make_delivery(connect=False)
    assert delivery.wants_connect(0.0)
    assert not delivery.wants_connect(0.0), "one at a time"
    delivery.connect_failed(TransientDeliveryError("refused"), 0.0)
    assert delivery.last_error == "refused"
    assert not delivery.wants_connect(0.05)
    assert delivery.deadline(0.0) == pytest.approx(0.1)
    assert delivery.wants_connect(0.1)


def test_a_batch_that_failed_as_a_whole_is_sent_again_smaller_until_it_passes() -> None:
    delivery = make_delivery()
    offer(delivery, 30)
    first = delivery.next_batch(0.0)
    assert first is not None
    delivery.fail(first, TransientDeliveryError("lost"), 0.0)
    assert delivery.next_batch(10.0) is None, "it is not connected"
    assert delivery.wants_connect(10.0)
    delivery.connect_succeeded(LIMITS)
    second = delivery.next_batch(10.0)
    assert sequences(second) == [0, 1, 2, 3, 4]
    assert second is not None
    delivery.settle(second, [], 10.0)
    assert sequences(delivery.next_batch(10.0)) == list(range(5, 15)), "and larger again"
    assert delivery.retried == 10


def test_later_records_of_a_lane_wait_for_one_that_failed_and_other_lanes_go_on() -> None:
    delivery = make_delivery()
    offer(delivery, 5, "a")
    offer(delivery, 5, "b")
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [Failure(index, TransientDeliveryError("throttled")) for index in (3, 4)], 0.0)
    offer(delivery, 5, "a", first=5)
    offer(delivery, 5, "b", first=5)
    delivery.set_flushing(is_flushing=True)
    following = delivery.next_batch(0.01)
    assert following is not None
    assert {record.key for record in following.records} == {"b"}
    delivery.settle(following, [], 0.01)
    assert delivery.next_batch(0.02) is None
    assert delivery.deadline(0.02) == pytest.approx(0.1)
    retry = delivery.next_batch(0.1)
    assert retry is not None
    assert [record.event.sequence for record in retry.records] == [3, 4, 5, 6, 7, 8, 9]
    delivery.settle(retry, [], 0.1)
    assert delivery.is_idle
    assert delivery.books.confirmed == 20


def test_retries_are_counted_only_while_the_bus_works_for_others() -> None:
    delivery = make_delivery(max_retries=1, batch_records=2)
    offer(delivery, 1, "a")
    offer(delivery, 1, "b")
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [Failure(0, TransientDeliveryError("throttled"))], 0.0)
    assert delivery.next_undeliverable(0.0) == []
    retry = delivery.next_batch(1.0)
    assert retry is not None
    delivery.settle(retry, [Failure(0, TransientDeliveryError("throttled"))], 1.0)
    (found,) = delivery.next_undeliverable(1.0)
    assert found.reason == "gave up after 2 tries: throttled"
    assert delivery.books.queued == 1
    delivery.dead_lettered()
    assert delivery.books.dead_lettered == 1
    assert delivery.is_idle


def test_a_terminal_failure_is_buried_and_its_lane_goes_on() -> None:
    delivery = make_delivery()
    offer(delivery, 10)
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [Failure(4, TerminalDeliveryError("too large"))], 0.0)
    (found,) = delivery.next_undeliverable(0.0)
    assert found.record.event.sequence == 4
    delivery.dead_letters_failed(OSError("disk full"), 0.0)
    assert delivery.next_undeliverable(0.0) == []
    assert delivery.deadline(0.0) == pytest.approx(0.1)
    assert len(delivery.next_undeliverable(0.1)) == 1
    delivery.dead_lettered()
    assert delivery.books.confirmed == 9
    assert delivery.is_idle


def test_a_session_end_leaves_when_all_before_it_is_resolved() -> None:
    delivery = make_delivery()
    offer(delivery, 5)
    end = make_record(make_route("", "session_end"), 0)
    assert delivery.offer([end], end.size_bytes, 0.0, cases_of([end]), "s1") is not None
    offer(delivery, 5, "b")
    delivery.set_flushing(is_flushing=True)
    batch = delivery.next_batch(0.0)
    assert batch is not None
    assert end not in batch.records
    assert len(batch) == 10
    delivery.settle(batch, [Failure(2, TransientDeliveryError("throttled"))], 0.0)
    assert delivery.next_batch(0.0) is None
    retry = delivery.next_batch(1.0)
    assert retry is not None
    delivery.settle(retry, [], 1.0)
    assert delivery.next_batch(1.0) is None, "its ledger is not on disk"
    delivery.ledger_written(["s1"])
    last = delivery.next_batch(1.0)
    assert last is not None
    assert list(last.records) == [end]
    delivery.settle(last, [], 1.0)
    assert delivery.take_ended_sessions() == ["s1"]


def test_a_ledger_that_cannot_be_written_is_tried_again_after_a_pause() -> None:
    delivery = make_delivery()
    assert not delivery.wants_ledger(0.0)
    end = make_record(make_route("", "session_end"), 0)
    assert delivery.offer([end], end.size_bytes, 0.0, cases_of([end]), "s1") is not None
    assert delivery.wants_ledger(0.0)
    assert not delivery.wants_ledger(0.0), "one at a time"
    delivery.ledger_failed(OSError("disk full"), 0.0)
    assert delivery.last_error == "the ledger can't be written: disk full"
    assert delivery.deadline(0.0) == pytest.approx(0.1)
    assert not delivery.wants_ledger(0.05)
    assert delivery.wants_ledger(0.1)
    delivery.ledger_written(["s1"])
    assert not delivery.wants_ledger(0.1)
    delivery.set_flushing(is_flushing=True)
    assert delivery.next_batch(0.1) is not None


def test_a_full_queue_takes_nothing_more_and_a_session_end_all_the_same() -> None:
    delivery = make_delivery(overflow="block", queue_bytes=3000)
    offer(delivery, 10)
    more = make_record(make_route("a"), 10)
    assert delivery.offer([more], more.size_bytes, 0.0, cases_of([more])) is None
    end = make_record(make_route("", "session_end"), 0)
    assert delivery.offer([end], end.size_bytes, 0.0, cases_of([end]), "s1") is not None
    delivery.drop([more], 0.0)
    assert not delivery.can_report_drops
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [], 0.0)
    assert delivery.can_report_drops
    report = delivery.take_drops()
    assert report is not None
    assert report.count == 1
    assert delivery.take_drops() is None
    assert is_balanced(delivery.books)


def test_something_larger_than_the_queue_passes_alone() -> None:
    delivery = make_delivery(overflow="block", queue_bytes=10)
    offer(delivery, 10)
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [], 0.0)
    assert delivery.memory_bytes == 0
    offer(delivery, 10)


def test_what_comes_behind_an_earlier_runs_spool_waits_for_it_in_every_mode() -> None:
    for overflow in ("spool", "block", "drop"):
        delivery = make_delivery(carried=5, overflow=overflow)
        offer(delivery, 5)
        delivery.set_flushing(is_flushing=True)
        assert delivery.next_batch(0.0) is None
        assert delivery.next_load(0.0) > 0
        assert delivery.next_load(0.0) == 0, "one at a time"
        assert (delivery.next_spill(0.0) is not None) == (overflow == "spool")
        assert is_balanced(delivery.books)


def test_a_whole_refused_batch_is_buried_without_pausing_the_bus() -> None:
    delivery = make_delivery()
    offer(delivery, 20)
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.fail(batch, TerminalDeliveryError("not authorised"), 0.0)
    assert len(delivery.next_undeliverable(0.0)) == 10
    assert delivery.next_batch(0.0) is not None
    assert delivery.last_error == "not authorised"


def test_a_bus_that_refuses_everything_pauses_and_goes_on_when_it_confirms_again() -> None:
    delivery = make_delivery(max_refusals=25)
    offer(delivery, 60)
    for _ in range(2):
        batch = delivery.next_batch(0.0)
        assert batch is not None
        delivery.fail(batch, TerminalDeliveryError("not authorised"), 0.0)
    assert len(delivery.next_undeliverable(0.0)) == 20
    delivery.dead_lettered()
    assert not delivery.is_paused
    third = delivery.next_batch(0.0)
    assert third is not None
    delivery.fail(third, TerminalDeliveryError("not authorised"), 0.0)
    assert delivery.is_paused
    assert (delivery.last_error or "").startswith("not authorised (refused 25 times in a row")
    assert delivery.next_undeliverable(0.0) == []
    assert delivery.next_batch(10.0) is None, "it is to be connected again, after a pause"
    assert delivery.wants_connect(10.0)
    delivery.connect_succeeded(LIMITS)
    again = delivery.next_batch(10.0)
    assert sequences(again) == list(range(20, 25)), "what was refused comes first"
    assert again is not None
    delivery.settle(again, [], 10.0)
    assert not delivery.is_paused
    following = delivery.next_batch(10.0)
    assert following is not None
    delivery.settle(following, [Failure(0, TerminalDeliveryError("too large"))], 10.0)
    assert len(delivery.next_undeliverable(10.0)) == 1, "one record that is refused is its own fault"


def test_a_destination_that_refuses_everything_waits_and_others_go_on() -> None:
    delivery = make_delivery(max_refusals=3, max_retries=1, batch_records=4)
    refused = msgspec.structs.replace(make_route("a"), destination="revoked", lane=("revoked", "a"))
    records = [make_record(refused, number) for number in range(10)]
    assert delivery.offer(records, sum(record.size_bytes for record in records), 0.0, cases_of(records)) is not None
    offer(delivery, 200, "b")
    delivery.set_flushing(is_flushing=True)
    now, given_up = 0.0, 0
    for _ in range(200):
        now += 1.0
        while (batch := delivery.next_batch(now)) is not None:
            bad = [index for index, record in enumerate(batch.records) if record.destination == "revoked"]
            delivery.settle(batch, [Failure(index, TerminalDeliveryError("denied"), is_local=True) for index in bad], now)
        if delivery.wants_connect(now):
            delivery.connect_succeeded(LIMITS)
        if delivery.next_undeliverable(now):
            given_up += len(delivery.dead_lettered())
    assert given_up == 3
    assert delivery.is_paused
    assert delivery.books.confirmed == 200
    assert delivery.books.queued == 7


def test_metrics_are_counted_by_payload_case() -> None:
    delivery = make_delivery()
    offer(delivery, 10)
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [Failure(0, TransientDeliveryError("x")), Failure(1, TerminalDeliveryError("y"))], 0.0)
    delivery.next_undeliverable(0.0)
    delivery.dead_lettered()
    assert delivery.by_case["confirmed"] == {"trade": 8}
    assert delivery.by_case["retried"] == {"trade": 1}
    assert delivery.by_case["dead_lettered"] == {"trade": 1}


def test_a_long_queue_behind_one_lane_is_looked_through_in_turns_and_nothing_in_it_is_overlooked() -> None:
    limits = msgspec.structs.replace(LIMITS, concurrent_sends=2)
    delivery = make_delivery(limits, queue_bytes=100_000_000)
    offer(delivery, 10)
    first = delivery.next_batch(0.0)
    assert sequences(first) == list(range(10))
    offer(delivery, 50_000, first=10)
    offer(delivery, 10, "b")
    turns = 0
    while (batch := delivery.next_batch(0.0)) is None:
        assert delivery.deadline(0.0) == 0.0, "nobody would ask again"
        turns += 1
    assert turns > 10, "the event loop has no turn"
    assert {record.route.key for record in batch.records} == {make_route("b").key}
    assert first is not None
    delivery.settle(first, [], 0.0)
    assert sequences(delivery.next_batch(0.0)) == list(range(10, 20))
