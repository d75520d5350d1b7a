"""History brought straight to the lake is what publishing the same replay would have brought; files are joined, others can read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import backfill
from tardis_machine.lakehouse.backfill import Backfill
from tardis_machine.lakehouse.ingest import refine
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.silver.book_changes import BOOK_CHANGES
from tardis_machine.lakehouse.silver.derivative_tickers import DERIVATIVE_TICKERS
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.lakehouse.tasks import tasks, tasks_done
from tardis_machine.lakehouse.verify import verify
from tardis_machine.pipeline.request import NormalizedRequest, parse_normalized_request
from tardis_machine.sample.history_api import Fault, SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.integration.machine import options, running_machine
from tests.spark.lake_under_test import LakeUnderTest, make_older

pytestmark = pytest.mark.timeout(900)

# Over midnight: two units for each symbol.
ASKED = {
    "exchange": "bitmex",
    "symbols": ["XBTUSD", "ETHUSD"],
    "from": "2020-01-31T23:59:00Z",
    "to": "2020-02-01T00:01:00Z",
    "dataTypes": ["trade", "book_change", "derivative_ticker"],
}


@pytest.fixture(scope="module")
def api() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=0)).serve_in_thread() as api:
        yield api


def published(api: SampleHistoryApi, folder: Path, request: dict[str, Any]) -> None:
    """Replays to the file bus, as a server does."""

    async def replay() -> None:
        bus = {"dir": folder}
        async with running_machine(api, folder.parent / "cache", file=bus, spool_dir=folder.parent / "spool") as client:
            await client.lines(options(**request))

    asyncio.run(replay())


def request_of(**changes: Any) -> NormalizedRequest:
    return parse_normalized_request({**ASKED, **changes})


def test_a_backfill_brings_what_a_bus_would_have_brought(lake: LakeUnderTest, api: SampleHistoryApi, tmp_path: Path) -> None:
    # A day and a symbol at a time, as a backfill does it.
    for symbol in ("XBTUSD", "ETHUSD"):
        for start, end in (("2020-01-31T23:59:00Z", "2020-02-01T00:00:00Z"), ("2020-02-01T00:00:00Z", "2020-02-01T00:01:00Z")):
            published(api, lake.bus.folder, {**ASKED, "symbols": [symbol], "from": start, "to": end})
    lake.ingest(until="silver")

    other = Lake.at(tmp_path / "backfilled")
    cache = str(tmp_path / "executors")

    def job_of(request: NormalizedRequest) -> Backfill:
        return Backfill(lake.spark, other, [request], api.url, None, cache)

    # It fails where upstream does, and leaves nothing behind that is not whole.
    api.fail(Fault(status=400, message="no such thing"), times=1000)
    with pytest.raises(LakeError, match=r"the backfill stopped: backfill\|bitmex\|.*no such thing"):
        job_of(request_of()).run()
    api.recover()
    assert lake.spark.read.format("delta").load(other.path(EVENTS)).count() == 0

    # First one symbol; then the rest, and not that one again.
    seen: list[str] = []
    first = job_of(request_of(symbols=["XBTUSD"])).run(lambda progress: seen.append(progress.text))
    assert "2 of 2 symbol days" in seen[-1]
    assert (first.total, first.done, first.skipped) == (2, 2, 0)
    rest = job_of(request_of()).run()
    assert (rest.total, rest.done, rest.skipped) == (4, 4, 2)
    assert job_of(request_of()).run().rows == 0
    refine(lake.spark, other, until="silver")

    def ids(place: Lake) -> list[tuple[Any, ...]]:
        events = place.read(lake.spark, EVENTS).where("payload_case <> 'session_end'")
        columns = ("exchange", "symbol", "payload_case", "sequence", "local_ts", "origin", "date")
        return sorted((*row[:-1], bytes(row[-1])) for row in events.select(*columns, "event_id").collect())

    assert ids(other) == ids(lake.lake)
    assert first.rows + rest.rows == len(ids(other)) + 4
    for silver in (TRADES, BOOK_CHANGES, DERIVATIVE_TICKERS):
        ours, theirs = (place.read(lake.spark, silver.table).drop("session") for place in (other, lake.lake))
        assert ours.count() == theirs.count() > 0
        assert ours.exceptAll(theirs).count() == 0
    outcome = verify(lake.spark, other)
    assert outcome.is_whole
    assert [session.state for session in outcome.sessions] == ["complete"] * 4

    trades = other.read(lake.spark, TRADES.table).count()
    volume = other.read(lake.spark, TRADES.table).selectExpr("sum(amount)").collect()[0][0]
    sizes = {item.table: item for item in optimize(lake.spark, other, retain_s=MIN_RETAIN_S, z_order=True)}
    make_older(Path(other.root), MIN_RETAIN_S)
    assert [item.files_after for item in optimize(lake.spark, other, retain_s=MIN_RETAIN_S)] == [
        item.files_after for item in sizes.values()
    ]
    assert sizes["bronze.events"].files_after < sizes["bronze.events"].files_before
    # Date and exchange, and one file in each; the ledgers have no exchange, and a date of their own.
    assert sizes["silver.trades"].files_after == 2
    assert other.read(lake.spark, TRADES.table).count() == trades
    assert sum(1 for _ in Path(other.path(TRADES.table)).rglob("*.parquet")) == 2

    # Tables open without Spark.
    import duckdb
    from deltalake import DeltaTable

    opened = DeltaTable(other.path(TRADES.table)).to_pyarrow_table()
    assert opened.num_rows == trades
    answer = duckdb.sql("SELECT count(*), sum(amount), min(exchange) FROM opened").fetchall()
    assert answer == [(trades, volume, "bitmex")]


def test_what_is_committed_stays_when_a_job_is_told_to_stop_or_fails(
    spark: SparkSession, api: SampleHistoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six units, two in a commit, and two commits worked for at once."""
    monkeypatch.setattr(backfill, "UNITS_PER_CORE", 1)
    minutes = [f"2020-02-01T00:{minute:02}:00Z" for minute in range(7)]
    spans = [{"symbols": ["XBTUSD"], "from": start, "to": end} for start, end in pairwise(minutes)]
    requests = [request_of(**span) for span in spans]

    def job_to(lake: Lake) -> Backfill:
        return Backfill(spark, lake, requests, api.url, None, str(tmp_path / "cache"))

    def sessions(lake: Lake) -> int:
        return lake.read(spark, EVENTS).where("payload_case = 'session_end'").count()

    failed, stopped = Lake.at(tmp_path / "failed"), Lake.at(tmp_path / "stopped")
    api.fail(Fault(status=400, message="no such thing"), times=1)
    with pytest.raises(LakeError, match=r"the backfill stopped: backfill\|bitmex\|.*no such thing"):
        job_to(failed).run()
    # The commit that failed brought nothing, the one beside it all, and no third was begun.
    assert sessions(failed) == 2

    done: list[int] = []
    progress = job_to(stopped).run(lambda progress: done.append(progress.done), lambda: done[-1:] > [0])
    assert (progress.total, progress.done, progress.fetched) == (6, 4, 0)
    assert sessions(stopped) == 4

    for lake in (failed, stopped):
        assert job_to(lake).run().done == sessions(lake) == 6
        outcome = verify(spark, lake)
        assert outcome.is_whole
        assert [session.state for session in outcome.sessions] == ["complete"] * 6


def test_tasks_that_have_ended_are_counted_while_others_run(spark: SparkSession, tmp_path: Path) -> None:
    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while not (tmp_path / f"end-{batch.column(0)[0]}").exists():
                time.sleep(0.02)
            yield batch

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(tasks(spark, "abc").mapInArrow(wait, "id BIGINT").collect)
        for count, task in enumerate((1, 0)):
            deadline = time.monotonic() + 60
            while tasks_done(spark) != count and time.monotonic() < deadline:
                time.sleep(0.02)
            assert tasks_done(spark) == count
            (tmp_path / f"end-{task}").touch()
        (tmp_path / "end-2").touch()
        assert len(job.result(60)) == 3
    assert tasks_done(spark) == 0
