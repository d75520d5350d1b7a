"""A job that joins its small files between batches: fewer files, the same rows, and streams that see nothing of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tardis_machine.lakehouse.appending import Appender
from tardis_machine.lakehouse.commits import TableFile
from tardis_machine.lakehouse.gold.bars import BARS
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.lakehouse.upkeep import BATCHES, alike
from tests.lake_crash.comparing import compare_lakes
from tests.spark.lake_under_test import LakeUnderTest, encode, make_older, trades

pytestmark = pytest.mark.timeout(600)


def file(size: int, exchange: str = "bitmex", first_us: int = 0) -> TableFile:
    return TableFile(f"/{size}", str(first_us), size, {"exchange": exchange}, first_us, first_us, first_us, first_us)


def test_files_are_joined_with_those_of_their_size() -> None:
    small = [file(10_000 + n, first_us=-n) for n in range(8)]
    few = [file(10_000, "deribit") for _ in range(7)]
    larger, largest = [file(2_000_000 + n) for n in range(8)], [file(128 * 1024**2) for _ in range(20)]
    assert [*alike([*small, *few, *larger, *largest])] == [small[::-1], larger]


def test_small_files_of_a_long_job_are_joined(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeUnderTest(spark, tmp_path)
    with_upkeep, without = lake.lake, Lake.at(tmp_path / "without")
    count = 2 * BATCHES + 3
    for number in range(count):
        lake.bus.write(f"{number:03}", encode(trades(3, start=number * 3), session=f"s{number}"))
    for lake.lake in (with_upkeep, without):
        lake.ingest(until="gold", gold=("bars_1m",), max_batch_bytes=1, auto_optimize=lake.lake is with_upkeep)
    files = Counter({table.name: len(Appender(with_upkeep).commits.all_files(table)) for table in (EVENTS, TRADES.table)})
    # Two that were joined, and those of three batches.
    assert files == {EVENTS.name: 5, TRADES.table.name: 5}
    assert len(Appender(without).commits.all_files(EVENTS)) == count
    assert [item for item in compare_lakes(with_upkeep.storage, without.storage) if not item.is_equal] == []
    lake.lake = with_upkeep
    assert lake.ingest(until="gold", gold=("bars_1m",)) == {}


def test_files_that_a_stream_has_still_to_read_are_kept(lake: LakeUnderTest) -> None:
    lake.bus.write("a", encode(trades(3)))
    lake.ingest()
    for number in (1, 2):
        lake.bus.write(f"{number}", encode(trades(3, start=number * 3), session=f"s{number}"))
        lake.ingest(until="bronze")
    [*_] = optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)
    make_older(Path(lake.lake.root), MIN_RETAIN_S)
    [*_] = optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)
    lake.ingest()
    assert lake.count(TRADES.table) == 9


def test_a_stream_that_begins_when_files_were_joined_and_removed_reads_what_is_there(lake: LakeUnderTest) -> None:
    for number in range(3):
        lake.bus.write(f"{number}", encode(trades(3, start=number * 3), session=f"s{number}"))
        lake.ingest()
    for _ in range(2):
        [*_] = optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)
        make_older(Path(lake.lake.root), MIN_RETAIN_S)
    [*_] = optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)
    assert len([*Path(lake.lake.path(TRADES.table)).rglob("*.parquet")]) == 1
    lake.ingest(until="gold", gold=("bars_1m",))
    assert lake.lake.read(lake.spark, BARS).selectExpr("sum(trades)").collect()[0][0] == 9
