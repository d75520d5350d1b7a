"""A job that is killed at any point and started again ends with the tables of one that was not."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.commits import Commits, Step
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.lakehouse.storage import Storage, open_storage
from tardis_machine.lakehouse.table_files import WrittenFile
from tardis_machine.lakehouse.tables import Table
from tests.fault.stepping_clock import SteppingClock
from tests.lake_crash.comparing import compare_lakes
from tests.lake_crash.events import FEW_MARKETS
from tests.lake_crash.job import QUICK_START, LakeJob
from tests.lake_crash.run import CrashRun, start_and_see
from tests.spark.lake_under_test import FileBus, LakeUnderTest, encode, trades

pytestmark = pytest.mark.timeout(900)

GOLD = ("bars_1m", "top_of_book")
FILES = range(3)


def fill(lake: LakeUnderTest, numbers: Iterable[int] = FILES) -> None:
    # One byte a batch means one file a batch. Every file repeats a part of the one before it, and has something to set aside.
    for n in numbers:
        lake.bus.write(str(n), [*encode(trades(30, start=n * 20), session=f"s{n}"), b"\xff"])


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The tables of a job that nobody killed."""
    lake = LakeUnderTest(spark, tmp_path_factory.mktemp("undisturbed"))
    fill(lake)
    lake.ingest(max_batch_bytes=1)
    return tables(lake)


def tables(lake: LakeUnderTest) -> tuple[object, ...]:
    return lake.events, lake.rows(TRADES.table), lake.quarantine


def test_a_job_that_dies_after_any_of_its_writes(
    spark: SparkSession, tmp_path: Path, undisturbed: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeUnderTest(spark, tmp_path)
    fill(lake)
    commit = Commits.commit
    # The first file's rows are in bronze, but not what was refused of it; all of the last file's are; the first batch is in silver.
    deaths = [("bronze.events", 0), ("bronze.events/refused", FILES[-1]), ("silver.trades", 0)]

    def die_after(step: Step) -> None:
        if deaths and deaths[0] == (step.app_id.split("/", 2)[2], step.version):
            deaths.pop(0)
            raise RuntimeError("killed")

    def commit_and_die(self: Commits, table: Table, files: Sequence[WrittenFile], step: Step) -> bool:
        is_added = commit(self, table, files, step)
        die_after(step)
        return is_added

    monkeypatch.setattr(Commits, "commit", commit_and_die)
    for left in (2, 1, 0):
        with pytest.raises(LakeError, match="killed"):
            lake.ingest(max_batch_bytes=1)
        assert len(deaths) == left
    lake.ingest(max_batch_bytes=1)
    assert tables(lake) == undisturbed
    assert len(lake.rows(TRADES.table)) == 70


def test_a_job_that_was_killed_while_it_planned_its_first_batch(lake: LakeUnderTest) -> None:
    lake.ingest(until="bronze")  # nothing is there yet: the stream begins, and plans nothing
    (plans,) = Path(lake.lake.root).glob("_checkpoints/*/progress/offsets")
    assert list(plans.iterdir()) == []
    (plans / f".0.{uuid.uuid4()}.tmp").touch()
    fill(lake, range(1))
    lake.ingest(until="bronze")
    assert len(lake.events) == 30


def ingest(spark: SparkSession, run: CrashRun, lake: Storage) -> None:
    Ingest(spark, Lake(lake), FilesSource(run.bus), until="gold", gold=GOLD).run_once()


def test_a_job_that_is_killed_at_random_points_and_then_told_to_stop(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with CrashRun(tmp_path, events=1_500, kills=2, seed=seed, most_traces=5, gold=GOLD, markets=FEW_MARKETS) as run:
        crash(spark, run)


def crash(spark: SparkSession, run: CrashRun) -> None:
    run.kill_again_and_again()

    # All files are there now. SIGTERM may come at any time too: the job ends cleanly, with what it was at.
    job = run.job("told to stop", run.lake, *run.small_batches)
    start_and_see(job, run.lake)
    time.sleep(random.uniform(0.0, 4.0))
    assert job.terminate() == 0, job.tail
    said = job.log.read_text()
    assert re.search(r"^bronze [\d,]+ · silver [\d,]+ ", said, re.MULTILINE)
    assert "Traceback" not in said

    ingest(spark, run, run.lake)
    ingest(spark, run, run.undisturbed)
    compared = {item.table: item for item in compare_lakes(run.lake, run.undisturbed)}
    assert [item for item in compared.values() if not item.is_equal] == []
    assert compared["silver.trades"].rows < compared["bronze.events"].rows > 1_500
    assert compared["gold.bars"].rows
    assert compared["gold.top_of_book"].rows


def test_a_job_whose_clock_is_set_back_goes_on(tmp_path: Path) -> None:
    clock, bus, lake = SteppingClock(tmp_path), FileBus(tmp_path / "bus"), open_storage(str(tmp_path / "lake"))
    arguments = ("ingest", "--from", "files", "--file-dir", str(bus.folder), "--lake", lake.root, "--trigger", "500ms")
    environ = {"JDK_JAVA_OPTIONS": QUICK_START, **clock.environ}
    job = LakeJob(*arguments, "--master", "local[2]", log=tmp_path / "log", environ=environ)
    try:
        for number in range(3):
            bus.write(str(number), encode(trades(3, start=3 * number)))
            if number == 0:
                start_and_see(job, lake)
            job.wait_until(partial(has_trades, lake, 3 * (number + 1)), timeout_s=300)
            clock.step(-7200)
        assert job.terminate() == 0, job.tail
    finally:
        job.kill()
    said = job.log.read_text()
    assert said.count("the clock was set back") >= 2, said
    assert re.search(r"^bronze 9 · silver 9 ", said, re.MULTILINE), said


def has_trades(lake: Storage, count: int) -> bool:
    path = f"{lake.root}/{TRADES.table.name.replace('.', '/')}"
    return bool(lake.list_files(f"{path}/_delta_log", "*.json")) and lake.open_log(path).to_pyarrow_table().num_rows == count


def test_the_comparison_sees_a_row_that_is_missing_twice_or_different(tmp_path: Path) -> None:
    rows = [(1, [Decimal(1)], [("a", "b")]), (2, None, None)]
    spoiled = {
        "equal": rows[::-1],
        "missing": rows[:1],
        "twice": [*rows, rows[0]],
        "different": [(1, [Decimal(2)], [("a", "b")]), rows[1]],
    }
    types = (pa.int32(), pa.list_(pa.decimal128(38, 18)), pa.map_(pa.string(), pa.string()))
    for name, content in {"right": rows, **spoiled}.items():
        columns = [pa.array(column, kind) for column, kind in zip(zip(*content, strict=True), types, strict=True)]
        path = tmp_path / name / "silver" / "trades"
        path.mkdir(parents=True)
        write_deltalake(path, pa.table(columns, ["id", "levels", "headers"]))
    found = {name: compare_lakes(tmp_path / name, tmp_path / "right") for name in spoiled}
    assert {name: (item.only_here, item.only_there) for name, [item] in found.items()} == {
        "equal": (0, 0),
        "missing": (0, 1),
        "twice": (1, 0),
        "different": (1, 1),
    }
    # A table that only one of them has.
    [item] = compare_lakes(tmp_path / "nothing", tmp_path / "right")
    assert (item.rows, item.only_there, item.is_equal) == (0, 2, False)
