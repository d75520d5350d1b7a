"""What the lake takes in: rows a second for each stage, and as a share of reading the same source into nothing.

    python -m benchmarks lakehouse [-- --events 2000000] [-- --only books bars]

First a backfill of the cached sample hour of five exchanges on two days, five times. Then stages, four times in one JVM: the first round
also pays for what the JVM compiles, and a job of hours runs like the median of the others. Files go to a folder, and to an S3 server
that takes its part of the same cores. And once books that are rebuilt, bars over ten times the trades, and how many files small batches
leave.
The processor time of a row does not depend on what else the machine does; two idle cores do two rows in that time.

Invariant: ratios compare stages of one round, over the same records.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import sample_hour
from benchmarks.report import Table, spread, to_count, to_ratio
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.history.reader import read_lines
from tardis_machine.lakehouse.backfill import Backfill
from tardis_machine.lakehouse.gold.rebuilding import CHANGE, rebuild
from tardis_machine.lakehouse.gold.touched import PLACE
from tardis_machine.lakehouse.ingest import Ingest, refine
from tardis_machine.lakehouse.lake import Lake, prepare_table
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.session import find_jars, start_session
from tardis_machine.lakehouse.silver.book_changes import BOOK_CHANGES
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.sources import Source
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.lakehouse.sources.records import DDL
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.messages import Trade, to_timestamp
from tardis_machine.pipeline.request import parse_normalized_request
from tests.servers.seaweedfs import SeaweedServer
from tests.spark.source_under_test import SourceUnderTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = ("backfill", "files", "s3", "kafka", "books", "bars", "small")
ROUNDS, BACKFILLS = 4, 5
DAYS = (1, 2)
EVENTS_A_FILE = 62_500
START_US = 1_580_515_200_000_000
KEY = "bitmex|XBTUSD|trade"
META = {"request_id": "0123456789abcdef", "transport": "http", "route": "/replay-normalized", "app_version": "1.0.0"}


def encode_trades(events: int, session: str, start: int = 0) -> Iterator[list[Any]]:
    """Trades of one symbol, a millisecond apart, encoded, a file's worth at a time."""
    encoder = BronzeEncoder(session_id=session, origin="replay", meta=META)
    for first in range(start, start + events, EVENTS_A_FILE):
        trades = [
            Trade(
                symbol="XBTUSD",
                exchange="bitmex",
                id=f"{n:032x}",
                price=9000 + n % 1000 / 2,
                amount=n % 5000 + 1,
                side="buy" if n % 2 else "sell",
                timestamp=to_timestamp(START_US + n * 1000, milliseconds=True),
                local_timestamp=to_timestamp(START_US + n * 1000 + 250),
            )
            for n in range(first, min(first + EVENTS_A_FILE, start + events))
        ]
        yield encoder.encode(trades)


def headers_of(event: Any) -> list[tuple[str, str]]:
    """As the publisher puts them on a record."""
    return [("payloadCase", "trade"), ("dataType", "trade"), ("eventId", event.event_id.hex())]


def write_files(folder: Path, events: int, session: str, first: int = 0) -> None:
    """Files as the file bus writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, encoded in enumerate(encode_trades(events, session, first)):
        table = pa.table(
            {
                "value": pa.array([event.value for event in encoded], pa.binary()),
                "key": pa.array([KEY] * len(encoded)),
                "headers": pa.array([headers_of(event) for event in encoded], pa.map_(pa.string(), pa.string())),
                "destination": pa.array(["events"] * len(encoded)),
            }
        )
        pq.write_table(table, folder / f"part-{session}-{number}.parquet", compression="zstd")


def write_topic(source: SourceUnderTest, events: int) -> None:
    """Records as the Kafka bus writes them, over all partitions."""
    from confluent_kafka import Producer

    keywords = source.bus.keywords()
    producer = Producer({"bootstrap.servers": ",".join(keywords["brokers"]), "linger.ms": 20, "compression.type": "lz4"})
    for encoded in encode_trades(events, "s1"):
        for number, event in enumerate(encoded):
            producer.produce(keywords["topic"], event.value, KEY, partition=number % 3, headers=headers_of(event))
        producer.flush()


class Cost(NamedTuple):
    """What a stage took."""

    wall_s: float
    cpu_s: float


def measured(work: Callable[[], object]) -> Cost:
    """Wall time, and processor time of this process and all below it."""
    began, used = time.perf_counter(), cpu_seconds(os.getpid())
    work()
    wall_s = time.perf_counter() - began
    # Workers that had nothing to do for a while have ended meanwhile, with what they had used before.
    return Cost(wall_s, sum(seconds - used.get(pid, 0.0) for pid, seconds in cpu_seconds(os.getpid()).items()))


def cpu_seconds(pid: int) -> dict[int, float]:
    """What a process and its descendants have used so far, each for itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    except OSError:
        return {}
    used = {pid: sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")}
    for child in children:
        used |= cpu_seconds(child)
    return used


def read_to_nothing(spark: SparkSession, source: Source, checkpoint: Path, *, by_spark_alone: bool = False) -> None:
    """The source alone: the same stream, written nowhere; or what Spark's connector brings, before it is made into records."""
    stream = source.read_stream(spark, 256 * 1024**2)
    rows = stream.rows if by_spark_alone else stream.rows.mapInArrow(stream.to_records, DDL)
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def give(source: Path, bus: Path) -> None:
    """Files that were written before, finished now."""
    bus.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        (bus / file.name).hardlink_to(file)


def measure_files(spark: SparkSession, work_dir: Path, published: Path, lake: Lake) -> dict[str, Cost]:
    """Files through all stages, and once more with everything repeated."""
    bus = work_dir / "bus"
    source = FilesSource(bus)
    give(published / "s1", bus)
    to_bronze = Ingest(spark, lake, source, until="bronze")
    to_silver = Ingest(spark, lake, source)
    costs = {
        "files to noop": measured(lambda: read_to_nothing(spark, source, work_dir / "noop")),
        "files to bronze": measured(to_bronze.run_once),
        "bronze to silver": measured(to_silver.run_once),
    }
    give(published / "s2", bus)
    to_bronze.run_once()
    costs["bronze to silver, all repeated"] = measured(to_silver.run_once)
    costs["silver to bars"] = measured(Ingest(spark, lake, source, until="gold", gold=("bars_1m",)).run_once)
    return costs


def tell(spark: SparkSession, lake: Lake) -> Lake:
    """A session that runs already hears how a store is reached."""
    for option, value in lake.storage.spark_conf.items():
        spark.conf.set(option.removeprefix("spark.hadoop."), value)
    return lake


def show_stores(rounds: list[dict[str, Cost]], stored: list[dict[str, Cost]]) -> None:
    """The same stages on S3, as a share of the folder's speed in the same round."""
    table = Table(f"the same on S3; the median of {len(rounds) - 1}", "", "of the folder's rows/s", "spread")
    for stage in stored[0]:
        if stage != "files to noop":
            ratios = [one[stage].wall_s / other[stage].wall_s for one, other in zip(rounds[1:], stored[1:], strict=True)]
            table.add(stage, f"{median(ratios):.2f}", spread(ratios))
    table.show()


def measure_kafka(spark: SparkSession, work_dir: Path, source: SourceUnderTest) -> dict[str, Cost]:
    """A topic that is full already."""
    to_bronze = Ingest(spark, Lake.at(work_dir / "kafka-lake"), source.source, until="bronze")
    read = partial(read_to_nothing, spark, source.source)
    return {
        "kafka, Spark's connector alone": measured(lambda: read(work_dir / "kafka-alone", by_spark_alone=True)),
        "kafka to noop": measured(lambda: read(work_dir / "kafka-noop")),
        "kafka to bronze": measured(to_bronze.run_once),
    }


def backfill(spark: SparkSession, lake: Lake, minutes: int, days: Sequence[int] = DAYS) -> None:
    """The cached sample of five exchanges to bronze."""
    options = (
        sample_hour.options(name, minutes, "trade", "book_change", day=day) for day in days for name in sample_hour.EXCHANGES
    )
    requests = [*map(parse_normalized_request, options)]
    Backfill(spark, lake, requests, "http://127.0.0.1:9", None, str(sample_hour.cache_dir())).run()


def measure_backfill(spark: SparkSession, work_dir: Path, minutes: int) -> tuple[int, int, list[Cost]]:
    """How many recorded messages, how many rows, and what each round took."""
    backfill(spark, Lake.at(work_dir / "backfill-start"), 1)  # as for the other stages: workers have loaded what they run
    costs, rows = [], 0
    for number in range(BACKFILLS):
        lake = Lake.at(work_dir / f"backfill-{number}")
        costs.append(measured(partial(backfill, spark, lake, minutes)))
        rows = lake.read(spark, EVENTS).count()
        shutil.rmtree(lake.root)
    slices = (piece for name in sample_hour.EXCHANGES for day in DAYS for piece in sample_hour.slices(name, minutes, day))
    return sum(len(read_lines(piece)) for piece in slices), rows, costs


def measure_books(spark: SparkSession, lake: Lake, minutes: int) -> tuple[int, Cost]:
    """The tops of five books that are rebuilt from their changes, which are in silver: how many changes, and what they took."""
    backfill(spark, lake, minutes, DAYS[:1])
    refine(spark, lake, until="silver")
    cost = measured(lambda: refine(spark, lake, until="gold", gold=("top_of_book",)))
    return lake.read(spark, BOOK_CHANGES.table).count(), cost


def measure_rebuilding(spark: SparkSession, lake: Lake) -> tuple[int, float]:
    """The same books from rows in memory, without Spark: how many changes, and the seconds of a core."""
    unknown = "CAST(NULL AS BIGINT)"
    columns = {
        "kind": str(CHANGE),
        "local_us": "unix_micros(local_ts)",
        "event_us": "unix_micros(event_ts)",
        "recorder": "'replay'",
        **dict.fromkeys(("number", "since_us", "until_us"), unknown),
        "has_gap": "false",
        "emit_from_us": "0L",
    }
    changes = lake.read(spark, BOOK_CHANGES.table).orderBy(*PLACE, "local_ts", "sequence")
    computed = (f"{expression} AS {name}" for name, expression in columns.items())
    rows = changes.selectExpr(*PLACE, "is_snapshot", "bids", "asks", "level_count", *computed).toArrow()
    began = time.process_time()
    for _ in rebuild((), rows.to_batches(10_000)):
        pass
    return rows.num_rows, time.process_time() - began


def measure_bars(spark: SparkSession, work_dir: Path, trades: int) -> Cost:
    """Bars of a minute over trades of ten symbols that are in silver."""
    lake = Lake.at(work_dir / f"bars-{trades}")
    for table in (EVENTS, TRADES.table):
        prepare_table(lake, table)
    at = f"timestamp_micros({START_US} + id * 1000)"
    columns = {
        "date": f"to_date({at})",
        "exchange": "'bitmex'",
        "symbol": "concat('S', id % 10)",
        "local_ts": at,
        "event_ts": at,
        "trade_id": "string(id)",
        "price": "CAST(9000 + id % 1000 / 2 AS DECIMAL(38, 18))",
        "amount": "CAST(id % 5000 + 1 AS DECIMAL(38, 18))",
        "side": "CASE WHEN id % 2 = 0 THEN 'buy' ELSE 'sell' END",
        "origin": "'replay'",
        "session": "'s'",
        "sequence": "id",
        "event_id": "unhex(md5(string(id)))",
    }
    rows = spark.range(trades).selectExpr(*(f"{expression} AS {name}" for name, expression in columns.items()))
    rows.write.format("delta").mode("append").save(lake.path(TRADES.table))
    return measured(lambda: refine(spark, lake, until="gold", gold=("bars_1m",)))


def measure_small_files(spark: SparkSession, work_dir: Path, batches: int) -> tuple[int, int]:
    """The most files of a table after so many small batches, and after `optimize`."""
    bus, lake = work_dir / "small", Lake.at(work_dir / "small-lake")
    for number in range(batches):
        write_files(bus, 100, f"s{number}", first=number * 100)
    Ingest(spark, lake, FilesSource(bus), max_batch_bytes=1).run_once()
    sizes = [*optimize(spark, lake, retain_s=MIN_RETAIN_S)]
    return max(size.files_before for size in sizes), max(size.files_after for size in sizes)


def peak_bytes(pid: int) -> int:
    """The most memory that a process had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def driver_bytes() -> int:
    """The peak of the driver's JVM: workers are no driver, and this process holds what the benchmark made."""
    children = [int(pid) for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]
    return max(map(peak_bytes, children))


def show(events: int, rounds: list[dict[str, Cost]]) -> None:
    """The stages: the first round, and the median of those after it."""
    title = f"{to_count(events)} trades in files, and as many in a topic; the first round, then the median of {len(rounds) - 1}"
    table = Table(title, "", "rows/s, first", "rows/s", "spread", "of noop", "CPU µs a row")
    for stage in rounds[0]:
        rates = [events / costs[stage].wall_s for costs in rounds]
        noop = "kafka to noop" if stage.startswith("kafka") else "files to noop"
        ratio = median(costs[noop].wall_s / costs[stage].wall_s for costs in rounds[1:])
        cpu_us = median(costs[stage].cpu_s / events * 1e6 for costs in rounds[1:])
        table.add(stage, to_count(rates[0]), to_count(median(rates[1:])), spread(rates[1:]), f"{ratio:.2f}", f"{cpu_us:.1f}")
    table.show()


def measure_stages(spark: SparkSession, work_dir: Path, events: int, count: int, parts: Collection[str]) -> None:
    """Stages of files, on both kinds of storage, and of a topic; prints them."""
    rounds: list[dict[str, Cost]] = []
    stored: list[dict[str, Cost]] = []
    with ExitStack() as servers:
        for session in ("s1", "s2"):
            write_files(work_dir / "few" / session, min(events, 20_000), session)
            write_files(work_dir / "all" / session, events, session)
        if "s3" in parts:
            s3 = servers.enter_context(SeaweedServer(work_dir / "s3"))
            bucket, options = s3.create_bucket("lakes"), s3.lake_options()
        if "kafka" in parts:
            topic = servers.enter_context(SourceUnderTest("kafka", work_dir / "kafka"))
            write_topic(topic, events)
        measure_files(spark, work_dir / "start", work_dir / "few", Lake.at(work_dir / "start" / "lake"))
        for number in range(count):
            folder = work_dir / str(number)
            costs = measure_files(spark, folder, work_dir / "all", Lake.at(folder / "lake"))
            if "s3" in parts:
                on_s3 = tell(spark, Lake.at(f"s3://{bucket}/{number}", options))
                stored.append(measure_files(spark, work_dir / f"{number}-on-s3", work_dir / "all", on_s3))
                shutil.rmtree(work_dir / f"{number}-on-s3")
            if "kafka" in parts:
                costs |= measure_kafka(spark, folder, topic)
            rounds.append(costs)
            shutil.rmtree(folder)
    show(events, rounds)
    if stored:
        show_stores(rounds, stored)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the stages; the first one is told apart")
    parser.add_argument("--minutes", type=int, default=60, help="of the sample that is backfilled")
    parser.add_argument("--batches", type=int, default=60, help="small ones, for the number of files; an hour at 5 s has 720")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="what is measured; s3 and kafka take files along")
    given = parser.parse_args()
    trades, parts = given.events // 4, {*given.only}
    jars = {"spark.jars": ",".join(map(str, find_jars(also="s3")))}
    spark = start_session(master="local[2]", long_running=True, conf=jars)
    work_dir = Path(tempfile.mkdtemp(prefix="bench-lake-"))
    others = Table(f"others; backfills are the median of {BACKFILLS}", "", "", "spread", "CPU µs a row")
    try:
        if parts & {"backfill", "books"}:
            for day in DAYS:
                sample_hour.fill(given.minutes, day)
        # First, as a backfill has a session of its own.
        if "backfill" in parts:
            recorded, rows, backfills = measure_backfill(spark, work_dir, given.minutes)
            for what, count in (("recorded messages/s", recorded), ("rows/s", rows)):
                speeds = [count / cost.wall_s for cost in backfills]
                cpu_us = median(cost.cpu_s / count * 1e6 for cost in backfills)
                others.add(f"backfill, {what}", to_count(median(speeds)), spread(speeds), f"{cpu_us:.1f}")
        if parts & {"files", "s3", "kafka"}:
            measure_stages(spark, work_dir, given.events, given.rounds, parts)
        if "books" in parts:
            # The first one also pays for what the JVM compiles.
            _, (changes, books) = (
                measure_books(spark, Lake.at(work_dir / f"books-{name}"), given.minutes) for name in ("start", "all")
            )
            others.add("books, changes/s", to_count(changes / books.wall_s), "", f"{books.cpu_s / changes * 1e6:.1f}")
            changes, core_s = measure_rebuilding(spark, Lake.at(work_dir / "books-all"))
            others.add(
                "books from rows in memory, changes/s of a core", to_count(changes / core_s), "", f"{core_s / changes * 1e6:.2f}"
            )
        if "bars" in parts:
            few, many = (measure_bars(spark, work_dir, count) for count in (trades, 10 * trades))
            others.add("bars, trades/s", to_count(10 * trades / many.wall_s), "", f"{many.cpu_s / trades / 10 * 1e6:.1f}")
            others.add("bars, time of ten times the trades", to_ratio(many.wall_s / few.wall_s))
        if "small" in parts:
            before, after = measure_small_files(spark, work_dir, given.batches)
            others.add(f"files of a table after {given.batches} batches, after optimize", f"{before}, {after}")
        others.add("driver's JVM, MB at most", f"{driver_bytes() / 1e6:.0f}")
        others.show()
    finally:
        spark.stop()
        shutil.rmtree(work_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
