"""Rows appended to tables, in one of two ways.

- By workers: they write Parquet files, and the driver commits those (`table_files`, `commits`). It is several times as fast.
- By Spark: its own writer does both. It takes any table, in any storage.

Which way it goes is decided here, for every layer: workers write where they reach the storage, and where all tables are nothing but
their files.

Invariant: either way an append is one commit to each table, and carries the same note of the step that it is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from .commits import Commits, Step
from .lake import Lake
from .table_files import ToRows, write_files, write_files_on_workers
from .tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Appended", "Appender"]


class Appended(NamedTuple):
    """What a batch has for one table."""

    rows: int
    newest_us: int | None
    """The latest broker time among the rows."""
    is_new: bool
    """False: the table had them already, from the same step."""


class Appender:
    """Appends rows to the tables of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        direct = lake.storage.direct
        # None where the lake is reached only through Spark.
        self.commits = None if direct is None else Commits(lake, direct)

    def commits_for(self, tables: Iterable[Table]) -> Commits | None:
        """What commits files that workers write for these tables; None where they are left to Spark."""
        commits = self.commits
        return commits if commits is not None and all(map(commits.is_plain, tables)) else None

    def append(
        self,
        batch: DataFrame,
        to_rows: ToRows,
        tables: Sequence[Table],
        steps: Mapping[str, Step] | None = None,
        *,
        may_repeat: bool = False,
    ) -> Mapping[str, Appended] | None:
        """Appends what workers make of a batch, each row to its table; `steps` has one for each table's name.

        Tells what each table got, or None where nobody counted: `may_repeat` says that tables may have the batch already, and then
        Spark passes over it without a look.
        """
        commits = self.commits_for(tables)
        if commits is None:
            return self._append_by_spark(batch, to_rows, tables, steps or {}, may_repeat=may_repeat)
        files = write_files_on_workers(batch, to_rows, commits.storage, self._folders(*tables))
        appended = {}
        for table in tables:
            own = [file for file in files if file.table == table.name]
            is_new = commits.commit(table, own, (steps or {}).get(table.name))
            newest_us = max((file.newest_us or 0 for file in own), default=0) or None
            appended[table.name] = Appended(sum(file.rows for file in own), newest_us, is_new)
        return appended

    def append_rows(self, rows: DataFrame, table: Table, step: Step | None = None, *, held: pa.Table | None = None) -> None:
        """Appends rows that have the table's columns; `held` are the same rows, where this process has them already."""
        commits = self.commits_for([table])
        if commits is None:
            self.write_by_spark(rows, table, step)
            return
        as_they_are = partial(_as_they_are, table)
        if held is None:
            files = write_files_on_workers(rows.select(*table.columns), as_they_are, commits.storage, self._folders(table))
        else:
            files = write_files(as_they_are, commits.storage, self._folders(table), held.combine_chunks().to_batches())
        commits.commit(table, files, step)

    def _folders(self, *tables: Table) -> dict[str, str]:
        return {table.name: self._lake.path(table) for table in tables}

    def _append_by_spark(
        self, batch: DataFrame, to_rows: ToRows, tables: Sequence[Table], steps: Mapping[str, Step], *, may_repeat: bool
    ) -> Mapping[str, Appended] | None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        # A row with a value becomes one row of one table. One that names a file, or a task, becomes any number.
        is_one_to_one = "value" in batch.columns
        given, appended = Observation(), dict[str, Appended]()
        counted = batch.observe(given, F.count(F.lit(1)).alias("rows"))
        for place, table in enumerate(tables):
            # A batch that is in the table already is not run again, and so is not observed either.
            if place and is_one_to_one and not may_repeat and given.get["rows"] == sum(part.rows for part in appended.values()):
                break
            seen = Observation()
            newest = F.max("broker_timestamp") if "broker_timestamp" in table.columns else F.lit(None).cast("timestamp")
            rows = counted.mapInArrow(partial(_rows_of_table, to_rows, table.name), table.ddl)
            rows = rows.observe(seen, F.count(F.lit(1)).alias("rows"), newest.alias("newest"))
            self.write_by_spark(rows, table, steps.get(table.name))
            if not may_repeat:
                found: dict[str, Any] = seen.get
                newest_us = int(found["newest"].timestamp() * 1_000_000) if found["newest"] else None
                appended[table.name] = Appended(found["rows"], newest_us, is_new=True)
        return None if may_repeat else appended

    def write_by_spark(self, rows: DataFrame, table: Table, step: Step | None) -> None:
        """Appends rows with Spark's writer; those of a step that is in the table already are left out."""
        writer = rows.select(*table.columns).write.format("delta").mode("append")
        if step is not None:
            writer = writer.option("txnAppId", step.app_id).option("txnVersion", step.version)
        with self.spark_commit(table):
            writer.save(self._lake.path(table))

    def spark_commit(self, table: Table) -> AbstractContextManager[None]:
        """Around what Spark commits to a table by itself; it outlasts a power cut afterwards, as far as that is ours to see to."""
        return nullcontext() if self.commits is None else self.commits.spark_commit(table)


def _as_they_are(table: Table, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Table, pa.RecordBatch]]:
    return ((table, rows) for rows in batches)


def _rows_of_table(to_rows: ToRows, table: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one table, for Spark to write; the others are left out."""
    for found, rows in to_rows(batches):
        if found.name == table:
            columns = map(rows.column, found.columns)
            # Spark takes no dictionaries.
            plain = [column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column for column in columns]
            yield pa.RecordBatch.from_arrays(plain, names=[*found.columns])
