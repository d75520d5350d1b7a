"""The Kafka bus in front of a real broker, with a faulty network between them, read back by a consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.contract.bus_under_test import BusUnderTest, Delivered, Fault, Misconfiguration
from tests.servers.kafka import KafkaServer
from tests.servers.process import free_port
from tests.servers.proxy import FaultProxy

DELIVERY_TIMEOUT_S = 3.0


class Cluster(NamedTuple):
    """A broker, and the network before it."""

    server: KafkaServer
    proxy: FaultProxy


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Clients that come through the proxy stay behind it."""
    with FaultProxy(free_port()) as proxy:
        server = KafkaServer(folder)
        server.add_listener("PROXIED", port=proxy.target_port, advertised_port=proxy.port)
        with server:
            yield Cluster(server, proxy)


class KafkaUnderTest(BusUnderTest):
    """With a cluster of its own, unless given one; topics are its own in any case."""

    prefix = "kafka"
    faults: ClassVar[Sequence[Fault]] = ("gone", "restart", "hang", "cut", "partial")
    cannot: ClassVar[dict[Fault, str]] = {}

    def __init__(self, folder: Path, cluster: Cluster | None = None) -> None:
        super().__init__(folder)
        self._stack = ExitStack()
        self.cluster = cluster or self._stack.enter_context(running_cluster(folder / "kafka"))
        self.server = self.cluster.server
        self._suffix = uuid4().hex[:8]
        self.admin = AdminClient({"bootstrap.servers": self.server.address, "log_level": 0})
        self._topics: list[str] = []
        self._base = self.new_destination("events")
        self._fault: Fault | None = None
        self._hung_at = 0.0

    def keywords(self) -> dict[str, Any]:
        return {**self.direct_keywords(), "brokers": [self.cluster.proxy.address], "delivery-timeout": DELIVERY_TIMEOUT_S}

    def direct_keywords(self) -> dict[str, Any]:
        return {"brokers": [self.server.address], "topic": self._base}

    def destination_option(self) -> tuple[str, str]:
        return "topic-routing", self._base

    def new_destination(self, name: str) -> str:
        topic = f"{name}-{self._suffix}"
        self.admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
        while topic not in self.admin.list_topics(timeout=30).topics:
            time.sleep(0.05)
        self._topics.append(topic)
        return topic

    def read_back(self) -> list[Delivered]:
        return list(self.each_record())

    def each_record(self) -> Iterator[Delivered]:
        for topic in self._topics:
            yield from read_topic(self.server.address, topic)

    def inject(self, fault: Fault) -> None:
        self._fault = fault
        server, proxy = self.cluster
        if fault == "gone":
            server.kill()
        elif fault == "restart":
            server.kill()
            server.start()
        elif fault == "hang":
            server.pause()
            self._hung_at = time.monotonic()
        elif fault == "cut":
            proxy.reset()
        else:
            self.set_topic(self._topics[-1], "max.message.bytes", "64")

    def heal(self) -> None:
        server, _ = self.cluster
        if self._fault == "gone":
            server.start()
        elif self._fault == "hang":
            time.sleep(max(0.0, self._hung_at + DELIVERY_TIMEOUT_S + 1 - time.monotonic()))
            server.resume()
        elif self._fault == "partial":
            self.set_topic(self._topics[-1], "max.message.bytes", "1048588")
        self._fault = None

    def set_topic(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def misconfigurations(self) -> Sequence[Misconfiguration]:
        return [
            Misconfiguration({"topic": "nowhere"}, "has no topic nowhere, and --kafka-create-topics is off"),
            Misconfiguration({"topic-routing": "trade:no-trades"}, "has no topic no-trades"),
            Misconfiguration({"topic": "a topic"}, "expected a topic's name"),
            Misconfiguration({"dead-letter-topic": "no-letters"}, "has no topic no-letters"),
            Misconfiguration({"dead-letter-topic": "a/b"}, "--kafka-dead-letter-topic: expected .*, got 'a/b'"),
            Misconfiguration({"topic-routing": "trade:a/b"}, "--kafka-topic-routing: expected .*, got 'a/b'"),
            Misconfiguration(
                {"headers": "none", "static-headers": "desk:delta"},
                "--kafka-static-headers has no effect",
            ),
            Misconfiguration({"create-topics": True}, "--kafka-topic-partitions is required by --kafka-create-topics"),
            Misconfiguration({"acks": "0"}, "expected all or 1"),
            Misconfiguration({"acks": "1", "idempotence": True}, "--kafka-idempotence needs --kafka-acks all"),
            Misconfiguration({"sasl-mechanism": "plain", "sasl-username": "u"}, "--kafka-sasl-password is required by"),
            Misconfiguration({"ssl-ca": self.folder / "ca.pem"}, "--kafka-ssl-ca: .* is not a file"),
            Misconfiguration({"option": {"no.such": "1"}}, 'No such configuration property: "no.such"'),
            Misconfiguration({"option": {"linger.ms": "soon"}}, "--kafka-option linger.ms=soon"),
            Misconfiguration({"option": {"message.timeout.ms": "5"}}, "message.timeout.ms can't be set: .* overtaken"),
        ]

    def close(self) -> None:
        if self._fault is not None:
            # Of a test that failed: the next one has the same cluster.
            self.heal()
        self.cluster.proxy.heal()
        self._stack.close()


def read_topic(brokers: str, topic: str) -> Iterator[Delivered]:
    """All records that a topic has now, those of a partition in order."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "reader", "enable.auto.commit": False, "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in partitions}
        consumer.assign([TopicPartition(topic, number, 0) for number, end in ends.items() if end])
        left = sum(ends.values())
        while left:
            for message in consumer.consume(10_000, timeout=1.0):
                assert message.error() is None, message.error()
                if message.offset() >= ends[message.partition()]:
                    continue  # it came meanwhile
                headers = {name: value.decode() for name, value in message.headers() or []}
                yield Delivered(topic, message.key().decode(), headers, message.value())
                left -= 1
    finally:
        consumer.close()
