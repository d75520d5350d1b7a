"""Rows that are used several times, computed once: few come to the driver, many stay where they are.

Few rows that lie in the plan are planned in no time wherever they are used, and what is asked of them is answered here; rows that are
kept on executors bring along the plan that made them, which Spark looks at again for each query. In a stream of small batches that is
most of the time.

Invariant: the same rows, in the same columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Settled", "settle"]

MAX_ROWS = 20_000
MAX_ROWS_OF_LEVELS = 500


@dataclass(frozen=True)
class Settled:
    """Rows that are computed."""

    frame: DataFrame
    table: pa.Table | None
    """Where they are few."""

    def span_us(self, time: str) -> tuple[int, int] | None:
        """The earliest and the latest instant in a column; None where there are no rows."""
        if self.table is not None:
            found = pc.min_max(self.table[time].cast(pa.int64())).as_py()
        else:
            row = self.frame.selectExpr(f"unix_micros(min(`{time}`)) AS min", f"unix_micros(max(`{time}`)) AS max").first()
            assert row is not None
            found = row.asDict()
        return None if found["min"] is None else (found["min"], found["max"])

    def values(self, name: str) -> list[Any]:
        """What is found in a column, once each."""
        if self.table is not None:
            found = self.table[name].unique().to_pylist()
        else:
            found = [row[0] for row in self.frame.select(name).distinct().collect()]
        return sorted(value for value in found if value is not None)

    def count(self) -> int:
        """How many there are."""
        return self.frame.count() if self.table is None else self.table.num_rows

    def derive(self, frame: DataFrame) -> Settled:
        """What follows from these rows at little cost, and is about as much: to keep that too would cost more."""
        return Settled(frame, None) if self.table is None else settle(frame)

    def free(self) -> None:
        """They are needed no more."""
        if self.table is None:
            self.frame.unpersist()


def settle(frame: DataFrame, *, has_levels: bool = False) -> Settled:
    """The rows, computed; with levels of books even few are much."""
    limit = MAX_ROWS_OF_LEVELS if has_levels else MAX_ROWS
    kept = frame.persist()
    few = kept.limit(limit + 1).toArrow()
    if few.num_rows > limit:
        return Settled(kept, None)
    kept.unpersist()
    return Settled(frame.sparkSession.createDataFrame(few, frame.schema), few)
