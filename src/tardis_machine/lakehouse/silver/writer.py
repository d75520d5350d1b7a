"""bronze.events to the silver tables: typed, and each event once, however many sessions, buses and reruns brought it.

Where workers reach the files of bronze, Spark only tells which files a batch has, and workers do the rest (`task`). Elsewhere Spark
reads, compares and writes rows; whole rows are compared only where ids alone have shown that a part of them is repeated.

Invariant: an event is in its table once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from ..appending import Appender
from ..commits import Commits
from ..lake import Lake
from ..streams import BatchWriter, read_table_stream
from ..tables import EVENTS, Table
from ..tasks import cores, each_item, tasks
from . import SILVER_TABLES, SilverTable
from .repeats import ORDER
from .task import SilverTask, decode_events, run_task

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
            )
            .collect()
        )
        for silver in SILVER_TABLES:
            own = [span for span in spans if span["payload_case"] in silver.cases]
            if own:
                events = batch.where(F.col("payload_case").isin(*silver.cases))
                fresh = self._without_repeats(events, silver, own)
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
    """Tasks for the files that rows name: by date and exchange, and where files are large several of them for each."""
    storage = commits.storage
    paths: dict[tuple[str | None, str | None], set[str]] = {}
    for row in found:
        place = (None if row["date"] is None else str(row["date"]), row["exchange"])
        paths.setdefault(place, set()).add(storage.to_path(unquote(row[_FILE])))
    places = [{"date": date, "exchange": exchange} for date, exchange in paths]
    known = {table.name.partition(".")[2]: commits.files(table, places) for table in tables}
    planned = []
    for place, own in paths.items():
        own_known = {name: tuple(files[place]) for name, files in known.items()}
        size_bytes = sum(file.size or 0 for file in storage.filesystem.get_file_info([*own]))
        parts = min(most, 1 + size_bytes // _TASK_BYTES)
        planned += [SilverTask(storage, *place, tuple(sorted(own)), part, parts, own_known) for part in range(parts)]
    return planned


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
