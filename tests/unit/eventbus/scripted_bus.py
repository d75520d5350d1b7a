"""A bus in memory that does what a test tells it to, and the publisher around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tardis_machine.bronze.event import Event
from tardis_machine.errors import TransientDeliveryError
from tardis_machine.eventbus.contract import Failure, Limits, Record
from tardis_machine.eventbus.publisher import BusPlan, Publisher
from tardis_machine.eventbus.routing import Routing
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import SessionEnd

LIMITS = Limits(batch_records=1000, batch_bytes=10 * 1024**2, record_bytes=1024**2)
OPTIONS: dict[str, Any] = {
    "max_batch_size": 500,
    "max_batch_delay_ms": 5,
    "queue_max_bytes": 64 * 1024**2,
    "overflow": "spool",
    "block_timeout": 5.0,
    "max_retries": 10,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 50,
    "oversize": "dead-letter",
    "max_refusals": 1000,
    "dead_letter_max_bytes": 1 << 30,
}


class ScriptedBus:
    """Stores what it is sent. `fault` is asked before each send, and may raise, wait or name failures."""

    def __init__(self, name: str = "scripted", limits: Limits = LIMITS) -> None:
        self.name = name
        self.limits = limits
        self.stored: list[Record] = []
        self.batches: list[int] = []
        self.connects = 0
        self.closed = 0
        self.is_down = False
        self.hangs = False
        self.connect_error: Exception | None = None
        self.fault: Callable[[Sequence[Record]], Sequence[Failure]] = lambda _: []
        self.delay_s = 0.0

    async def connect(self) -> None:
        self.connects += 1
        if self.connect_error is not None:
            raise self.connect_error
        if self.is_down:
            raise TransientDeliveryError("connection refused")

    async def check(self) -> Sequence[str]:
        return []

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        await asyncio.sleep(self.delay_s)
        while self.hangs:
            await asyncio.sleep(0.01)
        if self.is_down:
            raise TransientDeliveryError("connection lost")
        failures = self.fault(batch)
        failed = {failure.index for failure in failures}
        self.stored += [record for index, record in enumerate(batch) if index not in failed]
        self.batches.append(len(batch))
        return failures

    async def close(self) -> None:
        self.closed += 1

    @property
    def events(self) -> list[Event]:
        """What was stored but for the publisher's own, each once, in the order of its first arrival."""
        events = {record.event.event_id: record.event for record in reversed(self.stored)}
        first = dict.fromkeys(record.event.event_id for record in self.stored)
        return [events[key] for key in first if events[key].stream.payload_case not in ("session_end", "error")]

    def of_case(self, case: str) -> list[Event]:
        return [record.event for record in self.stored if record.route.payload_case == case]

    @property
    def session_ends(self) -> list[SessionEnd]:
        from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent

        return [NormalizedEvent.FromString(event.value).session_end for event in self.of_case("session_end")]


def make_plan(bus: ScriptedBus, folder: Path, routing: Routing | None = None, **options: Any) -> BusPlan:
    dead_letters = {"dead_letter_dir": folder / "dead-letters" / bus.name}
    return BusPlan(bus, routing or Routing(destination="base"), {**OPTIONS, **dead_letters, **options})


def make_publisher(
    folder: Path, *buses: ScriptedBus, mode: str = "overflow", spool_max_bytes: int = 1 << 30, **options: Any
) -> Publisher:
    plans = [make_plan(bus, folder, **options) for bus in buses]
    return Publisher(plans, spool_dir=folder / "spool", spool_mode=mode, spool_max_bytes=spool_max_bytes)  # type: ignore[arg-type]


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
