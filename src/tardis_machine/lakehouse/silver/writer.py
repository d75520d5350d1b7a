"""bronze.events to the silver tables: typed, and each event once, however many sessions, buses and reruns brought it.

Executions that several recorders heard, or a recorder and a later backfill, are besides kept once (`venue_identity`). What else several
recorders heard, such as changes of books, is kept of each: it can't be told apart, and gold chooses.

Where workers reach the files of bronze, Spark only tells which files a batch has, and workers do the rest (`task`). Elsewhere Spark
reads, compares and writes rows; whole rows are compared only where ids alone have shown that a part of them is repeated.

Invariant: an event is in its table once, and so is an execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from ..appending import Appender
from ..commits import MAX_SKEW_US, Commits
from ..lake import Lake
from ..streams import BatchWriter, read_table_stream, with_decoded
from ..tables import EVENTS, Table
from ..tasks import cores, each_item, tasks
from . import SILVER_TABLES, SilverTable
from .repeats import ORDER
from .task import SilverTask, decode_events, run_task
from .venue_identity import VENUE_COLUMNS, find_unpaired

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["SilverWriter", "read_events"]

_FILE = "file_path"
_TASK_BYTES = 4 * 1024**2
"""Of files, for which a further task is worth its start."""


def read_events(spark: SparkSession, lake: Lake, max_batch_bytes: int) -> DataFrame:
    """What is appended to bronze.events, as the writer takes it: the files, where workers reach them, or else the rows."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = read_table_stream(spark, lake, EVENTS, max_batch_bytes)
    if Appender(lake).commits_for([EVENTS]) is None:
        return rows
    # Nothing but the kind is read of the files themselves.
    return rows.select("date", "exchange", "payload_case", F.input_file_name().alias(_FILE))


class SilverWriter(BatchWriter):
    """Appends batches of bronze events to the tables of their payload cases."""

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Appends to each table what it has not yet."""
        if _FILE in batch.columns:
            self._write_files(batch, batch_id)
        else:
            self._write_rows(batch, batch_id)

    def _write_files(self, batch: DataFrame, batch_id: int) -> None:
        commits = self.appender.commits
        assert commits is not None, "files are only read where workers reach them"
        found = batch.distinct().collect()
        cases = {row["payload_case"] for row in found}
        tables = [silver.table for silver in SILVER_TABLES if cases.intersection(silver.cases)]
        if not tables:
            return
        for table in tables:
            self.prepare(batch.sparkSession, table)
        planned = _plan_tasks(found, tables, commits, cores(batch.sparkSession))
        self.append_batch(tasks(batch.sparkSession, planned), partial(each_item, planned, run_task), tables, batch_id)

    def _write_rows(self, batch: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        spans = (
            batch.groupBy("payload_case", "date", "exchange")
            .agg(
                F.min("local_ts").alias("first"),
                F.max("local_ts").alias("last"),
                F.count(F.lit(1)).alias("rows"),
                F.count_distinct("event_id").alias("events"),
                F.count_distinct("session").alias("sessions"),
            )
            .collect()
        )
        for silver in SILVER_TABLES:
            own = [span for span in spans if span["payload_case"] in silver.cases]
            if own:
                events = batch.where(F.col("payload_case").isin(*silver.cases))
                fresh = self._without_repeats(events, silver, own)
                if fresh is not None and silver.name in VENUE_COLUMNS:
                    fresh = self._without_known_executions(fresh, silver, own)
                if fresh is not None:
                    self.append_batch(fresh, to_silver, [silver.table], batch_id)

    def _without_repeats(self, events: DataFrame, silver: SilverTable, spans: list[Row]) -> DataFrame | None:
        """The events that are new, each once; None where there are none."""
        distinct = sum(span["events"] for span in spans)
        once = events if distinct == sum(span["rows"] for span in spans) else _first_copies(events)
        self.prepare(events.sparkSession, silver.table)
        known = self._known_ids(events, silver, spans)
        if known.isEmpty():
            return once
        repeated = known.join(events.select("event_id"), "event_id", "left_semi").count()
        if repeated == distinct:
            return None
        return once.join(known, "event_id", "left_anti") if repeated else once

    def _without_known_executions(self, events: DataFrame, silver: SilverTable, spans: list[Row]) -> DataFrame:
        """The events that are no execution that another session brought."""
        from pyspark.sql import functions as F  # noqa: N812

        columns, reach = VENUE_COLUMNS[silver.name], timedelta(microseconds=MAX_SKEW_US)
        days = {span["date"] + timedelta(days=step) for span in spans for step in (-1, 0, 1)}
        times = min(span["first"] for span in spans) - reach, max(span["last"] for span in spans) + reach
        known = self.lake.read(events.sparkSession, silver.table).where(
            F.col("date").isin(*days)
            & F.col("exchange").isin(*{span["exchange"] for span in spans})
            & F.col("event_ts").between(*times)
        )
        if all(span["sessions"] < 2 for span in spans) and known.isEmpty():
            return events
        decoded = with_decoded(events, partial(decode_payloads, silver.name), silver.ddl)
        rows = decoded.select("exchange", *columns, "session", "sequence", "local_ts", "event_id")
        known = known.select("exchange", *columns, "session")
        name = silver.name

        def unpaired(rows: pa.Table, known: pa.Table) -> pa.Table:
            return rows.filter(pa.array(find_unpaired(rows, known, name))).select(["event_id"])

        place = ("exchange", "symbol")
        new = rows.groupBy(*place).cogroup(known.groupBy(*place)).applyInArrow(unpaired, "event_id BINARY")
        return events.join(new, "event_id", "left_semi")

    def _known_ids(self, events: DataFrame, silver: SilverTable, spans: list[Row]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        rows = self.lake.read(events.sparkSession, silver.table).where(
            F.col("date").isin(*{span["date"] for span in spans})
            & F.col("local_ts").between(min(span["first"] for span in spans), max(span["last"] for span in spans))
        )
        exchanges = {span["exchange"] for span in spans}
        if None not in exchanges:
            rows = rows.where(F.col("exchange").isin(*exchanges))
        return rows.select("event_id")


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
        size_bytes = sum(file.size or 0 for file in storage.filesystem.get_file_info([path for _, path in own]))
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


def _first_copies(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    # Which of several equal events stays is fixed, not left to the order in which tasks end.
    order = Window.partitionBy("event_id").orderBy(*(F.col(name).asc_nulls_last() for name in ORDER))
    return events.withColumn("_copy", F.row_number().over(order)).where("_copy = 1").drop("_copy")


def to_silver(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """Rows of bronze as rows of silver."""
    for events in batches:
        yield from decode_events(events)


def decode_payloads(table: str, values: pa.Array) -> pa.Array:
    """The columns of a silver table, named so that workers find it by themselves."""
    return next(silver for silver in SILVER_TABLES if silver.name == table).decode(values)
