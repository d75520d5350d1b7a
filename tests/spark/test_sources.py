"""How sources plan and read ranges of a bus, against its real server and without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.sources.kinesis import KinesisReader
from tardis_machine.lakehouse.sources.partitions import (
    BlockingReader,
    Offsets,
    PartitionOffset,
    count_between,
    from_json,
    to_json,
)
from tests.contract.buses.kinesis import KinesisUnderTest
from tests.spark.source_under_test import READERS, SHARED, SourceUnderTest, digests

pytestmark = pytest.mark.timeout(180)

ALL = 1_000_000


@pytest.fixture(params=READERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceUnderTest]:
    shared = [request.getfixturevalue(SHARED[request.param])] if request.param in SHARED else []
    with SourceUnderTest(request.param, tmp_path / "bus", *shared) as source:
        yield source


def values_between(reader: BlockingReader, start: Offsets, end: Offsets) -> list[bytes]:
    batches = [batch for part in reader.ranges(start, end) for batch in reader.read(part)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def expected(start: Offsets, end: Offsets) -> int | None:
    return count_between(to_json(start), to_json(end))


def assert_whole(reader: BlockingReader, start: Offsets, end: Offsets, rows: int) -> None:
    assert reader.find_lost(start, end, rows) == 0


def test_a_bus_is_read_in_bounded_batches_each_of_which_can_be_read_again(source: SourceUnderTest) -> None:
    plans: list[tuple[Mapping[str, PartitionOffset], Mapping[str, PartitionOffset], list[bytes]]] = []
    offsets: dict[str, PartitionOffset] = {}
    with source.reading() as reader:
        # Empty, then written to in between.
        assert values_between(reader, {}, reader.advance({}, ALL)) == []
        for _ in range(2):
            source.publish(120)
            target = reader.newest(offsets)
            while (end := reader.advance(offsets, 50)) != offsets:
                found = values_between(reader, offsets, end)
                assert_whole(reader, offsets, end, len(found))
                # A share for each partition: a batch is no larger than the limit. Kinesis has no counts, and what takes its place takes
                # no more a second than a shard.
                assert len(found) <= 50 or source.name == "kinesis"
                plans.append((offsets, end, found))
                offsets = end
            assert offsets == target
    assert digests([value for _, _, found in plans for value in found]) == digests(source.values)
    # Another process has nothing but the offsets in the checkpoint.
    with source.reading() as other:
        for start, end, found in plans:
            assert values_between(other, from_json(to_json(start)), from_json(to_json(end))) == found
        assert other.advance(offsets, ALL) == offsets


def test_rows_have_what_the_bus_knows_of_a_record(source: SourceUnderTest) -> None:
    before_us = time.time() * 1e6
    source.publish(3)
    with source.reading() as reader:
        end = reader.advance({}, ALL)
        (batch,) = [batch for part in reader.ranges({}, end) for batch in reader.read(part)]
    rows = batch.to_pylist()
    assert [row["value"] for row in rows] == source.values
    assert len({row["position"] for row in rows}) == 3
    destination = source.bus.destination_option()[1]
    for row in rows:
        assert row["destination"] == destination
        assert row["key"] == ("bitmex|XBTUSD|trade" if source.bus.carries_key else None)
        assert abs(row["broker_timestamp"].timestamp() * 1e6 - before_us) < 120e6
        if source.name != "kinesis":
            assert dict(row["headers"])["payloadCase"] == "trade"


@pytest.mark.parametrize("source", ["kafka", "redis", "nats"], indirect=True)
def test_what_is_trimmed_before_it_is_read_is_missed_by_number(source: SourceUnderTest) -> None:
    source.publish(40)
    with source.reading() as reader:
        start = reader.advance({}, 10)
        read = expected({}, start)
        assert read is not None
        assert_whole(reader, {}, start, len(values_between(reader, {}, start)))
        planned = reader.advance(start, ALL)
    source.trim(5)
    kept = source.values[-5:]
    with source.reading() as reader:
        # Trimmed between planning and reading.
        assert values_between(reader, start, planned) == kept
        assert reader.find_lost(start, planned, 5) == 40 - read - 5
        new = source.publish(3)
        end = reader.advance(start, ALL)
        assert values_between(reader, start, end) == kept + new
        assert expected(start, end) == 43 - read
        # Once is enough.
        source.publish(2)
        later = reader.advance(end, ALL)
        assert_whole(reader, end, later, len(values_between(reader, end, later)))


@pytest.mark.parametrize("source", ["kinesis"], indirect=True)
def test_what_is_gone_from_kinesis_before_it_is_read_is_missed(source: SourceUnderTest) -> None:
    source.publish(20)
    with source.reading() as reader:
        start = reader.advance({}, ALL)
        source.publish(20)
        planned = reader.advance(start, ALL)
    source.trim(0)
    with source.reading() as reader:
        # Trimmed between planning and reading, and then before planning.
        assert reader.find_lost(start, planned, 0) is None
        new = source.publish(3)
        end = reader.advance(start, ALL)
        assert digests(values_between(reader, start, end)) == digests(new)
        assert reader.find_lost(start, end, 3) is None
        # Once is enough.
        source.publish(2)
        later = reader.advance(end, ALL)
        found = values_between(reader, end, later)
        assert len(found) == 2
        assert_whole(reader, end, later, 2)


@pytest.mark.parametrize("source", ["kinesis"], indirect=True)
def test_kinesis_is_planned_without_reading_it(source: SourceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    ask = KinesisReader._ask

    async def ask_and_count(reader: KinesisReader, operation: str, doing: str, **parameters: Any) -> Any:
        nonlocal seen
        answer = await ask(reader, operation, doing, **parameters)
        seen += len(answer["Records"]) if operation == "get_records" else 0  # type: ignore[index]
        return answer

    source.publish(60)
    # So long that they are in two stretches of time, which end at whole seconds.
    time.sleep(2.1)
    source.publish(10)
    # So long that the last records are looked for further back, and then nearer again.
    time.sleep(4)
    monkeypatch.setattr(KinesisReader, "_ask", ask_and_count)
    with source.reading() as reader:
        end = reader.advance({}, ALL)
        assert seen < 40
        # Two batches, as two stretches of time.
        monkeypatch.setattr("tardis_machine.lakehouse.sources.kinesis._SHARD_BYTES_A_SECOND", 512)
        first = reader.advance({}, 2)
        assert reader.advance(first, ALL) == end
        assert seen < 80
        assert len(values_between(reader, {}, first)) in (61, 62)
        assert digests(values_between(reader, {}, end)) == digests(source.values)


@pytest.mark.parametrize("source", ["redis", "nats"], indirect=True)
def test_one_stream_is_read_by_several_tasks(source: SourceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"tardis_machine.lakehouse.sources.{source.name}._RANGE", 25)
    for _ in range(4):
        source.publish(50)
    with source.reading() as reader:
        middle = reader.advance({}, 90)
        end = reader.advance(middle, ALL)
        parts = [len([*reader.read(part)]) for part in reader.ranges({}, end)]
        assert len(parts) == 8
        assert sum(count > 0 for count in parts) >= 3
        assert values_between(reader, {}, middle) + values_between(reader, middle, end) == source.values
        source.trim(10)
        assert values_between(reader, {}, end) == source.values[-10:]


@pytest.mark.parametrize("source", ["redis", "nats"], indirect=True)
def test_a_stream_that_was_made_anew_is_read_from_its_beginning(source: SourceUnderTest) -> None:
    source.publish(5)
    with source.reading() as reader:
        start = reader.advance({}, ALL)
    if source.name == "redis":
        source.bus.server.ask("DEL", "events")  # type: ignore[attr-defined]
    else:
        from tests.contract.buses.nats_peek import NatsPeek

        with NatsPeek(source.bus.server.port) as peek:  # type: ignore[attr-defined]
            assert peek.ask("STREAM.DELETE.MARKET")["success"]
        source.bus._make("MARKET", source.bus.destination_option()[1])  # type: ignore[attr-defined]
    new = source.publish(3)
    with source.reading() as reader:
        end = reader.advance(start, ALL)
        assert values_between(reader, start, end) == new
        assert expected(start, end) is None


def test_a_broker_that_is_away_for_a_while_is_waited_for(source: SourceUnderTest) -> None:
    source.publish(30)
    with source.reading() as reader:
        end = reader.advance({}, ALL)
        parts = reader.ranges({}, end)
        source.leave()
        threading.Timer(1.0, source.come_back).start()
        found = [value for part in parts for batch in reader.read(part) for value in batch.column("value").to_pylist()]
        assert digests(found) == digests(source.values)
        source.bus.inject("cut")
        source.bus.heal()
        assert reader.advance(end, ALL) == end


def test_a_broker_that_stays_away_ends_the_job_with_a_sentence(source: SourceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.lakehouse.sources.partitions.PATIENCE_S", 0.5)
    source.publish(1)
    source.leave()
    try:
        with source.reading() as reader, pytest.raises(LakeError, match=rf"the {source.name} source gave up after 0.5 s: "):
            reader.advance({}, ALL)
    finally:
        source.bus.heal()


@pytest.mark.parametrize("source", ["kinesis"], indirect=True)
def test_children_of_a_split_shard_are_read_after_their_parent(source: SourceUnderTest) -> None:
    bus = source.bus
    assert isinstance(bus, KinesisUnderTest)
    source.publish(10)
    with source.reading() as reader:
        offsets = reader.advance({}, 4)
        read = values_between(reader, {}, offsets)
        for shard in bus.server.shards(bus.base):
            first, last = (int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
            middle = str((first + last) // 2)
            bus.server.call("SplitShard", StreamName=bus.base, ShardToSplit=shard["ShardId"], NewStartingHashKey=middle)
            bus.server.wait_until_active(bus.base)
        parents = set(offsets)
        source.publish(10)
        end = reader.advance(offsets, 4)
        assert set(end) == parents, "children wait"
        target = reader.newest(offsets)
        while end != target:
            end = reader.advance(end, 4)
        assert len(end) == 2 + 4
        assert all(end[parent].closed for parent in parents)
        assert digests(read + values_between(reader, offsets, end)) == digests(source.values)
        assert_whole(reader, {}, end, 20)


@pytest.mark.parametrize("source", ["kinesis"], indirect=True)
def test_an_aggregate_is_taken_apart_and_never_divided_between_batches(source: SourceUnderTest) -> None:
    source.aggregates = True
    source.publish(20)
    source.publish(20)
    with source.reading() as reader:
        first = reader.advance({}, 2)
        assert len(values_between(reader, {}, first)) % 20 == 0
        end = reader.advance(first, ALL)
        assert digests(values_between(reader, {}, end)) == digests(source.values)
        (batch, *_) = [batch for part in reader.ranges({}, end) for batch in reader.read(part)]
        assert len(set(batch.column("position").to_pylist())) == batch.num_rows
