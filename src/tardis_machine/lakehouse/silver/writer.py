"""bronze.events to the silver tables: typed, and each event once, however many sessions, buses and reruns brought it.

Books that came in parts are put together (`whole_books`).

Executions that several recorders heard, or a recorder and a later backfill, are besides kept once (`venue_identity`). What else several
recorders heard, such as changes of books, is kept of each: it can't be told apart, and gold chooses.

Spark only tells which files of bronze a batch has, and workers do the rest (`task`).

Invariant: an event is in its table once, and so is an execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from ..commits import Commits
from ..lake import Lake
from ..streams import BatchWriter, read_table_stream
from ..tables import EVENTS, QUARANTINE, Table
from ..tasks import cores, each_item, tasks
from . import SILVER_TABLES
from .task import SilverTask, run_task
from .venue_identity import VENUE_COLUMNS
from .whole_books import BOOK_PARTS, SPLIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["SilverWriter", "read_events"]

_FILE = "file_path"
_TASK_BYTES = 4 * 1024**2
"""Of files, for which a further task is worth its start."""


def read_events(spark: SparkSession, lake: Lake, max_batch_bytes: int) -> DataFrame:
    """What is appended to bronze.events, as the writer takes it: the files."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = read_table_stream(spark, lake, EVENTS, max_batch_bytes)
    # Nothing but the kind is read of the files themselves.
    return rows.select("date", "exchange", "payload_case", F.input_file_name().alias(_FILE))


class SilverWriter(BatchWriter):
    """Appends batches of bronze events to the tables of their payload cases."""

    shared = (QUARANTINE, BOOK_PARTS)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Appends to each table what it has not yet."""
        tables, planned = self._plan(batch)
        if tables:
            self.append_batch(tasks(batch.sparkSession, planned), partial(each_item, planned, run_task), tables, batch_id)

    def write_missed(self, batch: DataFrame) -> None:
        """Appends what tables lack of a batch that was written before; what was refused then is in the quarantine already."""
        tables, planned = self._plan(batch)
        if not tables:
            return
        work = partial(each_item, planned, run_task)
        files = self.appender.write(tasks(batch.sparkSession, planned), work, *tables, QUARANTINE)
        for table in tables:
            self.appender.commits.commit(table, [file for file in files if file.table == table.name])
        self.appender.commits.remove(QUARANTINE, [file for file in files if file.table == QUARANTINE.name])

    def _plan(self, batch: DataFrame) -> tuple[list[Table], list[SilverTask]]:
        """The tables that a batch has rows of, and the tasks for its files."""
        found = batch.distinct().collect()
        cases = {row["payload_case"] for row in found}
        present = [silver for silver in SILVER_TABLES if cases.intersection(silver.cases)]
        if not present:
            return [], []
        # Parts come last: a batch that is cut off before that still has all its parts to put together.
        tables = [
            *(silver.table for silver in present),
            *([BOOK_PARTS] if SPLIT.keys() & {silver.name for silver in present} else ()),
        ]
        for table in tables:
            self.prepare(table)
        return tables, _plan_tasks(found, tables, self.appender.commits, cores(batch.sparkSession))


def _plan_tasks(found: list[Row], tables: list[Table], commits: Commits, most: int) -> list[SilverTask]:
    """Tasks for the files that rows name: by exchange and dates that follow one another, where files are large several for each."""
    storage = commits.storage
    paths: dict[str | None, dict[str | None, set[str]]] = {}
    for row in found:
        day = None if row["date"] is None else str(row["date"])
        paths.setdefault(row["exchange"], {}).setdefault(day, set()).add(storage.to_path(unquote(row[_FILE])))
    groups = [(exchange, days) for exchange, by_day in paths.items() for days in _runs(by_day)]
    places = [{"date": day, "exchange": exchange} for exchange, days in groups for day in _with_neighbours(days)]
    known = {table.name.partition(".")[2]: commits.files(table, places) for table in tables}
    planned = []
    for exchange, days in groups:
        own = tuple((day, path) for day in days for path in sorted(paths[exchange][day]))
        own_known = {
            name: tuple(
                file
                # One execution may be received before midnight by one recorder, and after it by another.
                for day in (_with_neighbours(days) if name in VENUE_COLUMNS else days)
                for file in files[day, exchange]
            )
            for name, files in known.items()
        }
        size_bytes = sum(size or 0 for size in storage.sizes([path for _, path in own]))
        parts = min(most, 1 + size_bytes // _TASK_BYTES)
        planned += [SilverTask(storage, exchange, own, part, parts, own_known) for part in range(parts)]
    return planned


def _runs(days: Iterable[str | None]) -> list[list[str | None]]:
    """Dates that follow one another, together."""
    runs: list[list[str | None]] = []
    for day in sorted(days, key=lambda day: day or ""):
        if runs and day is not None and _moved(runs[-1][-1], 1) == day:
            runs[-1].append(day)
        else:
            runs.append([day])
    return runs


def _with_neighbours(days: Sequence[str | None]) -> list[str | None]:
    """The dates, with the one before them and the one after them."""
    return [*dict.fromkeys(_moved(day, step) for day in days for step in (-1, 0, 1))]


def _moved(day: str | None, days: int) -> str | None:
    if day is None:
        return None
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()


def decode_payloads(table: str, values: pa.Array) -> pa.Array:
    """The columns of a silver table, named so that workers find it by themselves."""
    return next(silver for silver in SILVER_TABLES if silver.name == table).decode(values)
