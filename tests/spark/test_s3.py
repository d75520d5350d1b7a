"""A lake on S3, on a real server: every job, the tables of a folder, a network that fails, and two jobs of one stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import sql
from tardis_machine.lakehouse.backfill import Backfill
from tardis_machine.lakehouse.ingest import Ingest, refine
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.sources import create_source
from tardis_machine.lakehouse.sources.sqs import SqsOptions, SqsReceiver
from tardis_machine.lakehouse.streams import Counts
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.lakehouse.verify import verify
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.lake_crash.comparing import compare_lakes
from tests.lake_crash.events import FEW_MARKETS, write_files
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.s3_faults import S3Faults
from tests.servers.seaweedfs import SeaweedServer
from tests.spark.lake_under_test import LakeUnderTest, encode, trades
from tests.spark.source_under_test import SourceUnderTest, digests

pytestmark = pytest.mark.timeout(900)

GOLD = ("bars_1m", "top_of_book", "gaps")

OnS3 = Callable[..., Lake]


@pytest.fixture
def on_s3(spark: SparkSession, seaweed: SeaweedServer, tmp_path: Path) -> Iterator[OnS3]:
    """Lakes in buckets of their own, on the server or at a port in front of it; the session, which has begun, is told of each."""
    made = []

    def lake(port: int | None = None) -> Lake:
        # Hadoop keeps a client for each bucket, with what it was told first.
        name = seaweed.create_bucket(f"{tmp_path.name.replace('_', '-').lower()[:40]}-{len(made)}")
        found = Lake.at(f"s3://{name}/a lake", seaweed.lake_options(port))
        for option, value in found.storage.spark_conf.items():
            spark.conf.set(option.removeprefix("spark.hadoop."), value)
        made.append(found)
        return found

    yield lake
    for option in {option for found in made for option in found.storage.spark_conf}:
        spark.conf.unset(option.removeprefix("spark.hadoop."))


def reveal(files: list[Path], bus: Path) -> None:
    for file in files:
        file.rename(bus / file.name)


def test_every_job_leaves_the_tables_of_a_folder(
    spark: SparkSession, tmp_path: Path, on_s3: OnS3, seaweed: SeaweedServer
) -> None:
    lake = LakeUnderTest(spark, tmp_path)
    in_folder, there = lake.lake, on_s3()
    files = write_files(tmp_path / "written", 1_500, 4, 1, FEW_MARKETS)
    # Late rows, and repeated ones: gold replaces what it has.
    for half in (files[:2], files[2:]):
        reveal(half, lake.bus.folder)
        for lake.lake in (in_folder, there):
            lake.ingest(until="gold", gold=GOLD)
    compared = compare_lakes(there.storage, in_folder.storage)
    assert [item for item in compared if not item.is_equal] == []
    assert {item.table for item in compared if item.rows} >= {"bronze.events", "silver.trades", "gold.bars", "gold.top_of_book"}

    joined = {item.table: item for item in optimize(spark, there, retain_s=MIN_RETAIN_S)}
    assert joined["bronze.events"].files_after < joined["bronze.events"].files_before
    [*_] = optimize(spark, there, retain_s=MIN_RETAIN_S, z_order=True)
    assert all(item.is_equal for item in compare_lakes(there.storage, in_folder.storage))
    counted = "select count(*) from silver.trades"
    assert sql.query(spark, there, counted).collect() == sql.query(spark, in_folder, counted).collect()
    assert verify(spark, there) == verify(spark, in_folder)
    # All of it once more is nothing new.
    assert lake.ingest(until="gold", gold=GOLD) == {}


def test_history_is_backfilled(spark: SparkSession, tmp_path: Path, on_s3: OnS3) -> None:
    there = on_s3()
    asked = {
        "exchange": "bitmex",
        "symbols": ["XBTUSD"],
        "from": "2020-02-01",
        "to": "2020-02-01T00:01:00Z",
        "dataTypes": ["trade"],
    }
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=0)).serve_in_thread() as api:
        job = Backfill(spark, there, [parse_normalized_request(asked)], api.url, None, str(tmp_path / "cache"))
        brought = job.run().rows
        assert job.run().rows == 0
    refine(spark, there, until="silver")
    assert there.read(spark, EVENTS).count() == brought > 10
    assert verify(spark, there).is_whole


def test_a_network_that_fails_changes_nothing(spark: SparkSession, tmp_path: Path, on_s3: OnS3, seaweed: SeaweedServer) -> None:
    lake = LakeUnderTest(spark, tmp_path)
    in_folder = lake.lake
    with S3Faults(seaweed.port) as faults:
        there = on_s3(faults.port)
        faults.slow_down(0.03)
        faults.reset(0.02)
        faults.lose_answer(0.02)
        for count in (20, 40):
            lake.bus.write(f"{count}", [*encode(trades(count), session=f"s{count}"), b"\xff"])
            for lake.lake in (in_folder, there):
                lake.ingest(until="gold", gold=("bars_1m",))
        assert all(count > 3 for count in faults.struck.values()), faults.struck
        faults.heal()
        assert [item for item in compare_lakes(there.storage, in_folder.storage) if not item.is_equal] == []
        assert there.read(spark, TRADES.table).count() == 40


def test_of_two_jobs_of_one_stream_the_first_ends(spark: SparkSession, tmp_path: Path, on_s3: OnS3) -> None:
    lake = LakeUnderTest(spark, tmp_path, on_s3())
    lake.bus.write("a", encode(trades(10)))
    failures: list[Exception] = []

    def run() -> None:
        try:
            Ingest(spark, lake.lake, lake.source, until="bronze").run(0.1, threading.Event())
        except LakeError as error:
            failures.append(error)

    first = threading.Thread(target=run)
    first.start()
    while not lake.lake.storage.list_files(f"{lake.lake.root}/_checkpoints", "0", below=True):
        assert first.is_alive()
    (stream,) = {
        path.split("/")[-2] for path in lake.lake.storage.list_files(f"{lake.lake.root}/_checkpoints", "owner", below=True)
    }
    lake.lake.storage.write_text(f"{lake.lake.checkpoint(stream)}/owner", "another")
    lake.bus.write("b", encode(trades(10, start=10), session="s2"))
    first.join(120)
    assert [str(error) for error in failures] == [f"another job works on the stream {stream!r} of this lake; stop one of the two"]
    lake.ingest(until="bronze")
    assert lake.count(EVENTS) == 20


def test_queues_are_received_on_executors_that_share_no_folder(
    spark: SparkSession, tmp_path: Path, on_s3: OnS3, elasticmq: ElasticMqServer
) -> None:
    there = on_s3()
    with SourceUnderTest("sqs", tmp_path / "bus", elasticmq) as queue:
        settings = queue.settings
        settings.landing_dir, settings.lake, settings.receivers = None, there.root, 1
        settings.lake_option = dict(there.storage.options)  # type: ignore[attr-defined]
        queue.publish(25)
        (counts,) = Ingest(spark, there, create_source("sqs", settings), until="bronze").run_once()
        assert counts.rows == {EVENTS.name: 25}
        stop = threading.Event()

        def watch(seen: list[Counts]) -> None:
            rows = seen[0].rows.get(EVENTS.name, 0)
            if not rows and len(queue.values) == 25:
                queue.publish(5)
            if rows == 5:
                stop.set()

        Ingest(spark, there, create_source("sqs", settings), until="bronze").run(0.2, stop, watch)
        values = [bytes(row["value"]) for row in there.read(spark, EVENTS).select("value").collect()]
        assert digests(values) == digests(queue.values)
        # Nothing is left in the queue, and no file in a folder.
        assert SqsReceiver(SqsOptions.from_settings(settings, "sqs"), there.storage).drain() == 0
        assert not (tmp_path / "bus" / "landing").exists()
        settings.receivers = 2
        with pytest.raises(LakeError, match=r"^--receivers 2 would leave no core to take in what they receive: there are 2; "):
            Ingest(spark, there, create_source("sqs", settings), until="bronze").run_once()
