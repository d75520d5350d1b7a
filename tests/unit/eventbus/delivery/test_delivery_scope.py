"""How far a failure reaches: one lane, or the bus; and what a bus without order may do."""

from __future__ import annotations

from tardis_machine.errors import TransientDeliveryError
from tardis_machine.eventbus.contract import Failure, Limits
from tardis_machine.eventbus.delivery import Delivery
from tardis_machine.eventbus.delivery.in_flight import Batch
from tardis_machine.eventbus.policy import Policy
from tests.unit.eventbus.events import cases_of, is_balanced, make_record, make_route

POLICY = Policy(batch_records=4, batch_bytes=10_000, batch_delay_s=0.0, queue_bytes=1_000_000, backoff_base_s=1.0)
SLOW_DOWN = TransientDeliveryError("slow down")


def make_delivery(limits: Limits) -> Delivery:
    delivery = Delivery(POLICY, limits, lambda: 1.0)
    assert delivery.wants_connect(0.0)
    delivery.connect_succeeded(limits)
    return delivery


def offer(delivery: Delivery, *lanes: str) -> None:
    records = [make_record(make_route(lane), sequence) for sequence, lane in enumerate(lanes)]
    delivery.offer(records, sum(record.size_bytes for record in records), 0.0, cases_of(records))


def lanes_of(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [record.key for record in batch.records]


def test_a_local_failure_of_a_whole_batch_holds_up_its_lanes_and_nothing_else() -> None:
    limits = Limits(4, 10_000, 10_000, keeps_order_in_batch=False, concurrent_sends=2)
    delivery = make_delivery(limits)
    offer(delivery, "a")
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [Failure(0, SLOW_DOWN, is_local=True)], 0.0)
    assert delivery.connected
    assert delivery.failures == 0
    offer(delivery, "a", "b", "c")
    assert lanes_of(delivery.next_batch(0.1)) == ["b", "c"]
    assert delivery.next_batch(0.9) is None
    assert lanes_of(delivery.next_batch(1.1)) == ["a"]
    assert is_balanced(delivery.books)


def test_any_other_failure_of_a_whole_batch_is_the_bus_s() -> None:
    delivery = make_delivery(Limits(4, 10_000, 10_000))
    offer(delivery, "a", "b")
    batch = delivery.next_batch(0.0)
    assert batch is not None
    delivery.settle(batch, [Failure(0, SLOW_DOWN, is_local=False), Failure(1, SLOW_DOWN)], 0.0)
    assert not delivery.connected


def test_without_order_a_lane_is_in_many_sends_at_once_also_when_a_record_of_it_failed() -> None:
    limits = Limits(2, 10_000, 10_000, ordered=False, keeps_order_in_batch=False, concurrent_sends=3)
    delivery = make_delivery(limits)
    offer(delivery, *"aaaaaa")
    first, second, third = (delivery.next_batch(0.0) for _ in range(3))
    assert [lanes_of(batch) for batch in (first, second, third)] == [["a", "a"]] * 3
    assert first is not None
    delivery.settle(first, [Failure(0, SLOW_DOWN)], 0.0)
    offer(delivery, *"bb")
    assert lanes_of(delivery.next_batch(0.1)) == ["b", "b"], "the failure of one lane does not make sends go one by one"
    assert is_balanced(delivery.books)
