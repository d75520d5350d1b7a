"""A bus with a real publisher before it and the lake's source behind it; and, for each bus, how its data is trimmed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.lakehouse.sources import Source, create_source
from tardis_machine.lakehouse.sources.kafka_reader import KafkaBusOptions, KafkaReader
from tardis_machine.lakehouse.sources.kinesis import KinesisOptions, KinesisReader
from tardis_machine.lakehouse.sources.nats import NatsOptions, NatsReader
from tardis_machine.lakehouse.sources.partitions import BlockingReader
from tardis_machine.lakehouse.sources.redis import RedisOptions, RedisReader
from tardis_machine.settings import from_keywords
from tests.contract.bus_under_test import BusUnderTest
from tests.contract.buses.kafka import KafkaUnderTest
from tests.contract.buses.kinesis import KinesisUnderTest
from tests.contract.buses.nats import NatsUnderTest
from tests.contract.buses.nats_peek import NatsPeek
from tests.contract.buses.redis import RedisUnderTest
from tests.contract.buses.sqs import StandardQueueUnderTest
from tests.spark.lake_under_test import trades

BUSES: dict[str, type[BusUnderTest]] = {
    bus.prefix: bus for bus in (KafkaUnderTest, RedisUnderTest, NatsUnderTest, KinesisUnderTest, StandardQueueUnderTest)
}
SHARED = {"kinesis": "kinesalite", "sqs": "elasticmq"}
"""Buses whose servers need not be killed, and the fixtures that have those servers."""
READERS: dict[str, Any] = {
    "kafka": lambda settings: KafkaReader(KafkaBusOptions.from_settings(settings, "kafka")),
    "redis": lambda settings: RedisReader(RedisOptions.from_settings(settings, "redis")),
    "nats": lambda settings: NatsReader(NatsOptions.from_settings(settings, "nats")),
    "kinesis": lambda settings: KinesisReader(KinesisOptions.from_settings(settings, "kinesis")),
}


class SourceUnderTest(AbstractContextManager["SourceUnderTest"]):
    """One bus, for one test."""

    def __init__(self, name: str, folder: Path, *servers: Any) -> None:
        """`servers` run already; without them the bus starts its own."""
        self.name = name
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.bus = BUSES[name](folder, *servers)
        self.values: list[bytes] = []
        """All that was published, in order."""
        self.aggregates = False
        """Whether Kinesis gets many events in a record."""
        self._sessions = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bus.close()

    @property
    def settings(self) -> Any:
        """As the command has them."""
        resolved = from_keywords({self.name: self.bus.keywords()}, {})
        return SimpleNamespace(
            for_bus=resolved.for_bus, landing_dir=self.folder / "landing", lake=None, lake_option={}, receivers=0
        )

    @property
    def source(self) -> Source:
        """As a job has it."""
        return create_source(self.name, self.settings)

    @contextmanager
    def reading(self) -> Iterator[BlockingReader]:
        """A reader that knows nothing of others."""
        reader = BlockingReader(READERS[self.name](self.settings))
        try:
            yield reader
        finally:
            reader.close()

    def publish(self, count: int) -> list[bytes]:
        """Publishes trades of their own kind, as a session does; returns their values."""
        self._sessions += 1
        encoder = BronzeEncoder(session_id=f"s{self._sessions}", origin="replay")
        events = encoder.encode([*trades(count, start=len(self.values))])
        asyncio.run(self._publish(events))
        values = [event.value for event in events]
        self.values += values
        return values

    async def _publish(self, events: Any) -> None:
        # Order for a key is another test's matter; with it, some buses take one record at a time.
        fast = {"order": "none", "aggregate": self.aggregates} if self.name == "kinesis" else {}
        plan = self.bus.plan(**{"include-payloads": "trade,-session_end"}, **fast)
        publisher = Publisher([plan], spool_dir=self.folder / "spool")
        await publisher.start()
        await publisher.publish(events)
        await publisher.close(60)

    def leave(self) -> None:
        """The broker is away, and keeps what it has."""
        if isinstance(self.bus, KafkaUnderTest):
            # Killed, it would forget that it had been trimmed.
            self.bus.cluster.proxy.refuse()
        else:
            self.bus.inject("gone")

    def come_back(self) -> None:
        if isinstance(self.bus, KafkaUnderTest):
            self.bus.cluster.proxy.heal()
        else:
            self.bus.heal()

    def trim(self, keep: int) -> None:
        """Removes all but the newest records, as retention does."""
        bus = self.bus
        if isinstance(bus, RedisUnderTest):
            bus.server.ask("XTRIM", "events", "MAXLEN", keep)
        elif isinstance(bus, NatsUnderTest):
            with NatsPeek(bus.server.port) as peek:
                assert peek.ask("STREAM.PURGE.MARKET", keep=keep)["success"]
        elif isinstance(bus, KinesisUnderTest):
            # The emulator keeps all for a day: the stream is made anew, which takes it all.
            assert keep == 0
            bus.server.call("DeleteStream", StreamName=bus.base)
            bus.server.wait_until_gone(bus.base)
            bus.server.create_stream(bus.base)
        elif isinstance(bus, KafkaUnderTest):
            _trim_kafka(bus, keep)


def _trim_kafka(bus: KafkaUnderTest, keep: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic = bus.keywords()["topic"]
    consumer = Consumer({"bootstrap.servers": bus.cluster.server.address, "group.id": "trim", "log_level": 0})
    partitions = bus.admin.list_topics(topic).topics[topic].partitions
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in partitions}
    consumer.close()
    # All trades have one key, and so one partition.
    ((partition, end),) = [(number, end) for number, end in ends.items() if end]
    for deleted in bus.admin.delete_records([TopicPartition(topic, partition, end - keep)]).values():
        deleted.result(10)


def digests(values: Iterator[bytes] | list[bytes]) -> list[str]:
    """Short names of values, sorted: what a failed comparison prints stays readable."""
    return sorted(hashlib.md5(value, usedforsecurity=False).hexdigest() for value in values)
