"""What sources do without a server: offsets, counts, options, names of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tardis_machine.errors import LakeError, SettingsError, TransientDeliveryError
from tardis_machine.lakehouse.sources import SOURCES, create_source, files, kafka, sqs
from tardis_machine.lakehouse.sources.kafka import KafkaOptions
from tardis_machine.lakehouse.sources.partitions import (
    PartitionOffset,
    call_patiently,
    count_between,
    from_json,
    reader_for,
    to_json,
    within,
)
from tardis_machine.lakehouse.sources.records import DDL, SCHEMA, Columns
from tardis_machine.lakehouse.sources.redis import RedisOptions, RedisReader
from tardis_machine.lakehouse.storage import Folder, open_storage
from tardis_machine.settings import Settings, from_keywords


def offset(**offsets: PartitionOffset) -> dict[str, Any]:
    return to_json(offsets)


def test_a_batch_has_as_many_rows_as_its_offsets_say() -> None:
    first = offset(a=PartitionOffset(at="5", read=5, began=2))
    second = offset(a=PartitionOffset(at="9", read=9, began=2), b=PartitionOffset(at="3", read=3, began=0))
    assert count_between({}, first) == 3
    assert count_between(first, second) == 4 + 3
    assert count_between(second, second) == 0
    assert to_json(from_json(second)) == second


def test_nobody_counts_across_a_partition_that_was_made_anew() -> None:
    before = offset(a=PartitionOffset(at="9", read=9, began=0))
    torn = offset(a=PartitionOffset(at="2", read=2, began=0, torn=1))
    later = offset(a=PartitionOffset(at="4", read=4, began=0, torn=1))
    assert count_between(before, torn) is None
    assert count_between(torn, later) == 2


def test_a_job_that_ends_does_not_go_past_what_was_there_when_it_began() -> None:
    target = {"a": PartitionOffset(at="5", read=5, began=0)}
    further = {"a": PartitionOffset(at="7", read=7, began=0), "new": PartitionOffset(at="1", read=1, began=0)}
    assert within(further, target, RedisReader.order) == target
    assert within(further, None, RedisReader.order) == further


def test_columns_are_those_that_bronze_takes() -> None:
    records = Columns()
    records.add(None, b"\0", [("a", "1"), ("b", "2")], position="p", time_us=1, destination="d")
    records.add("k", None, (), position="q", time_us=2, destination="d")
    batch = records.to_batch()
    assert batch.schema == SCHEMA
    assert (
        tuple(batch.schema.names)
        == tuple(SCHEMA.names)
        == tuple(word.split()[0] for word in DDL.replace("STRING, STRING", "").split(", "))
    )
    assert batch.column("headers").to_pylist() == [[("a", "1"), ("b", "2")], []]


def test_checkpoints_keep_the_names_that_offsets_have() -> None:
    """Those of earlier releases are read, so these names stay."""
    whole = {"at": "5", "read": 5, "began": 2, "closed": True, "torn": 1}
    assert from_json({"a": whole}) == {"a": PartitionOffset(at="5", read=5, began=2, closed=True, torn=1)}
    assert to_json(from_json({"a": whole})) == {"a": whole}
    assert to_json({"a": PartitionOffset(at="5", read=5, began=2)}) == {"a": {"at": "5", "read": 5, "began": 2}}


def redis_options(**keywords: Any) -> RedisOptions:
    return RedisOptions.from_settings(from_keywords({"redis": {"stream": "events", **keywords}}, {}), "redis")


def test_an_identity_has_no_password() -> None:
    options = redis_options(url="redis://user:hunter2@host", password="hunter2")
    assert "hunter2" not in options.identity("url", "stream")
    assert "hunter2" not in repr(options)
    assert options.identity("url", "stream") != redis_options(url="redis://user:hunter2@host", stream="other").identity(
        "url", "stream"
    )


BUSES: dict[str, Any] = {
    "file": {"dir": "/bus"},
    "kafka": {"brokers": ["a:9092", "b:9092"], "topic": "events", "topic-routing": "trade:trades"},
    "redis": {"url": "redis://user:hunter2@host/3", "stream": "events"},
    "nats": {"servers": ["nats://a:4222"], "subject": "events", "password": "hunter2", "user": "u"},
    "kinesis": {"stream": "events", "region": "eu-west-1", "secret-access-key": "hunter2", "access-key-id": "hunter2"},
    "sqs": {"queue-url": "http://host/1/events", "queue-routing": "trade:trades"},
}


def settings_of(source: str) -> Settings:
    bus = "file" if source == "files" else source
    return from_keywords({bus: BUSES[bus]}, {})


class LakeSettings:
    """The settings of a bus, and those of a lake."""

    def __init__(self, source: str, lake: str) -> None:
        self.for_bus = settings_of(source).for_bus
        self.lake, self.landing_dir, self.lake_option, self.receivers = lake, None, {}, 0


def test_a_checkpoint_is_found_again_by_the_next_release() -> None:
    """Its name is made of these."""
    identities = {name: create_source(name, LakeSettings(name, "/lake")).identity() for name in SOURCES}  # type: ignore[arg-type]
    assert identities == {
        "files": "/bus",
        "kafka": """{"brokers": "('a:9092', 'b:9092')", "routing": "{'trade': 'trades'}", "topic": "events"}""",
        "redis": '{"port": "6379", "stream": "events", "url": "redis://user:***@host/3"}',
        "nats": """{"servers": "('nats://a:4222',)", "subject": "events"}""",
        "kinesis": '{"region": "eu-west-1", "stream": "events"}',
        "sqs": """{"queue_url": "http://host/1/events", "routing": "{'trade': 'trades'}"}""",
    }


def test_equal_options_share_a_reader() -> None:
    first = reader_for(RedisReader, redis_options(host="a"))
    assert reader_for(RedisReader, redis_options(host="a")) is first
    assert reader_for(RedisReader, redis_options(host="b")) is not first


async def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.lakehouse.sources.partitions.PATIENCE_S", 0.2)
    calls = []

    async def fail_twice() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise TransientDeliveryError("away")
        return "here"

    async def fail() -> None:
        raise TransientDeliveryError("away")

    async def reset() -> None:
        calls.append(1)

    assert await call_patiently("redis", fail_twice, reset) == "here"
    with pytest.raises(LakeError, match=r"the redis source gave up after 0\.2 s: away"):
        await call_patiently("redis", fail, reset)


def test_every_source_is_named_as_its_column_has_it_and_others_are_refused() -> None:
    for name in SOURCES:
        assert create_source(name, LakeSettings(name, "/lake")).name == name  # type: ignore[arg-type]
    with pytest.raises(LakeError, match=r"there is no source 'rabbit'; choose one of files, kafka, redis, .* with --from"):
        create_source("rabbit", settings_of("kafka"))
    with pytest.raises(SettingsError, match="the file bus is off; it needs --file-dir"):
        create_source("files", settings_of("kafka"))


def kafka_options(**keywords: Any) -> dict[str, str]:
    given = {"brokers": ["a:9092", "b:9092"], "topic": "events", **keywords}
    return kafka.to_spark_options(KafkaOptions.from_settings(from_keywords({"kafka": given}, {}), "kafka"))


def test_kafka_is_read_with_the_settings_it_is_written_with(tmp_path: Path) -> None:
    plain = kafka_options(**{"topic-routing": "trade:trades"})
    assert (plain["kafka.bootstrap.servers"], plain["subscribe"]) == ("a:9092,b:9092", "events,trades")
    assert (plain["kafka.security.protocol"], plain["startingOffsets"]) == ("PLAINTEXT", "earliest")

    login = kafka_options(**{"sasl-mechanism": "scram-512", "sasl-username": "u", "sasl-password": 'a"b\\c', "ssl": True})
    assert login["kafka.security.protocol"] == "SASL_SSL"
    assert login["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert login["kafka.sasl.jaas.config"].endswith('ScramLoginModule required username="u" password="a\\"b\\\\c";')

    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"PEM {name}")
    files = {f"ssl-{name}": tmp_path / name for name in ("ca", "cert", "key")}
    encrypted = kafka_options(**files)
    assert encrypted["kafka.security.protocol"] == "SSL"
    assert encrypted["kafka.ssl.truststore.certificates"] == "PEM ca"
    assert (encrypted["kafka.ssl.keystore.certificate.chain"], encrypted["kafka.ssl.keystore.key"]) == ("PEM cert", "PEM key")


def test_offsets_of_kafka_are_counted_over_all_partitions() -> None:
    start = {"events": {"0": 10, "1": 5}}
    end = {"events": {"0": 12, "1": 5, "2": 4}, "trades": {"0": 1}}
    assert kafka.expected_rows(start, end) == 2 + 4 + 1


def test_messages_of_sqs_wait_in_the_lake_unless_a_folder_is_named() -> None:
    assert sqs.find_landing("/srv/lake", {}, None) == Folder("/srv/lake/_landing")
    options = {"region": "eu-central-1"}
    assert sqs.find_landing("s3://bucket/lake", options, None) == open_storage("s3a://bucket/lake/_landing", options)
    assert sqs.find_landing("s3a://bucket/lake", options, Path("/srv/wait")) == Folder("/srv/wait")


def test_headers_of_kafka_become_maps() -> None:
    kind = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))

    def header(key: str, value: bytes | None) -> dict[str, object]:
        return {"key": key, "value": value}

    plain = [[header("a", b"1"), header("b", None)], None, [], [header("a", b"2")]]
    expected = [[("a", "1"), ("b", None)], None, [], [("a", "2")]]
    assert kafka.to_map(pa.array(plain, kind)).to_pylist() == expected
    assert kafka.to_map(pa.array(plain, kind).slice(2)).to_pylist() == expected[2:]
    # One that comes twice counts once, with its last value.
    twice = [*plain, [header("a", b"1"), header("b", b"2"), header("a", b"3")]]
    assert kafka.to_map(pa.array(twice, kind)).to_pylist() == [*expected, [("a", "3"), ("b", "2")]]
    # Also where all have the same names, and where they have as many, in another order.
    assert kafka.to_map(pa.array(twice[-1:] * 3, kind)).to_pylist() == [[("a", "3"), ("b", "2")]] * 3
    assert kafka.to_map(pa.array(plain[:1] * 3, kind)).to_pylist() == expected[:1] * 3
    turned = [plain[0], [header("b", b"2"), header("a", b"1")], [header("a", b"1"), header("a", b"2")]]
    assert kafka.to_map(pa.array(turned[:2], kind)).to_pylist() == [expected[0], [("b", "2"), ("a", "1")]]
    assert kafka.to_map(pa.array(turned, kind)).to_pylist() == [expected[0], [("b", "2"), ("a", "1")], [("a", "2")]]
    # What is no text stays as it is.
    odd = kafka.to_map(pa.array([[header("a", b"\xff")]], kind))
    assert odd.items.cast(pa.binary()).to_pylist() == [b"\xff"]


@pytest.mark.parametrize("content", [b"", b"no parquet at all", pa.table({"other": [1]})])
def test_a_file_that_the_file_bus_did_not_write_is_named(tmp_path: Path, content: bytes | pa.Table) -> None:
    path = tmp_path / "a file.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path)
    named = pa.RecordBatch.from_arrays(
        [pa.array([f"file:{path}"]), pa.array([0], pa.timestamp("us", "UTC"))], ["path", "modificationTime"]
    )
    with pytest.raises(
        LakeError, match=r"^/.*a file\.parquet was not written by the file bus, and no file after it is read; move it away: "
    ):
        list(files.read_files(Folder(str(tmp_path)), [named]))


def test_files_may_lie_at_a_uri() -> None:
    for given in ("s3a://bucket/events", "/srv/events"):
        assert create_source("files", from_keywords({"file": {"dir": given}}, {})).identity() == given
