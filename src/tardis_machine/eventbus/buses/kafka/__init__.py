"""The Kafka bus: confluent-kafka (librdkafka), acknowledged and idempotent.

librdkafka sends again for as long as it takes, in order; when it gets nowhere within the delivery time-out, everything that it still
holds is taken back, and a new producer starts. So a record that may pass never fails by itself, and none overtakes another. Records
are handed over on the event loop, in slices: a thread would hold the interpreter's lock all the same, and a report of delivery takes
that lock for each record, so that a thread that waits for reports starves beside a busy loop.

Invariant: when `send` ends, however it ends, librdkafka holds nothing of its batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import DeliveryError, MissingExtraError, TerminalDeliveryError, TransientDeliveryError
from ....settings import Option, ValueParser, duration, hosts, integer, pairs, path, switch, text, url
from ...contract import Danger, Failure, Limits, Record
from ...options import admitted_payloads, common_bus_options
from ...routing import Routing
from .cluster import PATIENCE_S, Asking, Cluster, is_terminal
from .producer_batch import ProducerBatch, ProducerClient
from .schema_registry import SchemaRegistry, encode_frame
from .settings import TOPIC, TOPIC_TAKES, to_producer_settings

if TYPE_CHECKING:
    import asyncio

    from confluent_kafka import KafkaError

__all__ = ["OPTIONS", "REQUIRED", "KafkaBus", "create_bus", "create_routing"]


def _read_topic(given: str) -> str:
    if not TOPIC.fullmatch(given):
        raise ValueError
    return given


def _option(name: str, help_: str, **fields: Any) -> Option:
    return Option(name=f"kafka-{name}", help=help_, group="kafka", **fields)


OPTIONS = (
    _option("brokers", "Addresses of brokers; some of them are enough", parse=hosts(9092)),
    _option("topic", "Base topic", parse=ValueParser(_read_topic, TOPIC_TAKES, "TOPIC")),
    _option("client-id", "Name of the client in the logs and quotas of the brokers", parse=text(), default="tardis-machine"),
    _option("acks", "Which replicas confirm a record: all in sync, or the leader alone", choices=("all", "1"), default="all"),
    _option(
        "idempotence", "Let the broker drop duplicates of retries", parse=switch, default_text="true, where --kafka-acks is all"
    ),
    _option("compression", "Compression of batches", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="lz4"),
    _option(
        "headers", "Whether records have headers, which halve the speed of the client", choices=("all", "none"), default="all"
    ),
    _option(
        "delivery-timeout",
        "How long to wait for a confirmation before reconnecting",
        parse=duration(1.0, 600.0),
        default=10.0,
    ),
    _option("ssl", "Use TLS; on as soon as one of the files below is given", parse=switch, default=False),
    _option("ssl-ca", "Certificates to trust, PEM; by default the system's", parse=path),
    _option("ssl-cert", "The client's certificate, PEM", parse=path),
    _option("ssl-key", "The client's private key, PEM", parse=path),
    _option("ssl-key-password", "Password of the private key", parse=text(), secret=True),
    _option(
        "sasl-mechanism",
        "How to log in",
        choices=("plain", "scram-256", "scram-512", "aws-msk-iam"),
        synonyms={"scram-sha-256": "scram-256", "scram-sha-512": "scram-512"},
    ),
    _option("sasl-username", "User", parse=text()),
    _option("sasl-password", "Password", parse=text(), secret=True),
    _option("aws-region", "Region of the MSK cluster, for aws-msk-iam", parse=text(), metavar="REGION"),
    _option("schema-registry-url", "Schema registry; values then have the Confluent header in front", parse=url("http", "https")),
    _option("schema-registry-username", "User of the schema registry", parse=text()),
    _option("schema-registry-password", "Password of the schema registry", parse=text(), secret=True),
    _option("schema-register", "Register the schema if the registry does not have it", parse=switch, default=True),
    _option("create-topics", "Create topics that are missing", parse=switch, default=False),
    _option("topic-partitions", "Partitions of topics that are created", parse=integer(1)),
    _option("topic-replication", "Replicas of topics that are created", parse=integer(1)),
    _option("option", "Any other setting of librdkafka", parse=pairs("="), repeated=True),
    *common_bus_options("kafka", destination="topic", max_batch_size=50_000, max_batch_delay_ms=50),
)
REQUIRED = ("kafka-brokers", "kafka-topic")

_BATCH_RECORDS = 1_000_000
# librdkafka copies a batch.
_BATCH_BYTES = 16 * 1024**2
# What librdkafka takes unless told, a little less than brokers do; and the least that it may be told.
_MESSAGE_BYTES = 1_000_000
_LEAST_MESSAGE_BYTES = 1000
# What a record takes on the wire beside key, value and headers: lengths, the batch's own head.
_FRAMING_BYTES = 512
# librdkafka tells nobody that it has something to report: it is asked, less often when nothing comes.
_POLL_S = 0.001
_SOON_S = 0.1
_SLOW_POLL_S = 0.02
_TAKE_BACK_S = 5.0


def create_bus(options: Mapping[str, Any]) -> KafkaBus:
    """The bus as its options say."""
    return KafkaBus(options)


def create_routing(options: Mapping[str, Any]) -> Routing:
    """Where its records go."""
    return Routing.from_options(options, options["topic"], headers=options["headers"] == "all", cloudevents="ce_")


class KafkaBus:
    """Produces to the topics of one cluster."""

    name = "kafka"

    def __init__(self, options: Mapping[str, Any]) -> None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            raise MissingExtraError("the Kafka bus", "kafka") from None
        self._cluster = Cluster(options)
        self._producer_settings = to_producer_settings(options)
        self._topics = _topics_of(options)
        self._new_topics = (options["topic_partitions"], options["topic_replication"]) if options["create_topics"] else None
        self._timeout_s: float = options["delivery_timeout"]
        self._registry: SchemaRegistry | None = None
        if options["schema_registry_url"]:
            self._registry = SchemaRegistry(
                options["schema_registry_url"],
                username=options["schema_registry_username"],
                password=options["schema_registry_password"],
                registers=options["schema_register"],
            )
        # In front of the values of each topic, once the registry has said so.
        self._frames: dict[str, bytes] = {}
        given_bytes = self._producer_settings.get("message.max.bytes")
        self._knows_limits = given_bytes is not None
        self.limits = self._to_limits(int(given_bytes or _MESSAGE_BYTES))
        self._client: ProducerClient | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def _to_limits(self, message_bytes: int) -> Limits:
        frame_bytes = 0 if self._registry is None else len(encode_frame(0))
        return Limits(
            batch_records=_BATCH_RECORDS,
            batch_bytes=_BATCH_BYTES,
            record_bytes=max(message_bytes - _FRAMING_BYTES - frame_bytes, 1),
            # The delivery time-out is for confirmations that do not come, this one for those that trickle.
            send_timeout_s=max(120.0, 3 * self._timeout_s),
        )

    async def connect(self) -> None:
        """Verifies the topics, learns what they take, and starts a producer where there is none."""
        import asyncio  # not at the top: `--help` reads this file for its options

        await asyncio.to_thread(self._verify)
        if self._registry is not None and not self._frames:
            self._frames = await self._registry.fetch_frames(self._topics)
        if self._client is None:
            self._client = await asyncio.to_thread(self._start_client)

    async def check(self) -> Sequence[str | Danger]:
        """Sentences for `doctor`."""
        import asyncio

        partitions = await asyncio.to_thread(self._verify)
        limit_bytes = self.limits.record_bytes
        sentences: list[str | Danger] = [
            f"topic {topic} can be written; it has {count} partition{'s' if count != 1 else ''} and accepts {limit_bytes} bytes a record"
            for topic, count in partitions.items()
        ]
        if self._registry is not None:
            await self._registry.fetch_frames(self._topics)
            sentences.append("the schema registry knows the schema of every topic")
        if self._producer_settings["acks"] != "all":
            says = "a record that the leader alone has is lost with it (--kafka-acks 1)"
            sentences.append(Danger(says, "set --kafka-acks all"))
        return [f"the cluster at {self._cluster.brokers} lets this client in", *sentences]

    def _verify(self) -> Mapping[str, int | None]:
        """Raises unless all topics are there and may be written; how many partitions they have."""
        with Asking(self._cluster) as asking:
            partitions = asking.describe_topics(self._topics, patience_s=0.0 if self._new_topics else PATIENCE_S)
            missing = [topic for topic, count in partitions.items() if count is None]
            if missing and self._new_topics is None:
                what = " and no topic ".join(missing)
                raise TerminalDeliveryError(
                    f"Kafka at {self._cluster.brokers} has no topic {what}, and --kafka-create-topics is off"
                )
            if missing and self._new_topics is not None:
                partitions |= asking.create_topics(missing, *self._new_topics)
            if not self._knows_limits:
                self._learn_limits(asking.message_bytes(self._topics))
        return partitions

    def _learn_limits(self, sizes: Sequence[int]) -> None:
        """From what the topics take, where that may be known."""
        self._knows_limits = True
        if sizes:
            self.limits = self._to_limits(min(sizes))
            self._producer_settings["message.max.bytes"] = max(_LEAST_MESSAGE_BYTES, *sizes)
            # A batch that is larger than what the smallest topic takes would be refused as a whole.
            self._producer_settings.setdefault("batch.size", min(_MESSAGE_BYTES, *sizes))

    def _start_client(self) -> ProducerClient:
        return self._cluster.start(lambda settings: ProducerClient({**settings, **self._producer_settings}))

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        """Hands the batch to librdkafka, and waits until it holds nothing of it."""
        import asyncio

        if self._client is None:
            self._client = await asyncio.to_thread(self._start_client)
        client = self._client
        producer_batch = ProducerBatch(batch, client, self._frames)
        try:
            for part in producer_batch.slices():
                producer_batch.hand_over(part)
                client.poll()
                if client.has_failed:
                    break
                await asyncio.sleep(0)
            await self._confirm(client)
            if len(client) or client.has_failed:
                await self._take_back(client)
                if len(client):
                    raise TransientDeliveryError("the Kafka client did not give back what it holds")
        except asyncio.CancelledError:
            await self._take_back(client)
            raise
        return await self._to_failures(producer_batch) if producer_batch.has_failures else ()

    async def _confirm(self, client: ProducerClient) -> None:
        """Returns when nothing is outstanding, something failed that may pass, or nothing was confirmed for too long."""
        import asyncio

        left, moved_at = len(client), time.monotonic()
        while left and not client.has_failed:
            still_s = time.monotonic() - moved_at
            if still_s >= self._timeout_s:
                return
            await asyncio.sleep(_POLL_S if still_s < _SOON_S else _SLOW_POLL_S)
            client.poll()
            if (now_left := len(client)) < left:
                left, moved_at = now_left, time.monotonic()

    async def _take_back(self, client: ProducerClient) -> None:
        """Ends a producer: what it has not sent never leaves, and of what it has sent no confirmation is awaited."""
        import asyncio

        self._client = None
        client.take_back()
        deadline = time.monotonic() + _TAKE_BACK_S
        while len(client) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            client.poll()
        closing = asyncio.create_task(asyncio.to_thread(client.close))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _to_failures(self, producer_batch: ProducerBatch) -> list[Failure]:
        import asyncio

        failed = producer_batch.failures()
        names = {error.name() for error in failed.values()}
        missing: set[str] = set()
        is_local = False
        if not all(is_terminal(name) for name in names):
            found = await asyncio.to_thread(self._cluster.find_topics, self._topics)
            missing = {topic for topic, count in found.items() if count is None}
            # The cluster answers, so it is a partition or two that do not work.
            is_local = bool(found)
        errors: dict[tuple[str, str], DeliveryError] = {}
        failures = []
        for index, error in sorted(failed.items()):
            topic, name = producer_batch.batch.routes[index].destination, error.name()
            if (topic, name) not in errors:
                errors[topic, name] = self._to_error(error, topic, is_missing=topic in missing)
            failures.append(Failure(index, errors[topic, name], is_local))
        return failures

    def _to_error(self, error: KafkaError, topic: str, *, is_missing: bool) -> DeliveryError:
        if is_missing:
            return TerminalDeliveryError(f"Kafka has no topic {topic}")
        name = error.name()
        if name in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            return TransientDeliveryError(f"Kafka confirmed nothing for {self._timeout_s:g} s of what goes to topic {topic}")
        sentence = self._cluster.redact(f"Kafka did not take a record for topic {topic}: {error.str()}")
        return TerminalDeliveryError(sentence) if is_terminal(name) else TransientDeliveryError(sentence)

    async def close(self) -> None:
        """Ends the producer."""
        import asyncio

        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)
        if self._closing:
            await asyncio.wait(self._closing)


def _topics_of(options: Mapping[str, Any]) -> list[str]:
    """All topics that a record may go to."""
    routing = options["routing"] or {}
    cases = admitted_payloads(options["include_payloads"])
    return list(dict.fromkeys(routing.get(case, options["topic"]) for case in cases))
