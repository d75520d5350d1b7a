"""Files to bronze to silver: what arrives, what is kept once, and what is set aside."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.lakehouse import jobs
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.silver.book_changes import BOOK_CHANGES
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.lakehouse.streams import Counts
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.messages import BookChange, BookLevel, to_timestamp
from tardis_machine.settings import resolve
from tardis_machine.telemetry import render_metrics
from tests.servers.process import free_port
from tests.spark.lake_under_test import (
    START_US,
    LakeUnderTest,
    assert_left_is_what_comes_later,
    encode,
    trades,
    watched_streams,
)
from tests.unit.lakehouse.test_metrics import values as metric_values

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.timeout(600)


def test_a_job_tells_what_each_stream_committed_and_when(lake: LakeUnderTest) -> None:
    lake.bus.write("a", [*encode(trades(3)), b"not an event"])
    reported: list[list[Counts]] = []
    bronze, silver = Ingest(lake.spark, lake.lake, lake.source).run_once(reported.append)
    assert (bronze.stream.partition("-")[0], silver.stream) == ("bronze", "silver")
    assert bronze.rows == {"bronze.events": 3, "bronze.quarantine": 1}
    assert (bronze.batches, silver.batches) == (1, 1)
    assert bronze.committed is not None
    assert silver.committed is not None
    assert bronze.committed < silver.committed <= time.monotonic()
    assert bronze in reported[0]


def test_every_record_is_in_bronze_as_it_came_and_in_silver_typed(lake: LakeUnderTest) -> None:
    values = encode(trades(20))
    lake.bus.write("a", values)
    assert lake.ingest() == {"bronze.events": 20, "silver.trades": 20}

    bronze = lake.lake.read(lake.spark, EVENTS).orderBy("sequence").collect()
    assert [bytes(row.value) for row in bronze] == values
    assert [row.position for row in bronze] == [f"part-a.parquet:{n}" for n in range(20)]
    first = bronze[0]
    assert (first.exchange, first.symbol, first.payload_case, first.origin) == ("bitmex", "XBTUSD", "trade", "replay")
    assert (first.session, first.sequence, first.bus, first.destination, first.key) == ("s1", 0, "files", "events", "k")
    assert first.headers == {"payloadCase": "trade"}
    assert bytes(first.event_id) == NormalizedEvent.FromString(values[0]).event_id
    assert first.broker_timestamp is not None

    silver = lake.lake.read(lake.spark, TRADES.table).orderBy("sequence").collect()
    row = silver[4]
    assert (row.price, row.amount, row.side, row.trade_id) == (Decimal("9002"), Decimal(5), "sell", "t4")
    at = datetime.fromtimestamp(START_US / 1e6, UTC)
    assert row.event_ts.astimezone(UTC) == at.replace(microsecond=4000)
    assert row.local_ts.astimezone(UTC) == at.replace(microsecond=4250)
    assert str(row.date) == "2020-02-01"


def test_what_arrives_twice_is_twice_in_bronze_and_once_in_silver(lake: LakeUnderTest) -> None:
    values = encode(trades(10))
    lake.bus.write("a", values)
    lake.bus.write("b", values)
    assert lake.ingest() == {"bronze.events": 20, "silver.trades": 10}
    silver = lake.rows(TRADES.table)

    # The same replay again, in a session of its own, and further than before.
    lake.bus.write("c", encode(trades(15), session="s2"))
    assert lake.ingest() == {"bronze.events": 15, "silver.trades": 5}
    assert [row for row in lake.rows(TRADES.table) if row in silver] == silver
    assert lake.count(TRADES.table) == 15

    # Nothing new: nothing is written.
    assert lake.ingest() == {}


def test_what_can_not_be_decoded_is_set_aside_and_the_stream_goes_on(lake: LakeUnderTest) -> None:
    good = encode(trades(3))
    bad_price = NormalizedEvent.FromString(encode(trades(1, start=5))[0])
    bad_price.trade.price_str = "0.0000000000000000001"
    lake.bus.write("a", [good[0], b"\xff\xff", good[1], None, b"", bad_price.SerializeToString()])
    lake.bus.write("b", [good[2]])
    assert lake.ingest() == {"bronze.events": 4, "silver.trades": 3, "bronze.quarantine": 4}
    undecodable = {row[7]: (row[2], row[1]) for row in lake.quarantine if row[0] == "bronze.events"}
    assert undecodable.keys() == {"part-a.parquet:1", "part-a.parquet:3", "part-a.parquet:4"}
    assert undecodable["part-a.parquet:1"] == (b"\xff\xff", "failed to decode Protobuf message: unexpected EOF in varint")
    assert undecodable["part-a.parquet:3"] == (None, "the record has no value")
    assert undecodable["part-a.parquet:4"][1].startswith("the payload is absent")
    refused = [row for row in lake.quarantine if row[0] == "silver.trades"]
    assert [(row[1].partition(":")[0], bytes(row[2])) for row in refused] == [("price", bad_price.SerializeToString())]


def test_book_changes_keep_their_levels_in_order(lake: LakeUnderTest) -> None:
    change = BookChange(
        symbol="XBTUSD",
        exchange="bitmex",
        is_snapshot=True,
        bids=[BookLevel(9000, 1), BookLevel(8999.5, 0)],
        asks=[BookLevel(9001, 0.1)],
        timestamp=to_timestamp(START_US),
        local_timestamp=to_timestamp(START_US),
    )
    lake.bus.write("a", encode([change, *trades(2)]))
    assert lake.ingest() == {"bronze.events": 3, "silver.trades": 2, "silver.book_changes": 1}
    row = lake.lake.read(lake.spark, BOOK_CHANGES.table).first()
    assert row is not None
    assert row.is_snapshot is True
    assert [(level.price, level.amount) for level in row.bids] == [(9000, 1), (Decimal("8999.5"), 0)]
    assert [(level.price, level.amount) for level in row.asks] == [(9001, Decimal("0.1"))]


def test_a_running_job_takes_files_as_they_come_and_stops_when_told(lake: LakeUnderTest) -> None:
    stop = threading.Event()
    lake.bus.write("a", encode(trades(2)))
    job = Ingest(lake.spark, lake.lake, FilesSource(lake.bus.folder))
    seen: list[int] = []

    def report(counts: list) -> None:  # type: ignore[type-arg]
        rows = counts[-1].rows.get("silver.trades", 0) if len(counts) == 2 else 0
        if rows == 2 and not seen:
            seen.append(rows)
            lake.bus.write("b", encode(trades(3, start=2), session="s2"))
        if rows == 5 and (counts[0].left, counts[1].left) == ({"files": 0}, {"rows for silver": 0}):
            stop.set()

    threading.Timer(300, stop.set).start()
    began = time.monotonic()
    job.run(0.5, stop, report)
    assert time.monotonic() - began < 300
    assert lake.count(TRADES.table) == 5
    assert not lake.spark.streams.active


def test_a_job_answers_at_its_metrics_port_as_long_as_it_runs(lake: LakeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, port = threading.Event(), free_port()
    monkeypatch.setattr(jobs, "open_writing_session", lambda *_: lake.spark)
    monkeypatch.setattr(jobs, "stop_signal", lambda: nullcontext(stop))
    lake.bus.write("a", [*encode(trades(3)), b"not an event"])
    flags = ["--from", "files", "--file-dir", str(lake.bus.folder), "--lake", lake.lake.root]
    settings = resolve([*flags, "--until", "silver", "--trigger", "1s", "--metrics-port", str(port)], {}, command="lake ingest")
    before = metric_values(render_metrics().decode())

    def grown(name: str) -> float:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return metric_values(answer.read().decode()).get(name, 0) - before.get(name, 0)

    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(jobs.ingest, settings)
        try:
            while not job.done() and not _is_listening(port):
                time.sleep(0.1)
            while not job.done() and grown('lake_rows_total{table="silver.trades"}') < 3:
                time.sleep(0.2)
            assert not job.done(), job.exception()
            assert grown('lake_rows_total{table="bronze.events"}') == 3
            assert grown("lake_quarantined_total") == 1
            assert grown('lake_batches_total{stream="silver"}') >= 1
            assert grown("lake_lost_total") == 0
        finally:
            stop.set()
        assert job.result(120) == 0
    assert not _is_listening(port)


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_what_is_left_is_told_for_every_layer(lake: LakeUnderTest) -> None:
    # First the streams find tables that are there, then what was added to them.
    for first, until in ((0, "gold"), (2, "silver")):
        for number in range(first, first + 2):
            lake.bus.write(str(number), encode(trades(number + 2, start=100 * number), session=f"s{number}"))
        with watched_streams() as watched:
            counts = Ingest(lake.spark, lake.lake, lake.source, max_batch_bytes=1, until=until, gold=["bars_1m"]).run_once()
        bronze, *later = watched
        layers = [f"rows for {stream.stream.name.partition('-')[0]}" for stream in later]
        assert layers == ["rows for silver", "rows for gold"][: len(later)]
        assert [stream.left for stream in counts] == [{"files": 0}, *({layer: 0} for layer in layers)]
        for stream, layer in zip(later, layers, strict=True):
            assert_left_is_what_comes_later(stream, layer)
    lake.bus.write("late", encode(trades(1)))
    assert bronze.stream.count_left([]) == {"files": 1}


def test_the_driver_shares_its_memory_between_threads(lake: LakeUnderTest) -> None:
    assert lake.spark.sparkContext._jvm.System.getenv("MALLOC_ARENA_MAX") == "2"  # type: ignore[union-attr]


def test_a_folder_that_is_not_there_is_named(lake: LakeUnderTest) -> None:
    job = Ingest(lake.spark, lake.lake, FilesSource(lake.bus.folder / "nowhere"))
    with pytest.raises(LakeError, match=r"there is no folder .*nowhere to read files from; name another with --file-dir"):
        job.run_once()


def test_files_that_spark_wrote_are_read_like_those_of_workers(lake: LakeUnderTest) -> None:
    bad_price = NormalizedEvent.FromString(encode(trades(1, start=90))[0])
    bad_price.trade.price_str = "0.0000000000000000001"
    lake.bus.write("a", [*encode(trades(10)), bad_price.SerializeToString()])
    lake.bus.write("b", encode(trades(20), session="s2"))
    lake.ingest()
    assert {item.table: item.files_after for item in optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)}["bronze.events"] == 1
    # Joined by Spark, with the times of another type.
    lake.bus.write("c", encode(trades(25), session="s3"))
    assert lake.ingest() == {"bronze.events": 25, "silver.trades": 5}
    silver = lake.rows(TRADES.table)
    assert len(silver) == 25
    for folder in ("silver", "_checkpoints/silver"):
        shutil.rmtree(f"{lake.lake.root}/{folder}")
    assert lake.ingest() == {"silver.trades": 25, "bronze.quarantine": 1}
    # Of the first session that brought each.
    assert lake.rows(TRADES.table) == silver


def test_a_table_that_is_more_than_its_files_is_refused(lake: LakeUnderTest) -> None:
    lake.bus.write("a", encode(trades(10)))
    lake.ingest()
    name = f"delta.`{lake.lake.path(TRADES.table)}`"
    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    lake.bus.write("b", encode(trades(12), session="s2"))
    with pytest.raises(LakeError, match=r"^silver\.trades in .* has features that make it more than its files, .* DROP FEATURE"):
        lake.ingest()


def test_a_checkpoint_without_its_progress_is_refused_and_skips_no_batch(lake: LakeUnderTest, tmp_path: Path) -> None:
    lake.bus.write("a", encode(trades(10)))
    lake.ingest(until="bronze")
    (checkpoint,) = (tmp_path / "lake" / "_checkpoints").glob("bronze-*")
    shutil.copytree(checkpoint, tmp_path / "older")
    lake.bus.write("b", encode(trades(20, start=10), session="s2"))
    lake.ingest(until="bronze")
    shutil.rmtree(checkpoint / "progress")
    lake.bus.write("c", encode(trades(5, start=100), session="s3"))
    with pytest.raises(LakeError, match=r"the progress of the stream 'bronze-.*' was removed .* remove .*bronze-.* as a whole"):
        lake.ingest(until="bronze")
    # An older copy: Spark itself would not see that its batches were there before.
    shutil.copytree(tmp_path / "older" / "progress", checkpoint / "progress")
    with pytest.raises(LakeError, match="replaced by an older one"):
        lake.ingest(until="bronze")
    shutil.rmtree(checkpoint)
    assert lake.count(EVENTS) == 30
    lake.ingest(until="bronze")
    assert lake.count(EVENTS) == 65, "as it says: a new stream begins"


def test_what_spark_planned_is_on_disk_before_a_table_notes_the_batch(
    lake: LakeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut leaves a batch that is done by its number, and nobody knows which records it had."""
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()).removeprefix(f"{lake.lake.root}/"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    lake.bus.write("a", encode(trades(10)))
    lake.bus.write("b", encode(trades(10, start=10), session="s2"))
    lake.ingest(max_batch_bytes=1)
    (bronze,) = (path.name for path in Path(lake.lake.root, "_checkpoints").glob("bronze-*"))
    for stream, table in ((bronze, "bronze/events"), ("silver", "silver/trades")):
        assert synced.index(f"_checkpoints/{stream}/identity.new") < synced.index(f"{table}/_delta_log/{1:020}.json")
        for batch in range(2):
            entry = f"{table}/_delta_log/{batch + 1:020}.json"
            assert f'"version":{batch}' in Path(lake.lake.root, entry).read_text()
            assert synced.index(f"_checkpoints/{stream}/progress/offsets/{batch}") < synced.index(entry)
    assert synced.index(f"_checkpoints/{bronze}/progress/sources/0/1") < synced.index(f"bronze/events/_delta_log/{2:020}.json")
