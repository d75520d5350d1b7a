"""A job that is killed at any point and started again ends with the tables of one that was not."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.streams import BatchWriter
from tardis_machine.lakehouse.tables import Table
from tests.spark.lake_under_test import LakeUnderTest, encode, trades

pytestmark = pytest.mark.timeout(900)

OPTIONS = ["--trigger", "500ms", "--until", "silver", "--lake-batch-bytes", "1", "--master", "local[2]"]

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
    lake: LakeUnderTest, undisturbed: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake)
    append = BatchWriter.append
    # The first file's rows are in bronze, but not what was refused of it; all of the last file's are; the first batch is in silver.
    deaths = [("bronze.events", 0), ("bronze.events/refused", FILES[-1]), ("silver.trades", 0)]

    def append_and_die(self: BatchWriter, rows: DataFrame, table: Table, step: str, batch_id: int) -> None:
        append(self, rows, table, step, batch_id)
        if deaths and deaths[0] == (step, batch_id):
            deaths.pop(0)
            raise RuntimeError("killed")

    monkeypatch.setattr(BatchWriter, "append", append_and_die)
    for left in (2, 1, 0):
        with pytest.raises(LakeError, match="killed"):
            lake.ingest(max_batch_bytes=1)
        assert len(deaths) == left
    lake.ingest(max_batch_bytes=1)
    assert tables(lake) == undisturbed
    assert len(lake.rows(TRADES.table)) == 70


def start_job(lake: LakeUnderTest) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tardis_machine", "lake", "ingest", "--from", "files"]
    return subprocess.Popen(
        [*command, "--file-dir", str(lake.bus.folder), "--lake", lake.lake.root, *OPTIONS],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(done: Callable[[], object], job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not done():
        assert job.poll() is None, job.stderr and job.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_running_job_is_killed_at_a_random_point_and_the_next_one_ends_cleanly(
    lake: LakeUnderTest, undisturbed: tuple[object, ...]
) -> None:
    fill(lake, FILES[:-1])
    root = Path(lake.lake.root)
    killed = start_job(lake)
    wait_until(lambda: any(root.glob("_checkpoints/*/progress/offsets/0")), killed)
    time.sleep(random.uniform(0.0, 6.0))
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL

    # However far the first one came, there is work left.
    fill(lake, FILES[-1:])
    job = start_job(lake)
    try:
        wait_until((root / f"_checkpoints/silver/progress/commits/{FILES[-1]}").exists, job)
        job.send_signal(signal.SIGTERM)
        _, errors = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, errors
    assert re.search(r"^bronze \d+ · silver \d+ ", errors, re.MULTILINE)
    assert "Traceback" not in errors
    assert tables(lake) == undisturbed
