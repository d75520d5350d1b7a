"""Each book of silver once, whether it came whole, in parts, or both.

A book that is too large for one bus comes in parts from it, whole from another that takes more, and in other parts from a third, or
from the same one after its limit was changed. Silver has all of them: a part's id says into how many parts its whole was split, so
none is taken for another. They are put together by the id of the whole.

Invariant: of a book either the whole is taken, or the parts of one splitting: one of which all are there, else that of which most are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["each_book_once"]


def each_book_once(rows: DataFrame) -> DataFrame:
    """Rows of silver.book_changes or silver.book_snapshots, without those that say once more what others say."""
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
