"""Kafka as a source, through Spark's own connector.

Invariant: offsets of a partition are dense, so that a batch has as many records as its offsets say, unless some were removed before
they were read (retention): then Spark goes on behind them, and the writer of the batch counts what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..storage import Storage
from ..unread import count_records
from .contract import Source, SourceStream, lost_by_count
from .options import SourceOptions
from .records import ROW_BYTES, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...settings import Settings

__all__ = ["KafkaOptions", "KafkaSource", "create_source", "expected_rows", "to_records", "to_spark_options"]

_MAP = pa.map_(pa.string(), pa.string())
_LOGIN = "org.apache.kafka.common.security"
_MECHANISMS = {
    "plain": ("PLAIN", f"{_LOGIN}.plain.PlainLoginModule"),
    "scram-256": ("SCRAM-SHA-256", f"{_LOGIN}.scram.ScramLoginModule"),
    "scram-512": ("SCRAM-SHA-512", f"{_LOGIN}.scram.ScramLoginModule"),
}
# Of a jar that Amazon publishes (aws-msk-iam-auth), which has to lie beside the others.
_MSK = {
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}


class KafkaOptions(SourceOptions, frozen=True, kw_only=True):
    """The cluster, the topics, and who asks."""

    brokers: tuple[str, ...]
    topic: str
    routing: Mapping[str, str] | None = None
    client_id: str = "tardis-machine"
    ssl: bool = False
    ssl_ca: Path | None = None
    ssl_cert: Path | None = None
    ssl_key: Path | None = None
    ssl_key_password: str | None = None
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = None


def create_source(settings: Settings) -> KafkaSource:
    """The source as the settings of the Kafka bus say."""
    return KafkaSource(KafkaOptions.from_settings(settings, KafkaSource.name))


class KafkaSource(Source):
    """All topics that the bus writes to."""

    name = "kafka"

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options

    def identity(self) -> str:
        """The cluster and the topics."""
        return self._options.identity("brokers", "topic", "routing")

    def read_stream(self, spark: SparkSession, max_batch_bytes: int) -> SourceStream:
        """As the connector brings them."""
        options = to_spark_options(self._options)
        stream = spark.readStream.format("kafka").options(**options)
        stream = stream.option("maxOffsetsPerTrigger", max(max_batch_bytes // ROW_BYTES, 1))
        rows = stream.load().select("key", "value", "headers", "partition", "offset", "timestamp", "topic")
        return SourceStream(rows, to_records, lost_by_count(expected_rows))

    def count_left(self, checkpoints: Storage, progress: str, sources: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
        """Records up to the newest offsets, which the connector tells."""
        return count_records(expected_rows, sources)


def to_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the connector brings, in the columns of all sources: workers make them in half the time that Spark takes."""
    for rows in batches:
        partitions, offsets = (rows.column(name).cast(pa.string()) for name in ("partition", "offset"))
        columns = {
            "key": _to_text(rows.column("key")),
            "value": rows.column("value"),
            "headers": to_map(rows.column("headers")),
            "position": pc.binary_join_element_wise(partitions, offsets, ":"),
            "broker_timestamp": rows.column("timestamp"),
            "destination": rows.column("topic"),
        }
        yield pa.RecordBatch.from_arrays([columns[name].cast(SCHEMA.field(name).type) for name in SCHEMA.names], schema=SCHEMA)


def to_map(headers: pa.ListArray) -> pa.MapArray:
    """Headers as a map; of one that a record has twice the last counts."""
    items = headers.flatten()
    names, texts = items.field("key"), _to_text(items.field("value"))
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy()
    if _repeat(names, lengths):
        pairs = zip(names.to_pylist(), texts.to_pylist(), strict=True)
        maps = [dict(islice(pairs, length)) for length in lengths]
        return pa.array([None if gone else [*found.items()] for gone, found in zip(headers.is_null(), maps, strict=True)], _MAP)
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.MapArray.from_arrays(ends, names, texts, mask=headers.is_null() if headers.null_count else None)


def _repeat(names: pa.Array, lengths: np.ndarray) -> bool:
    """Whether some record has a name twice."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy()
    if len(codes) and len(codes) == lengths[0] * len(lengths) and (lengths == lengths[0]).all():
        # Nearly always all records have the same names, in the same order.
        rows = codes.reshape(len(lengths), -1)
        if (rows == rows[0]).all():
            return bool(len(set(rows[0].tolist())) < rows.shape[1])
    places = np.repeat(np.arange(len(lengths)), lengths) * max(len(encoded.dictionary), 1) + codes
    return len(np.unique(places)) < len(places)


def _to_text(values: pa.Array) -> pa.Array:
    # What other producers put there may be no text: it is kept as it is, as Spark does.
    return pc.cast(values, options=pc.CastOptions(pa.string(), allow_invalid_utf8=True))


def expected_rows(start: Mapping[str, Any], end: Mapping[str, Any]) -> int | None:
    """How many records lie between two offsets."""
    rows = 0
    for topic, offsets in end.items():
        before = start.get(topic, {})
        rows += sum(offset - before.get(partition, 0) for partition, offset in offsets.items())
    return rows


def to_spark_options(options: KafkaOptions) -> dict[str, str]:
    """The bus's options as the connector takes them."""
    topics = dict.fromkeys([options.topic, *(options.routing or {}).values()])
    encrypts = options.ssl or options.sasl_mechanism == "aws-msk-iam" or options.ssl_ca or options.ssl_cert
    client = {
        "bootstrap.servers": ",".join(options.brokers),
        "client.id": options.client_id,
        # Spark asks for that many at a time; with the client's own 500 that takes longer than reading them.
        "max.poll.records": "5000",
        "security.protocol": ("SASL_" if options.sasl_mechanism else "") + ("SSL" if encrypts else "PLAINTEXT"),
        **_login(options),
        **_certificates(options),
    }
    return {
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
        **{f"kafka.{name}": value for name, value in client.items()},
    }


def _login(options: KafkaOptions) -> dict[str, str]:
    mechanism = options.sasl_mechanism
    if mechanism is None:
        return {}
    if mechanism == "aws-msk-iam":
        return dict(_MSK)
    name, module = _MECHANISMS[mechanism]
    username, password = (_quoted(given or "") for given in (options.sasl_username, options.sasl_password))
    return {"sasl.mechanism": name, "sasl.jaas.config": f"{module} required username={username} password={password};"}


def _certificates(options: KafkaOptions) -> dict[str, str]:
    found: dict[str, str] = {}
    if options.ssl_ca:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": options.ssl_ca.read_text()}
    if options.ssl_cert and options.ssl_key:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": options.ssl_cert.read_text(),
            "ssl.keystore.key": options.ssl_key.read_text(),
        }
    if options.ssl_key_password:
        found["ssl.key.password"] = options.ssl_key_password
    return found


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
