"""What it costs that all of a lake is on disk before anything refers to it: the same records with syncing and without.

    python -m benchmarks lake_sync [-- --events 500000]

Large batches tell what a row costs, batches of a hundred rows what a batch does. What syncing takes is the disk's affair: a disk that
writes to where a power cut does not reach takes as good as nothing, others wait for it.

Invariant: both lakes of a round have the same records, one after the other; which of them is first changes from round to round.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.bench_lake_growth import Durations
from benchmarks.bench_lakehouse import Cost, measured, write_files
from benchmarks.report import Table, spread, to_count
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.session import start_session
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.lakehouse.storage import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROUNDS = 3
EVENTS_A_BATCH, BATCHES = 100, 20
WARM_UP = 5
"""Batches of a job that are not counted."""
STAGES = ("bronze", "silver")


class Unsynced(Folder):
    """A folder that leaves it to the kernel when something is on disk."""

    def sync(self, paths: Iterable[str]) -> None:
        pass

    def write_bytes(self, path: str, content: bytes | pa.Buffer) -> None:
        unfinished = Path(f"{path}.new")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.rename(path)


FOLDERS = {"with": Folder, "without": Unsynced}


def take_in(spark: SparkSession, source: FilesSource, lake: Lake) -> dict[str, Cost]:
    """Large batches, layer by layer."""
    return {stage: measured(Ingest(spark, lake, source, until=stage).run_once) for stage in STAGES}


def take_in_small(spark: SparkSession, source: FilesSource, lake: Lake) -> dict[str, float]:
    """Milliseconds of a small batch, by layer."""
    durations = Durations(spark)
    Ingest(spark, lake, source, max_batch_bytes=1).run_once()
    return {stage: median(taken[WARM_UP:]) for stage, taken in durations.end().items()}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks lake_sync --", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--events", type=int, default=500_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-sync-"))
    spark = start_session(master="local[2]", long_running=True)
    large: dict[str, list[dict[str, Cost]]] = {kind: [] for kind in FOLDERS}
    small: dict[str, list[dict[str, float]]] = {kind: [] for kind in FOLDERS}
    try:
        write_files(folder / "large", given.events, "s")
        for batch in range(BATCHES):
            write_files(folder / "small", EVENTS_A_BATCH, f"s{batch:03}", first=batch * EVENTS_A_BATCH)
        for number in range(ROUNDS + 1):
            for kind in sorted(FOLDERS, reverse=bool(number % 2)):
                lakes = [Lake(FOLDERS[kind](str(folder / f"{kind}-{number}-{size}"))) for size in ("large", "small")]
                for lake in lakes:
                    lake.create()
                large[kind].append(take_in(spark, FilesSource(folder / "large"), lakes[0]))
                small[kind].append(take_in_small(spark, FilesSource(folder / "small"), lakes[1]))
                for lake in lakes:
                    shutil.rmtree(lake.root)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    show_large(given.events, large)
    show_small(small)


def show_large(events: int, found: dict[str, list[dict[str, Cost]]]) -> None:
    """Rows of large batches; the first round warms up."""
    title = f"{to_count(events)} trades in files; the median of {ROUNDS} rounds"
    table = Table(title, "", "rows/s with", "", "rows/s without", "", "ratio", "CPU µs a row with", "without")
    for stage in STAGES:
        costs = {kind: [costs[stage] for costs in rounds[1:]] for kind, rounds in found.items()}
        cells = []
        for kind in FOLDERS:
            rates = [events / cost.wall_s for cost in costs[kind]]
            cells += [to_count(median(rates)), spread(rates)]
        ratio = median(other.wall_s / one.wall_s for one, other in zip(costs["with"], costs["without"], strict=True))
        cpu_us = [median(cost.cpu_s / events * 1e6 for cost in costs[kind]) for kind in FOLDERS]
        table.add(stage, *cells, f"{ratio:.2f}", *(f"{each:.1f}" for each in cpu_us))
    table.show()


def show_small(found: dict[str, list[dict[str, float]]]) -> None:
    """Batches of few rows."""
    title = f"a batch of {EVENTS_A_BATCH} trades, {BATCHES - WARM_UP} of each round; the median of {ROUNDS} rounds"
    table = Table(title, "", "ms with", "", "ms without", "")
    for stage in STAGES:
        cells = []
        for rounds in found.values():
            taken = [each[stage] for each in rounds[1:]]
            cells += [f"{median(taken):.0f}", spread(taken)]
        table.add(stage, *cells)
    table.show()


if __name__ == "__main__":
    main()
