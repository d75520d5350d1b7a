"""What the lake takes in: rows a second for each stage, and as a share of reading the same source into nothing.

    python -m benchmarks lakehouse [-- --events 500000]

Invariant: ratios compare stages of one run on one machine, over the same files; each stage is warmed by a small one before.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Table, to_count
from tardis_machine.eventbus.encoding import BronzeEncoder
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.session import start_session
from tardis_machine.lakehouse.sources import files
from tardis_machine.lakehouse.tables import Lake
from tardis_machine.messages import Trade, to_timestamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_A_FILE = 62_500
START_US = 1_580_515_200_000_000
META = {"request_id": "0123456789abcdef", "transport": "http", "route": "/replay-normalized", "app_version": "1.0.0"}


def write_files(folder: Path, events: int, session: str) -> None:
    """Trades of one symbol, a millisecond apart, as the file bus writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = BronzeEncoder(session_id=session, origin="replay", meta=META)
    for first in range(0, events, EVENTS_A_FILE):
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
            for n in range(first, min(first + EVENTS_A_FILE, events))
        ]
        encoded = encoder.encode(trades)
        table = pa.table(
            {
                "value": pa.array([event.value for event in encoded], pa.binary()),
                "key": pa.array(["bitmex|XBTUSD|trade"] * len(encoded)),
                "headers": pa.array(
                    [[("payloadCase", "trade"), ("dataType", "trade"), ("eventId", event.event_id.hex())] for event in encoded],
                    pa.map_(pa.string(), pa.string()),
                ),
                "destination": pa.array(["events"] * len(encoded)),
            }
        )
        pq.write_table(table, folder / f"part-{session}-{first}.parquet", compression="zstd")


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_to_nothing(spark: SparkSession, bus: Path, checkpoint: Path) -> None:
    """The source alone: the same stream, written nowhere."""
    records = files.read_stream(spark, SimpleNamespace(file_dir=bus), 256 * 1024**2)
    query = records.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def measure(spark: SparkSession, work_dir: Path, events: int) -> dict[str, float]:
    """Seconds of each stage."""
    bus, lake = work_dir / "bus", Lake.at(work_dir / "lake")
    write_files(bus, events, "s1")
    to_bronze = Ingest(spark, lake, "files", SimpleNamespace(file_dir=bus), until="bronze")
    to_silver = Ingest(spark, lake, "files", SimpleNamespace(file_dir=bus))
    times = {
        "files to noop": seconds(lambda: read_to_nothing(spark, bus, work_dir / "noop")),
        "files to bronze": seconds(to_bronze.run_once),
        "bronze to silver": seconds(to_silver.run_once),
    }
    write_files(bus, events, "s2")
    to_bronze.run_once()
    times["bronze to silver, all repeated"] = seconds(to_silver.run_once)
    return times


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=500_000)
    events = parser.parse_args().events
    spark = start_session(master="local[2]", long_running=True)
    work_dir = Path(tempfile.mkdtemp(prefix="bench-lake-"))
    try:
        measure(spark, work_dir / "warm", min(events, 20_000))
        times = measure(spark, work_dir / "measured", events)
    finally:
        spark.stop()
        shutil.rmtree(work_dir, ignore_errors=True)
    noop = times["files to noop"]
    table = Table(f"{to_count(events)} trades", "", "rows/s", "of noop")
    for stage, taken in times.items():
        table.add(stage, to_count(events / taken), f"{noop / taken:.2f}")
    table.show()


if __name__ == "__main__":
    main()
