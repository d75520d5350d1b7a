"""The whole publisher through random faults and restarts: a bus that fails in every way, a real disk, several processes' lives."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from tardis_machine.bronze.event import Event, digest_of
from tardis_machine.errors import TransientDeliveryError
from tardis_machine.eventbus.contract import Failure, Limits, Record
from tests.unit.eventbus.events import make_events, make_stream
from tests.unit.eventbus.scripted_bus import LIMITS, ScriptedBus, make_publisher

SYMBOLS = [f"S{number}" for number in range(6)]


class FaultyBus(ScriptedBus):
    """Fails at random: before or after storing, in part, by never answering, by being away."""

    def __init__(self, random: Random, limits: Limits) -> None:
        super().__init__("faulty", limits)
        self.random = random
        self.is_well = False

    async def connect(self) -> None:
        if not self.is_well and self.random.random() < 0.3:
            raise TransientDeliveryError("connection refused")

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        if self.is_well:
            self.stored += batch
            return []
        await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.01]))
        fate = self.random.random()
        if fate < 0.05:
            raise TransientDeliveryError("connection lost")
        if fate < 0.1:
            self.stored += batch[: self.random.randrange(len(batch) + 1)]
            raise TransientDeliveryError("connection lost on the way")
        if fate < 0.13:
            self.stored += batch
            await asyncio.sleep(60)
        if fate < 0.16:
            raise RuntimeError("a fault of the client")
        failures = []
        blocked: set[tuple[str, str]] = set()
        for index, record in enumerate(batch):
            if record.route.lane in blocked or (fate < 0.4 and self.random.random() < 0.05):
                blocked.add(record.route.lane)
                failures.append(Failure(index, TransientDeliveryError("throttled")))
            else:
                self.stored.append(record)
        return failures


def assert_in_order(records: Sequence[Record]) -> None:
    last: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    seen: set[bytes] = set()
    for record in records:
        if record.event.event_id not in seen and record.route.payload_case == "trade":
            seen.add(record.event.event_id)
            lane = (record.event.stream.session_id, record.event.stream.symbol)
            assert record.event.sequence == last[lane] + 1, "a hole, or a lane overtaken"
            last[lane] = record.event.sequence


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_or_overtaken(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    limits = msgspec.structs.replace(LIMITS, send_timeout_s=0.2)
    if seed % 3 == 1:
        limits = msgspec.structs.replace(limits, concurrent_sends=4)
    if seed % 3 == 2:
        limits = msgspec.structs.replace(limits, concurrent_sends=3, keeps_order_in_batch=False)
    bus = FaultyBus(random, limits)
    options = {"max_batch_size": random.choice([20, 300]), "queue_max_bytes": 150_000, "max_retries": 1_000_000}
    mode = "always" if seed % 2 else "overflow"
    published: dict[str, list[Event]] = {}
    for life in range(4):
        publisher = make_publisher(tmp_path, bus, mode=mode, **options)
        await publisher.start()
        session = f"life-{life}"
        streams = [make_stream(symbol, session=session) for symbol in SYMBOLS]
        published[session] = []
        await publisher.session_start(session, source="tardis-machine/test", origin="replay", meta={})
        for round_number in range(60):
            events = [event for stream in streams for event in make_events(stream, 5, first=round_number * 5)]
            await publisher.publish(events)
            published[session] += events
            await asyncio.sleep(random.choice([0, 0.001, 0.005]))
        publisher.session_end(session)
        for receipt in await publisher.abort():
            assert receipt.lost == receipt.dropped == receipt.dead_lettered == 0
            assert receipt.published + receipt.carried == receipt.confirmed + receipt.spooled
    bus.is_well = True
    publisher = make_publisher(tmp_path, bus, mode=mode, **options)
    await publisher.start()
    (receipt,) = await publisher.close(30)
    assert receipt.is_complete
    assert {event.event_id for event in bus.events} == {event.event_id for events in published.values() for event in events}
    assert_in_order(bus.stored)
    ends = {end.session_id: end for end in bus.session_ends}
    assert set(ends) == set(published)
    for session, events in published.items():
        assert ends[session].complete
        assert sum(entry.count for entry in ends[session].entries) == len(events)
        digests = sum(int.from_bytes(entry.digest, "big") for entry in ends[session].entries) % 2**128
        assert digests == digest_of([event.event_id for event in events])
    assert not list((tmp_path / "spool" / "faulty").glob("*.spool"))
