"""Kafka read by executors themselves, for `tardis-events`; jobs of the lake read it through Spark's connector, which needs its jars.

Invariant: a partition is one of a topic, a place in it the offset of the record that is read next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ...errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from ...eventbus.buses.kafka.settings import to_client_settings
from .options import SourceOptions
from .partitions import OffsetRange, Offsets, PartitionOffset, PartitionReader
from .records import Columns

if TYPE_CHECKING:
    from ...settings import Settings

__all__ = ["KafkaBusOptions", "KafkaReader"]

_STEP = 5000
"""Records that are asked for at a time."""
_RANGE = 200_000
"""Records of one partition that one task reads."""
_WAIT_S = 10.0
_PATIENCE_S = 0.1
_GONE = frozenset(
    [
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    ]
)


class KafkaBusOptions(SourceOptions, frozen=True, kw_only=True):
    """All options of the bus, as its client takes them."""

    bus: Mapping[str, Any]

    @classmethod
    def from_settings(cls, settings: Settings, bus: str) -> Self:
        """Those of the Kafka bus."""
        return cls(bus=settings.for_bus(bus))


class KafkaReader(PartitionReader[KafkaBusOptions]):
    """Reads topics with a consumer that belongs to no group."""

    name = "kafka"

    def __init__(self, options: KafkaBusOptions) -> None:
        super().__init__(options)
        self._topics = list(dict.fromkeys([options.bus["topic"], *(options.bus["routing"] or {}).values()]))
        self._settings = {
            **to_client_settings(options.bus),
            "group.id": f"{options.bus['client_id']}-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        self._consumer: Consumer | None = None
        self._at: tuple[str, str] | None = None
        """The partition and the place that the consumer is at."""

    async def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """Each partition to its end, or as far as its share of the limit goes."""
        return await asyncio.to_thread(self._advance, start, limit)

    def _advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        try:
            consumer = self._open()
            found = [topic for name in self._topics for topic in [consumer.list_topics(name, _WAIT_S).topics[name]]]
            for topic in found:
                if topic.error is not None:
                    raise KafkaException(topic.error)
            partitions = [(topic.topic, number) for topic in found for number in sorted(topic.partitions)]
            share = max(limit // max(len(partitions), 1), 1)
            offsets = dict(start)
            for topic, number in partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), _WAIT_S)
                key = f"{topic}/{number}"
                offsets[key] = _next_offset(start.get(key), low, high, share)
        except KafkaException as error:
            raise _problem(error.args[0]) from error
        return offsets

    async def split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
        """Ranges of some offsets."""
        is_same = start is not None and start.torn == end.torn
        first = start.read if start is not None and is_same else end.began
        return [
            OffsetRange(partition, str(after), str(min(after + _RANGE, end.read))) for after in range(first, end.read, _RANGE)
        ]

    async def fetch(self, part: OffsetRange, after: str) -> tuple[Columns, str]:
        """The next records."""
        return await asyncio.to_thread(self._fetch, part, after)

    def _fetch(self, part: OffsetRange, after: str) -> tuple[Columns, str]:
        records, until = Columns(), int(part.until)
        topic, _, number = part.partition.rpartition("/")
        try:
            consumer = self._open()
            if self._at != (part.partition, after):
                consumer.assign([TopicPartition(topic, int(number), int(after))])
            place, deadline = int(after), time.monotonic() + _WAIT_S
            while place < until and not records.positions:
                # It waits until it has that many.
                messages = consumer.consume(min(_STEP, until - place), _PATIENCE_S)
                if not messages and time.monotonic() > deadline:
                    _, high = consumer.get_watermark_offsets(TopicPartition(topic, int(number)), _WAIT_S)
                    if high >= until:
                        raise TransientDeliveryError(f"Kafka gave nothing of {part.partition} within {_WAIT_S:g} s")
                    # The topic was made anew since.
                    place = until
                for message in messages:
                    place = max(place, _take(message, until, records))
        except KafkaException as error:
            raise _problem(error.args[0]) from error
        self._at = (part.partition, str(place))
        return records, str(place)

    async def close(self) -> None:
        """Ends all connections."""
        consumer, self._consumer, self._at = self._consumer, None, None
        if consumer is not None:
            await asyncio.to_thread(consumer.close)

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        return self._consumer


def _next_offset(before: PartitionOffset | None, low: int, high: int, share: int) -> PartitionOffset:
    torn = 0 if before is None else before.torn
    if before is None or before.read > high:
        # Made anew under its name: it is read from its beginning.
        torn += before is not None
        before = PartitionOffset(at=str(low), read=low, began=low, torn=torn)
    # What was removed before it was read costs no share.
    read = min(max(before.read, low) + share, high) if high > before.read else before.read
    return PartitionOffset(at=str(read), read=read, began=before.began, torn=torn)


def _take(message: Any, until: int, records: Columns) -> int:
    """Adds a record where it is one; the place behind it."""
    error, offset = message.error(), int(message.offset())
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    # What is missing before the end are marks of transactions, or was removed.
    if error is not None or offset >= until:
        return min(offset, until)
    _add(records, message)
    return offset + 1


def _add(records: Columns, message: Any) -> None:
    key = message.key()
    headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}
    records.add(
        None if key is None else key.decode(errors="replace"),
        message.value(),
        [*headers.items()],
        position=f"{message.partition()}:{message.offset()}",
        time_us=max(message.timestamp()[1], 0) * 1000,
        destination=message.topic(),
    )


def _problem(error: KafkaError) -> DeliveryError:
    kind = TerminalDeliveryError if error.fatal() or error.code() in _GONE else TransientDeliveryError
    return kind(f"Kafka can't be read: {error.str()}")
