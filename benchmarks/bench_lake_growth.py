"""What a batch takes in a lake that has had few, and in one that has had many: both must be the same.

    python -m benchmarks lake_growth [-- --batches 1000]

Small batches of trades go to bronze, silver and bars of gold, a file of the bus each, in one job. How fast a machine is changes by the
minute, so the ratio is of medians over many batches.

Invariant: the batches that are compared have the same number of rows, and the same job takes them in.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.bench_lakehouse import write_files
from benchmarks.report import Table, to_ratio
from tardis_machine.lakehouse.ingest import LAYERS, Ingest
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.session import start_session
from tardis_machine.lakehouse.sources.files import FilesSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_A_BATCH = 200
WARM_UP = 200
"""Batches of another lake: what the JVM compiles is not what is asked for."""
IDLE_S, TRIGGER_S = 60.0, 0.01
COMPARED = 40
"""Batches around the tenth one, and the last ones."""


class Durations:
    """How long the batches of each stream took, as Spark tells."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        self.ms: dict[str, dict[int, int]] = {}
        found, lock = self.ms, threading.Lock()

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:  # noqa: N802
                pass

            def onQueryProgress(self, event: Any) -> None:  # noqa: N802
                progress = event.progress
                if progress.numInputRows:
                    with lock:
                        found.setdefault(progress.name.partition("-")[0], {})[progress.batchId] = progress.batchDuration

            def onQueryIdle(self, event: Any) -> None:  # noqa: N802
                pass

            def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
                pass

        self._spark, self._listener = spark, Listener()
        spark.streams.addListener(self._listener)

    def end(self) -> dict[str, list[int]]:
        """By stream, in the order of its batches."""
        self._spark.streams.removeListener(self._listener)
        return {name: [taken for _, taken in sorted(of_stream.items())] for name, of_stream in self.ms.items()}


def measure(spark: SparkSession, folder: Path, batches: int, until: str, *, auto_optimize: bool) -> dict[str, list[int]]:
    """Milliseconds of each batch, by stream."""
    bus, lake = folder / "bus", Lake.at(folder / "lake")
    for number in range(batches):
        write_files(bus, EVENTS_A_BATCH, f"s{number:05}", first=number * EVENTS_A_BATCH)
    durations, stop, seen = Durations(spark), threading.Event(), [0, time.monotonic()]

    def watch(_: object) -> None:
        counts = [len(taken) for taken in durations.ms.values()]
        if sum(counts) != seen[0]:
            seen[:] = [sum(counts), time.monotonic()]
        if (len(counts) == LAYERS.index(until) + 1 and min(counts) >= batches) or time.monotonic() - seen[1] > IDLE_S:
            stop.set()

    # Beside each other, as in a job that runs for ever: silver so reads bronze as it was written, and not as it was joined later.
    job = Ingest(spark, lake, FilesSource(bus), until=until, gold=("bars_1m",), max_batch_bytes=1, auto_optimize=auto_optimize)
    job.run(TRIGGER_S, stop, watch)
    return durations.end()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks lake_growth --", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--until", choices=LAYERS, default="gold")
    parser.add_argument("--without", action="store_true", help="without joining files in between")
    given = parser.parse_args()
    spark = start_session(master="local[2]", long_running=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-growth-"))
    try:
        measure(spark, folder / "start", WARM_UP, given.until, auto_optimize=not given.without)
        found = measure(spark, folder / "all", given.batches, given.until, auto_optimize=not given.without)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    table = Table(
        f"milliseconds of a batch of {EVENTS_A_BATCH} trades, medians of {COMPARED}; all: means",
        *(
            "",
            "around the 10th",
            f"around the {given.batches // 2}th",
            "the last",
            "ratio",
            "all, first half",
            "all, second half",
        ),
    )
    for name, taken in found.items():
        few, half, many = (median(taken[start : start + COMPARED]) for start in (1, len(taken) // 2, len(taken) - COMPARED))
        middle = len(taken) // 2
        means = (f"{sum(part) / len(part):.0f}" for part in (taken[1:middle], taken[middle:]))
        table.add(name, f"{few:.0f}", f"{half:.0f}", f"{many:.0f}", to_ratio(many / few), *means)
    table.show()


if __name__ == "__main__":
    main()
