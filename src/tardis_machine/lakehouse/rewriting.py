"""Files of a table made anew: with some rows replaced, or many joined into one.

What is read and written lies in columns all the way; a file becomes rows of its table again, without those that are replaced.

Invariant: rows that nobody replaces are what they were, also in a file of an earlier release or of Spark's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import LakeError
from .appending import Appender
from .commits import TableFile
from .storage import Storage
from .table_files import WrittenFile
from .tables import Table
from .tasks import each_item, tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Replacement", "read_rows", "replace_rows"]

_MAX_TRIES = 20
_ON_DRIVER_BYTES = 32 * 1024**2
"""Of files that may have rows to replace, up to which they are looked at here: a job of Spark's takes longer to begin."""


class Replacement(NamedTuple):
    """Which rows of a table go."""

    table: Table
    kinds: pa.Schema
    """Its columns (`Commits.schema`)."""
    keys: Sequence[str]
    values: pa.Table
    """Of the keys: rows that have one of these go. Nulls are equal."""
    time: str
    span_us: tuple[int, int]
    """Rows that go have their time between these."""


def replace_rows(spark: SparkSession, appender: Appender, replaced: Replacement, new: Sequence[WrittenFile]) -> None:
    """Adds new files to a table, and makes those anew that have rows which go, in one commit.

    Where another job has replaced such a file meanwhile, it begins again with what is there now.
    """
    for number in range(_MAX_TRIES):
        old = _find_files(appender, replaced)
        written = _rewrite(spark, appender, replaced, old)
        if appender.commits.replace(replaced.table, [*new, *written], old):
            return
        appender.commits.remove(replaced.table, written)
        time.sleep(0.05 * number)
    raise LakeError(f"other jobs go on replacing files of {replaced.table.name}; stop 'lake optimize', or let it run less often")


def _find_files(appender: Appender, replaced: Replacement) -> list[TableFile]:
    """The files that have rows which go; where it takes long to look, those that may have some."""
    places = replaced.values.select(["date", "exchange"]).group_by(["date", "exchange"]).aggregate([]).to_pylist()
    partitions = [{"date": str(place["date"]), "exchange": place["exchange"]} for place in places]
    found = appender.commits.files(replaced.table, partitions, time=replaced.time)
    first_us, last_us = replaced.span_us
    near = [file for files in found.values() for file in files if file.first_us <= last_us and first_us <= file.last_us]
    if sum(file.size for file in near) > _ON_DRIVER_BYTES:
        return near
    return [file for file in near if _has_any(appender.commits.storage, replaced, file)]


def _has_any(storage: Storage, replaced: Replacement, file: TableFile) -> bool:
    rows = read_rows(storage, replaced.kinds, file.path, file.partition, [*dict.fromkeys((*replaced.keys, replaced.time))])
    return any(_is_replaced(replaced, batch).any() for batch in rows)


def _rewrite(spark: SparkSession, appender: Appender, replaced: Replacement, old: Sequence[TableFile]) -> list[WrittenFile]:
    work = partial(_remaining, appender.commits.storage, replaced)
    if sum(file.size for file in old) > _ON_DRIVER_BYTES:
        return appender.write(tasks(spark, old), partial(each_item, old, work), replaced.table)
    return appender.write_here(lambda files: (rows for file in old for rows in work(file)), (), replaced.table)


def _remaining(storage: Storage, replaced: Replacement, file: TableFile) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """The rows of a file that stay."""
    for rows in read_rows(storage, replaced.kinds, file.path, file.partition):
        stays = ~_is_replaced(replaced, rows)
        if stays.any():
            yield replaced.table, rows.filter(pa.array(stays))


def read_rows(
    storage: Storage, kinds: pa.Schema, path: str, partition: Mapping[str, str | None], columns: Iterable[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, as its table has them (`Commits.schema`): also columns that its partition tells, or that it is too old for."""
    wanted = [*(kinds.names if columns is None else columns)]
    with storage.open_parquet(path) as file:
        there = {*file.schema_arrow.names}
        read = [name for name in wanted if name in there]
        for batch in file.iter_batches(columns=read, use_threads=False):
            yield pa.RecordBatch.from_arrays(
                [_column(batch, name, kinds.field(name).type, partition) for name in wanted], names=wanted
            )


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType, partition: Mapping[str, str | None]) -> pa.Array:
    if name in batch.schema.names:
        column = batch.column(name)
        return column if column.type == kind else column.cast(kind)
    value = partition.get(name)
    if value is None:
        return pa.nulls(batch.num_rows, kind)
    return pa.repeat(pa.scalar(date.fromisoformat(value) if pa.types.is_date(kind) else value, kind), batch.num_rows)


def _is_replaced(replaced: Replacement, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    found = np.zeros(rows.num_rows, np.bool_)
    us = rows.column(replaced.time).cast(pa.int64())
    first_us, last_us = replaced.span_us
    near = np.flatnonzero(pc.and_(pc.greater_equal(us, first_us), pc.less_equal(us, last_us)).to_numpy(zero_copy_only=False))
    if len(near):
        keys = [*replaced.keys]
        values = replaced.values.select(keys)
        own = pa.Table.from_batches([rows.select(keys).take(pa.array(near))])
        both = pa.concat_tables([values.cast(own.schema), own])
        codes = _codes(both)
        known = replaced.values.num_rows
        found[near] = np.isin(codes[known:], codes[:known])
    return found


def _codes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each row; equal rows have equal ones."""
    codes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        values = column.combine_chunks().dictionary_encode(null_encoding="encode")
        indices = values.indices.to_numpy(zero_copy_only=False)
        # As many numbers as there are rows at most, so that they stay small whatever the number of columns.
        codes = np.unique(codes * len(values.dictionary) + indices, return_inverse=True)[1].astype(np.int64)
    return codes
