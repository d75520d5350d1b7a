"""Small files joined into large ones, and those that no table needs any more removed.

Joining changes no rows, and streams that read the table don't see it; so it may run beside jobs that write. With `z_order` files are sorted
by the time that queries skip by as well, which rewrites partitions whole: for those that no rows come to any more.

Invariant: every table has the same rows before and after.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import LakeError, OptionsError
from .answers import write_table
from .appending import Appender
from .lake import Lake, check_table
from .tables import Table, all_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..settings import Settings

__all__ = ["MIN_RETAIN_S", "Optimized", "check_retain", "optimize", "run"]

_VACUUM_CONF = {
    # Who asks for less than a week was told what that means, and less than `MIN_RETAIN_S` is refused.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Delta would take no other time than its own week, and say nothing.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # Folders are listed by 10,000 tasks otherwise, which take minutes for a table of ten files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}


MIN_RETAIN_S = 3600.0
"""A file that no table has may be one that a job will add when its batch ends: batches take seconds or minutes, at most. One that takes
longer still loses no rows: a commit looks for its files first, and the batch is run again."""


@dataclass(frozen=True)
class Optimized:
    """What became of a table."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


def run(settings: Settings) -> int:
    """`lake optimize`: all tables, one after the other."""
    from .jobs import open_session

    check_retain(settings.retain)
    lake = Lake.at(settings.lake)
    lake.check_exists()
    outcome = [*optimize(open_session(settings), lake, retain_s=settings.retain, z_order=settings.z_order)]
    rows = [(item.table, item.files_before, item.files_after, item.bytes_before, item.bytes_after) for item in outcome]
    write_table(["table", "files before", "files after", "bytes before", "bytes after"], rows, sys.stdout)
    return 0


def optimize(spark: SparkSession, lake: Lake, *, retain_s: float, z_order: bool = False) -> Iterator[Optimized]:
    """Joins the files of each table and removes old ones; raises OptionsError where `retain_s` is less than `MIN_RETAIN_S`."""
    check_retain(retain_s)
    return _optimize_all(spark, lake, retain_s, z_order=z_order)


def check_retain(retain_s: float) -> None:
    """Raises OptionsError where files would be removed that a running job has written and is about to commit."""
    if retain_s < MIN_RETAIN_S:
        raise OptionsError(
            f"--retain {retain_s:g}s is less than {MIN_RETAIN_S:g}s: it may remove files that a running job has written and not yet "
            f"added to their table; give {MIN_RETAIN_S:g}s or more",
            "retain",
        )


def _optimize_all(spark: SparkSession, lake: Lake, retain_s: float, *, z_order: bool) -> Iterator[Optimized]:
    present = [table for table in all_tables() if check_table(spark, lake, table)]
    if not present:
        raise LakeError(
            f"there are no tables in {lake.root}; choose another lake with --lake, or fill this one with 'lake ingest'"
        )
    for table in present:
        yield _optimize(spark, lake, table, retain_s, z_order=z_order)


def _optimize(spark: SparkSession, lake: Lake, table: Table, retain_s: float, *, z_order: bool) -> Optimized:
    name = f"delta.`{lake.path(table)}`"
    files_before, bytes_before = _size(spark, name)
    time = next((column for column in ("start", "local_ts") if column in (table.skip_by or ())), None)
    sorted_by = f" ZORDER BY ({time})" if z_order and time else ""
    with Appender(lake).spark_commit(table):
        spark.sql(f"OPTIMIZE {name}{sorted_by}")
        with _settings(spark, _VACUUM_CONF):
            spark.sql(f"VACUUM {name} RETAIN {retain_s / 3600} HOURS")
    files_after, bytes_after = _size(spark, name)
    return Optimized(table.name, files_before, files_after, bytes_before, bytes_after)


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session that hold for a while."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _size(spark: SparkSession, name: str) -> tuple[int, int]:
    details = spark.sql(f"DESCRIBE DETAIL {name}").first()
    assert details is not None
    return details["numFiles"], details["sizeInBytes"]
