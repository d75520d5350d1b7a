"""Parts of a table's file, found by when their rows are.

Invariant: a part that may have a row that is asked for is found; of a file that does not say, all parts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Span", "overlapping", "zoned"]

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
Span = tuple[int, int]
"""A first and a last instant, in microseconds."""

_INSTANT = pa.timestamp("us", "UTC")


def zoned(rows: Rows) -> Rows:
    """Spark writes instants without their zone."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            rows = rows.set_column(place, column.name, rows.column(place).cast(_INSTANT))
    return rows


def overlapping(file: pq.ParquetFile, column: str, spans: Sequence[Span]) -> list[int]:
    """The row groups that may have rows with an instant in one of the spans."""
    return [group for group in range(file.num_row_groups) if _overlaps(file, group, column, spans)]


def _overlaps(file: pq.ParquetFile, group: int, column: str, spans: Sequence[Span]) -> bool:
    metadata = file.metadata.row_group(group)
    place = next((n for n in range(metadata.num_columns) if metadata.column(n).path_in_schema == column), None)
    times = None if place is None else metadata.column(place).statistics
    if times is None or not times.has_min_max:
        return True
    lowest, highest = (pa.scalar(bound, _INSTANT).cast(pa.int64()).as_py() for bound in (times.min, times.max))
    return any(lowest <= last_us and first_us <= highest for first_us, last_us in spans)
