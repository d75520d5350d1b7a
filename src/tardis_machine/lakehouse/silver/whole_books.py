"""Books that were too large for a record of their bus: one row of silver for the whole, however many parts it came in.

A book that is too large for one bus comes in parts from it, whole from another that takes more, and in other parts from a third, or
from the same one after its limit was changed. A part's id says into how many parts its whole was split, so none is taken for another.
Parts wait in `silver.book_parts`, and stay there; with the last one of a splitting comes the whole, under its own id, so that it is
a repeat where it is there already.

Invariant: a whole is in its table once, and only when it came whole or all parts of one splitting did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..tables import Table
from .book_changes import BOOK_CHANGES
from .book_snapshots import BOOK_SNAPSHOTS
from .columns import Column, to_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BOOK_PARTS", "SPLIT", "each_book_once", "put_together", "split_off"]

SPLIT = {silver.name: silver for silver in (BOOK_CHANGES, BOOK_SNAPSHOTS)}
"""The tables of books that buses may split."""
_OF = "book_table"
_OWN: Mapping[str, Column] = {**BOOK_CHANGES.columns, **BOOK_SNAPSHOTS.columns}
_FRONT = {"date": "DATE", "exchange": "STRING", "symbol": "STRING", "local_ts": "TIMESTAMP", _OF: "STRING"}
_BACK = {"origin": "STRING", "session": "STRING", "sequence": "BIGINT", "event_id": "BINARY"}
BOOK_PARTS = Table(
    "silver.book_parts",
    {**_FRONT, **{name: column.ddl for name, column in _OWN.items()}, **_BACK},
    skip_by=("local_ts",),
)
"""Every part that came, once; `book_table` says which table its whole belongs to."""


def split_off(name: str, columns: Mapping[str, pa.Array]) -> tuple[pa.RecordBatch | None, Mapping[str, pa.Array]]:
    """The rows of a table that are parts, as rows of BOOK_PARTS, None where there are none; and those that are whole."""
    is_part = columns["part"].is_valid()
    if not is_part.true_count:
        return None, columns
    parts = {column: values.filter(is_part) for column, values in columns.items()}
    parts[_OF] = pa.repeat(name, is_part.true_count)
    missing = {column: pa.nulls(is_part.true_count, _OWN[column].arrow) for column in _OWN if column not in parts}
    rows = pa.RecordBatch.from_pydict({column: (parts | missing)[column] for column in BOOK_PARTS.columns})
    return rows, {column: values.filter(pc.invert(is_part)) for column, values in columns.items()}


def put_together(parts: pa.Table) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """The wholes of which all parts of a splitting are there, as rows of their tables."""
    found: dict[tuple[str, bytes, int], dict[int, int]] = {}
    keys = zip(*(parts.column(name).to_pylist() for name in (_OF, "whole_event_id", "part_count", "part")), strict=True)
    for row, (name, whole, count, part) in enumerate(keys):
        found.setdefault((name, whole, count), {}).setdefault(part, row)
    complete: dict[str, dict[bytes, list[int]]] = {}
    for (name, whole, count), rows in sorted(found.items()):
        if len(rows) == count:
            # Of several splittings the one with fewest parts.
            complete.setdefault(name, {}).setdefault(whole, [rows[part] for part in sorted(rows)])
    for name, wholes in complete.items():
        yield SPLIT[name].table, _join(parts, SPLIT[name].table, list(wholes.values()))


def _join(parts: pa.Table, table: Table, wholes: list[list[int]]) -> pa.RecordBatch:
    """One row for each list of parts, which are in order: the first one's, with the levels of all."""
    rows = parts.take(pa.array([row for whole in wholes for row in whole])).combine_chunks().to_batches()[0]
    starts = np.cumsum([0, *(len(whole) for whole in wholes[:-1])])
    firsts = rows.take(pa.array(starts))
    joined = dict(zip(firsts.schema.names, firsts.columns, strict=True))
    for side in ("bids", "asks"):
        levels = rows.column(side)
        counts = np.add.reduceat(pc.fill_null(pc.list_value_length(levels), 0).to_numpy(zero_copy_only=False), starts)
        joined[side] = pa.ListArray.from_arrays(to_offsets(pa.array(counts)), levels.flatten()).cast(levels.type)
    joined["event_id"] = joined["whole_event_id"]
    joined |= {name: pa.nulls(len(firsts), joined[name].type) for name in ("part", "part_count", "whole_event_id")}
    return pa.RecordBatch.from_pydict({name: joined[name] for name in table.columns})


def each_book_once(rows: DataFrame) -> DataFrame:
    """Rows of silver.book_changes or silver.book_snapshots, without parts that say once more what others say.

    Of a lake that an earlier release began: that put parts among the wholes.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    parts = rows.where("part IS NOT NULL")
    if parts.isEmpty():
        return rows
    wholes = rows.where("part IS NULL")
    splittings = parts.groupBy("whole_event_id", "part_count").agg(F.count_distinct("part").alias("found"))
    best = Window.partitionBy("whole_event_id").orderBy(F.expr("found / part_count").desc(), "part_count")
    chosen = splittings.withColumn("_rank", F.row_number().over(best)).where("_rank = 1").select("whole_event_id", "part_count")
    chosen = chosen.join(wholes.select(F.col("event_id").alias("whole_event_id")), "whole_event_id", "left_anti")
    return wholes.unionByName(parts.join(chosen, ["whole_event_id", "part_count"], "left_semi"))
