"""Work that the driver cuts into tasks, one for each item, and workers do.

Invariant: an item reaches exactly one task; a task that fails is run again with the same item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from .tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["cores", "each_item", "tasks", "tasks_done"]

T = TypeVar("T")


def tasks(spark: SparkSession, items: Sequence[object]) -> DataFrame:
    """A row, and a task, for each item: its place. The items themselves go with the function that is run (`each_item`)."""
    return spark.range(0, len(items), 1, len(items))


def each_item(
    items: Sequence[T], work: Callable[[T], Iterable[tuple[Table, pa.RecordBatch]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """What a worker does with the places that it is given."""
    for batch in batches:
        for place in batch.column(0).to_pylist():
            yield from work(items[place])


def cores(spark: SparkSession) -> int:
    """How many tasks run side by side."""
    from pyspark.sql.utils import is_remote

    # A Connect server does not tell how many it has.
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1) if is_remote() else spark.sparkContext.defaultParallelism


def tasks_done(spark: SparkSession) -> int:
    """How many tasks of what runs now have ended."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
