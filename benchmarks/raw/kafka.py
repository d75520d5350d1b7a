"""confluent-kafka with ready bytes: as durable as the bus is, success not reported, one flush at the end.

`produce` for each record: `produce_batch` knows no headers, and takes longer without them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer

from tardis_machine.eventbus.contract import Record

SLICE_RECORDS = 1000
EVENTS = 400_000
VARIANTS: Mapping[str, Mapping[str, Any]] = {"": {}, "no headers": {"headers": "none"}}
TARGETS = {"": 170_000, "no headers": 400_000}
EACH_ROUND = ("kafka",)


async def send_ready(keywords: Mapping[str, Any], records: Sequence[Record], begin: Callable[[], None]) -> None:
    """Returns when the broker has confirmed all."""
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": ",".join(keywords["brokers"]),
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
            "queue.buffering.max.messages": 0,
            "log_level": 0,
        }
    )
    send = _send_bare if keywords.get("headers") == "none" else _send_with_headers
    # One record, as it connects only for that, and learns of the topic.
    send(producer, records[:1])
    producer.flush(120)
    begin()
    for start in range(1, len(records), SLICE_RECORDS):
        send(producer, records[start : start + SLICE_RECORDS])
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not failures, failures[0]


def _send_with_headers(producer: Producer, records: Sequence[Record]) -> None:
    ready = {
        route: (route.destination, route.key.encode(), [*route.headers_before, ("eventId", b""), *route.headers_after])
        for route in {record.route for record in records}
    }
    for record in records:
        topic, key, headers = ready[record.route]
        headers[2] = ("eventId", record.event.event_id.hex())
        producer.produce(topic, record.event.value, key, -1, None, None, 0, headers)


def _send_bare(producer: Producer, records: Sequence[Record]) -> None:
    keys = {route: route.key.encode() for route in {record.route for record in records}}
    for record in records:
        producer.produce(record.route.destination, record.event.value, keys[record.route])
