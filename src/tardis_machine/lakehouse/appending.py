"""Rows appended to tables: workers write them to Parquet files (`table_files`), and the driver commits those (`commits`).

Spark's own writer would take every row back into the JVM and apart again, which costs several times what decoding it does.

Invariant: an append is one commit to each table, and carries a note of the step that it is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from .commits import Commits, Step
from .lake import Lake
from .table_files import ToRows, WrittenFile, write_files, write_files_on_workers
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
        self.lake = lake
        self.commits = Commits(lake)

    def append(
        self, batch: DataFrame, to_rows: ToRows, tables: Sequence[Table], steps: Mapping[str, Step] | None = None
    ) -> Mapping[str, Appended]:
        """Appends what workers make of a batch, each row to its table; `steps` has one for each table's name.

        Tells what each table got.
        """
        files = self.write(batch, to_rows, *tables)
        appended = {}
        for table in tables:
            own = [file for file in files if file.table == table.name]
            is_new = self.commits.commit(table, own, (steps or {}).get(table.name))
            newest_us = max((file.newest_us or 0 for file in own), default=0) or None
            appended[table.name] = Appended(sum(file.rows for file in own), newest_us, is_new)
        return appended

    def append_rows(self, rows: DataFrame, table: Table, step: Step | None = None, *, held: pa.Table | None = None) -> None:
        """Appends rows that have the table's columns; `held` are the same rows, where this process has them already."""
        self.commits.commit(table, self.write_rows(rows, table, held=held), step)

    def write(self, batch: DataFrame, to_rows: ToRows, *tables: Table) -> list[WrittenFile]:
        """Has workers write what they make of a batch to files, which no table has yet."""
        return write_files_on_workers(batch, to_rows, self.lake.storage, self._folders(*tables))

    def write_rows(self, rows: DataFrame, table: Table, *, held: pa.Table | None = None) -> list[WrittenFile]:
        """Writes rows that have the table's columns; `held` are the same rows, where this process has them already."""
        if held is None:
            return self.write(rows.select(*table.columns), partial(_as_they_are, table), table)
        return self.write_here(partial(_as_they_are, table), held.combine_chunks().to_batches(), table)

    def write_here(self, to_rows: ToRows, batches: Iterable[pa.RecordBatch], *tables: Table) -> list[WrittenFile]:
        """Writes rows in this process."""
        return write_files(to_rows, self.lake.storage, self._folders(*tables), batches)

    def _folders(self, *tables: Table) -> dict[str, str]:
        return {table.name: self.lake.path(table) for table in tables}


def _as_they_are(table: Table, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Table, pa.RecordBatch]]:
    return ((table, rows) for rows in batches)
