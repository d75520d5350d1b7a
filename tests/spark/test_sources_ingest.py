"""Every bus into bronze, by Spark: from empty, started again, trimmed under the job, and with the broker away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tardis_machine.lakehouse.bronze import LOST
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.streams import Counts
from tardis_machine.lakehouse.tables import EVENTS, QUARANTINE
from tests.spark.lake_under_test import assert_left_is_what_comes_later, watched_streams
from tests.spark.source_under_test import BUSES, SHARED, SourceUnderTest, digests

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(tmp_path / "lake")


@pytest.fixture(params=BUSES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceUnderTest]:
    shared = [request.getfixturevalue(SHARED[request.param])] if request.param in SHARED else []
    with SourceUnderTest(request.param, tmp_path / "bus", *shared) as source:
        yield source


def job(spark: SparkSession, lake: Lake, source: SourceUnderTest, **options: Any) -> Ingest:
    return Ingest(spark, lake, source.source, until="bronze", **options)


def check_bronze(spark: SparkSession, lake: Lake, values: list[bytes]) -> None:
    rows = lake.read(spark, EVENTS).select("value", "bus", "position", "destination").collect()
    assert digests([bytes(row.value) for row in rows]) == digests(values)
    assert len({(row.destination, row.position) for row in rows}) == len(values)


def test_a_bus_is_taken_in_once_and_then_goes_on_from_the_checkpoint(
    spark: SparkSession, lake: Lake, source: SourceUnderTest
) -> None:
    source.publish(30)
    # Room for fifteen records a batch.
    with watched_streams() as watched:
        (counts,) = job(spark, lake, source, max_batch_bytes=15 * 512).run_once()
    assert counts.rows == {EVENTS.name: 30}
    # Nobody knows how much Kinesis has that was not read.
    left = {"kinesis": {}, "sqs": {"files": 0}}.get(source.name, {"records": 0})
    assert counts.left == left
    if "records" in left:
        assert_left_is_what_comes_later(*watched, "records")
    check_bronze(spark, lake, source.values)

    read = list(source.values)
    lost = 0
    if source.name not in ("sqs", "kinesis"):
        source.publish(8)
        source.trim(3)
        read, lost = [*read, *source.values[-3:]], 5
    read += source.publish(4)

    # The broker is away when the job starts, and comes back; then there is more while the job runs.
    source.leave()
    healing = threading.Timer(2.0, source.come_back)
    healing.start()
    stop = threading.Event()
    first = len(read) - 30
    published: list[bytes] = []

    def watch(seen: list[Counts]) -> None:
        rows = seen[0].rows.get(EVENTS.name, 0)
        if rows == first and not published:
            published.extend(source.publish(2))
        if rows == first + 2:
            stop.set()

    guard = threading.Timer(200, stop.set)
    guard.start()
    (counts,) = job(spark, lake, source).run(0.5, stop, watch)
    guard.cancel()
    healing.join()
    check_bronze(spark, lake, read + published)
    assert len(published) == 2
    assert counts.lost == lost
    assert counts.left == left
    if lost:
        (row,) = lake.read(spark, QUARANTINE).collect()
        assert (row.stage, row.bus, row.value) == (LOST, source.name, None)
        assert row.reason == "5 records were gone before they could be read"
