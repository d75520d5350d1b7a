"""How sources plan and read ranges of a bus, against its real server and without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.sources.lanes import Mark, Marks, Reading, count_between, to_marks, to_offset
from tests.contract.buses.kinesis import KinesisUnderTest
from tests.spark.source_under_test import LANES, SHARED, SourceUnderTest, digests

pytestmark = pytest.mark.timeout(180)

ALL = 1_000_000


@pytest.fixture(params=LANES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceUnderTest]:
    shared = [request.getfixturevalue(SHARED[request.param])] if request.param in SHARED else []
    with SourceUnderTest(request.param, tmp_path / "bus", *shared) as source:
        yield source


def values_between(reading: Reading, start: Marks, end: Marks) -> list[bytes]:
    batches = [batch for part in reading.ranges(start, end) for batch in reading.read(part)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def expected(start: Marks, end: Marks) -> int | None:
    return count_between(to_offset(start), to_offset(end))


def test_a_bus_is_read_in_bounded_batches_each_of_which_can_be_read_again(source: SourceUnderTest) -> None:
    plans: list[tuple[Mapping[str, Mark], Mapping[str, Mark], list[bytes]]] = []
    marks: dict[str, Mark] = {}
    with source.reading() as reading:
        # Empty, then written to in between.
        assert values_between(reading, {}, reading.advance({}, ALL)) == []
        for _ in range(2):
            source.publish(120)
            target = reading.newest(marks)
            while (end := reading.advance(marks, 50)) != marks:
                found = values_between(reading, marks, end)
                # A share for each lane: a batch is no larger than the limit.
                assert len(found) == expected(marks, end) <= 50
                plans.append((marks, end, found))
                marks = end
            assert marks == target
    assert digests([value for _, _, found in plans for value in found]) == digests(source.values)
    # Another process has nothing but the offsets in the checkpoint.
    with source.reading() as other:
        for start, end, found in plans:
            assert values_between(other, to_marks(to_offset(start)), to_marks(to_offset(end))) == found
        assert other.advance(marks, ALL) == marks


def test_rows_have_what_the_bus_knows_of_a_record(source: SourceUnderTest) -> None:
    before_us = time.time() * 1e6
    source.publish(3)
    with source.reading() as reading:
        end = reading.advance({}, ALL)
        (batch,) = [batch for part in reading.ranges({}, end) for batch in reading.read(part)]
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


def test_what_is_trimmed_before_it_is_read_is_missed_by_number(source: SourceUnderTest) -> None:
    source.publish(40)
    is_made_anew = source.name == "kinesis"
    with source.reading() as reading:
        start = reading.advance({}, 10)
        assert len(values_between(reading, {}, start)) == expected({}, start)
        read = expected({}, start)
        planned = reading.advance(start, ALL)
    source.trim(0 if is_made_anew else 5)
    kept = [] if is_made_anew else source.values[-5:]
    with source.reading() as reading:
        if not is_made_anew:
            # Trimmed between planning and reading.
            found = values_between(reading, start, planned)
            assert (found, expected(start, planned)) == (kept, 40 - read)
        new = source.publish(3)
        end = reading.advance(start, ALL)
        assert digests(values_between(reading, start, end)) == digests(kept + new)
        assert expected(start, end) == (None if is_made_anew else 43 - read)
        # Once is enough.
        source.publish(2)
        later = reading.advance(end, ALL)
        assert expected(end, later) == len(values_between(reading, end, later)) == 2


@pytest.mark.parametrize("source", ["redis", "nats"], indirect=True)
def test_a_stream_that_was_made_anew_is_read_from_its_beginning(source: SourceUnderTest) -> None:
    source.publish(5)
    with source.reading() as reading:
        start = reading.advance({}, ALL)
    if source.name == "redis":
        source.bus.server.ask("DEL", "events")  # type: ignore[attr-defined]
    else:
        from tests.contract.buses.nats_peek import NatsPeek

        with NatsPeek(source.bus.server.port) as peek:  # type: ignore[attr-defined]
            assert peek.ask("STREAM.DELETE.MARKET")["success"]
        source.bus._make("MARKET", source.bus.destination_option()[1])  # type: ignore[attr-defined]
    new = source.publish(3)
    with source.reading() as reading:
        end = reading.advance(start, ALL)
        assert values_between(reading, start, end) == new
        assert expected(start, end) is None


def test_a_broker_that_is_away_for_a_while_is_waited_for(source: SourceUnderTest) -> None:
    source.publish(30)
    with source.reading() as reading:
        end = reading.advance({}, ALL)
        parts = reading.ranges({}, end)
        source.leave()
        threading.Timer(1.0, source.come_back).start()
        found = [value for part in parts for batch in reading.read(part) for value in batch.column("value").to_pylist()]
        assert digests(found) == digests(source.values)
        source.bus.inject("cut")
        source.bus.heal()
        assert reading.advance(end, ALL) == end


def test_a_broker_that_stays_away_ends_the_job_with_a_sentence(source: SourceUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.lakehouse.sources.lanes.PATIENCE_S", 0.5)
    source.publish(1)
    source.leave()
    try:
        with source.reading() as reading, pytest.raises(LakeError, match=rf"The {source.name} source gave up after 0.5 s: "):
            reading.advance({}, ALL)
    finally:
        source.bus.heal()


@pytest.mark.parametrize("source", ["kinesis"], indirect=True)
def test_children_of_a_split_shard_are_read_after_their_parent(source: SourceUnderTest) -> None:
    bus = source.bus
    assert isinstance(bus, KinesisUnderTest)
    source.publish(10)
    with source.reading() as reading:
        marks = reading.advance({}, 4)
        assert len(values_between(reading, {}, marks)) == expected({}, marks)
        read = values_between(reading, {}, marks)
        for shard in bus.server.shards(bus.base):
            first, last = (int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
            middle = str((first + last) // 2)
            bus.server.call("SplitShard", StreamName=bus.base, ShardToSplit=shard["ShardId"], NewStartingHashKey=middle)
            bus.server.wait_until_active(bus.base)
        parents = set(marks)
        source.publish(10)
        end = reading.advance(marks, 4)
        assert set(end) == parents, "children wait"
        target = reading.newest(marks)
        while end != target:
            end = reading.advance(end, 4)
        assert len(end) == 2 + 4
        assert all(end[parent].closed for parent in parents)
        assert digests(read + values_between(reading, marks, end)) == digests(source.values)
        assert expected({}, end) == 20


@pytest.mark.parametrize("source", ["kinesis"], indirect=True)
def test_an_aggregate_is_taken_apart_and_never_divided_between_batches(source: SourceUnderTest) -> None:
    source.aggregates = True
    source.publish(20)
    source.publish(20)
    with source.reading() as reading:
        first = reading.advance({}, 2)
        assert (len(values_between(reading, {}, first)), expected({}, first)) == (20, 20)
        end = reading.advance(first, ALL)
        assert digests(values_between(reading, {}, end)) == digests(source.values)
        (batch, *_) = [batch for part in reading.ranges({}, end) for batch in reading.read(part)]
        assert len(set(batch.column("position").to_pylist())) == batch.num_rows
