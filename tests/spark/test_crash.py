"""A job that is killed at any point and started again ends with the tables of one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.streams import BatchWriter
from tests.spark.lake_under_test import LakeUnderTest, encode, trades

pytestmark = pytest.mark.timeout(900)

JOB = """
import sys
from tardis_machine.lakehouse.jobs import ingest
from types import SimpleNamespace
sys.exit(ingest(SimpleNamespace(
    from_="files", file_dir=sys.argv[1], lake=sys.argv[2], once=sys.argv[3] == "once", trigger=1.0, until="silver",
    lake_batch_bytes=1, master="local[2]", remote=None, spark_conf={}, spark_jars=None)))
"""


def fill(lake: LakeUnderTest) -> None:
    # One byte a batch means one file a batch. Every file repeats a part of the one before it, and has something to set aside.
    for n in range(3):
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

    append = BatchWriter._append
    calls = 0

    def append_and_die(self: BatchWriter, *args: object) -> None:
        nonlocal calls
        append(self, *args)  # type: ignore[arg-type]
        calls += 1
        # After bronze.events of the first batch, of the last one, after its quarantine, and after silver.trades of the second.
        if calls in (1, 6, 8, 12):
            raise RuntimeError("killed")

    monkeypatch.setattr(BatchWriter, "_append", append_and_die)
    for _ in range(4):
        with pytest.raises(LakeError, match="killed"):
            lake.ingest(max_batch_bytes=1)
    lake.ingest(max_batch_bytes=1)
    assert tables(lake) == undisturbed
    assert len(lake.rows(TRADES.table)) == 70


def start_job(lake: LakeUnderTest, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(lake.bus.folder), lake.lake.root, how],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )


def work_done(lake: LakeUnderTest) -> set[Path]:
    """Batches begun and ended, and commits of tables."""
    root = Path(lake.lake.root)
    return {*root.glob("_checkpoints/*/progress/*/*"), *root.glob("*/*/_delta_log/*.json")}


def wait_for_work(lake: LakeUnderTest, job: subprocess.Popen[str]) -> None:
    """Until the job has gone on from where the one before it was killed."""
    before, deadline = work_done(lake), time.monotonic() + 300
    while work_done(lake) == before:
        assert job.poll() is None, job.stderr and job.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_kill_minus_nine_at_random_points_and_a_clean_end(lake: LakeUnderTest, undisturbed: tuple[object, ...]) -> None:
    fill(lake)

    chance = random.Random()
    for _ in range(2):
        job = start_job(lake, "once")
        wait_for_work(lake, job)
        time.sleep(chance.uniform(0.0, 6.0))
        os.killpg(job.pid, signal.SIGKILL)
        assert job.wait() == -signal.SIGKILL
    lake.ingest(max_batch_bytes=1)
    assert tables(lake) == undisturbed


def test_sigterm_ends_a_running_job_cleanly(lake: LakeUnderTest) -> None:
    lake.bus.write("a", encode(trades(5)))
    job = start_job(lake, "forever")
    try:
        first_append = Path(lake.lake.root) / "silver" / "trades" / "_delta_log" / f"{1:020d}.json"
        deadline = time.monotonic() + 300
        while not first_append.exists():
            assert job.poll() is None, job.stderr and job.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        job.send_signal(signal.SIGTERM)
        _, errors = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, errors
    assert "bronze 5 · silver 5" in errors
    assert "Traceback" not in errors
    assert len(lake.rows(TRADES.table)) == 5
