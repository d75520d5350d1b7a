"""Small files joined into large ones, and those that no table needs any more removed.

Joining changes no rows, and streams that read the table don't see it; so it may run beside jobs that write. With `z_order` files are sorted
by the time that queries skip by as well, which rewrites partitions whole: for those that no rows come to any more.

Invariant: every table has the same rows before and after.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ..errors import LakeError, OptionsError
from .answers import write_table
from .appending import Appender
from .commits import TableFile
from .lake import Lake, check_table
from .rewriting import read_rows
from .storage import Storage
from .tables import Table, all_tables
from .tasks import cores, each_item, tasks
from .unread import unread_since_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..settings import Settings

__all__ = ["MIN_RETAIN_S", "Optimized", "check_retain", "join_files", "optimize", "remove_old_files", "run"]

MIN_RETAIN_S = 3600.0
"""A file that no table has may be one that a job will add when its batch ends: batches take seconds or minutes, at most. One that takes
longer still loses no rows: a commit looks for its files first, and the batch is run again."""

FILE_BYTES = 1024**3
"""What files are joined to, about."""


@dataclass(frozen=True)
class Optimized:
    """What became of a table."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


class _Group(NamedTuple):
    """Files of one partition that become one."""

    partition: dict[str, str | None]
    paths: tuple[str, ...]


def run(settings: Settings) -> int:
    """`lake optimize`: all tables, one after the other."""
    from .jobs import open_session

    check_retain(settings.retain)
    lake = Lake.at(settings.lake, settings.lake_option)
    lake.check_exists()
    outcome = [*optimize(open_session(settings, lake), lake, retain_s=settings.retain, z_order=settings.z_order)]
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
    present = [table for table in all_tables() if check_table(lake, table)]
    if not present:
        raise LakeError(
            f"there are no tables in {lake.root}; choose another lake with --lake, or fill this one with 'lake ingest'"
        )
    appender = Appender(lake)
    for table in present:
        before = appender.commits.all_files(table)
        time = next((column for column in ("start", "local_ts") if column in (table.skip_by or ())), None)
        if z_order and time is not None:
            _sort(spark, lake, appender, table, time)
        else:
            join_files(spark, appender, table, _groups(before))
        remove_old_files(appender, table, retain_s)
        after = appender.commits.all_files(table)
        yield Optimized(table.name, len(before), len(after), _bytes(before), _bytes(after))


def remove_old_files(appender: Appender, table: Table, retain_s: float) -> None:
    """Removes files that the table has not needed for so long, and that no stream of the lake has still to read."""
    behind_s = unread_since_s(appender.lake.storage, appender.commits.identity(table), appender.lake.path(table))
    appender.commits.vacuum(table, max(retain_s, behind_s + MIN_RETAIN_S if behind_s else 0))


def join_files(spark: SparkSession, appender: Appender, table: Table, groups: Iterable[Sequence[TableFile]]) -> int:
    """Makes one file of each group; how many there are fewer. Files that another job replaces meanwhile are left to it."""
    joined = 0
    groups = [group for group in groups if len(group) > 1]
    # A commit for about as many as run side by side: one that comes too late has not much to do over.
    at_once = max(cores(spark), 1)
    for start in range(0, len(groups), at_once):
        chosen = groups[start : start + at_once]
        work = partial(_join, appender.commits.storage, table, appender.commits.schema(table))
        items = [_Group(group[0].partition, tuple(file.path for file in group)) for group in chosen]
        written = appender.write(tasks(spark, items), partial(each_item, items, work), table)
        old = [file for group in chosen for file in group]
        if appender.commits.replace(table, written, old, changes_rows=False):
            joined += len(old) - len(written)
        else:
            appender.commits.remove(table, written)
    return joined


def _groups(files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Files of one partition that together are as large as one should be, in the order of their times."""
    by_partition: dict[tuple[str | None, ...], list[TableFile]] = {}
    for file in sorted(files, key=lambda file: (file.first_us, file.name)):
        if file.size < FILE_BYTES / 2:
            by_partition.setdefault(tuple(file.partition.values()), []).append(file)
    for small in by_partition.values():
        group: list[TableFile] = []
        for file in small:
            if group and _bytes(group) + file.size > FILE_BYTES:
                yield group
                group = []
            group.append(file)
        yield group


def _join(storage: Storage, table: Table, kinds: pa.Schema, group: _Group) -> Iterator[tuple[Table, pa.RecordBatch]]:
    for path in group.paths:
        for rows in read_rows(storage, kinds, path, group.partition):
            yield table, rows


def _sort(spark: SparkSession, lake: Lake, appender: Appender, table: Table, time: str) -> None:
    """Writes each partition anew, in the order of its times; Spark sorts, as a partition may be more than a machine holds."""
    from pyspark.sql import functions as F  # noqa: N812

    by_partition: dict[tuple[str | None, ...], list[TableFile]] = {}
    version = appender.commits.version(table)
    for file in appender.commits.all_files(table):
        by_partition.setdefault(tuple(file.partition.values()), []).append(file)
    whole = spark.read.format("delta").option("versionAsOf", version).load(lake.path(table))
    for values, files in by_partition.items():
        rows = whole
        for name, value in zip(table.partition_by, values, strict=True):
            rows = rows.where(F.col(name).cast("string").eqNullSafe(F.lit(value)))
        parts = -(-_bytes(files) // FILE_BYTES)
        ordered = rows.repartitionByRange(parts, time).sortWithinPartitions(time)
        written = appender.write_rows(ordered, table)
        if not appender.commits.replace(table, written, files, changes_rows=False):
            appender.commits.remove(table, written)


def _bytes(files: Sequence[TableFile]) -> int:
    return sum(file.size for file in files)
