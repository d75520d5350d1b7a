"""A batch on its way into librdkafka: what it refuses at once is found again, and nothing else is. No broker is needed for that."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from tardis_machine.eventbus.buses.kafka.producer_batch import ProducerBatch, ProducerClient
from tardis_machine.eventbus.contract import Record
from tests.unit.eventbus.events import make_events, make_route, make_stream


@pytest.fixture
def client() -> Iterator[ProducerClient]:
    client = ProducerClient(
        {
            "bootstrap.servers": "127.0.0.1:9",
            "message.max.bytes": 2000,
            "delivery.report.only.error": True,
            "log_level": 0,
        }
    )
    yield client
    client.take_back()


@pytest.mark.parametrize("frames", [{}, {"base": b"frame"}], ids=["plain", "framed"])
@pytest.mark.parametrize("has_headers", [True, False], ids=["headers", "bare"])
def test_what_is_refused_at_once_is_found_by_its_place(
    client: ProducerClient, has_headers: bool, frames: dict[str, bytes]
) -> None:
    small, large = make_events(make_stream(), 1200, size=10), make_events(make_stream(), 3, size=4000)
    events = [large[0], *small[:700], large[1], *small[700:], large[2]]
    routes = [msgspec.structs.replace(make_route(lane), has_headers=has_headers) for lane in ("a", "b")]
    producer_batch = ProducerBatch([Record(routes[place % 2], event) for place, event in enumerate(events)], client, frames)
    for part in producer_batch.slices():
        producer_batch.hand_over(part)
    assert {place: error.name() for place, error in producer_batch.failures().items()} == dict.fromkeys(
        (0, 701, len(events) - 1), "MSG_SIZE_TOO_LARGE"
    )
    assert not client.has_failed
    # All others are there: it gives them back.
    client.take_back()
    deadline = time.monotonic() + 10
    while len(client.refused) < len(small) and time.monotonic() < deadline:
        client.producer.poll(0.1)
    prefix = frames.get("base", b"")
    assert [message.value() for _, message in client.refused] == [prefix + event.value for event in small]
