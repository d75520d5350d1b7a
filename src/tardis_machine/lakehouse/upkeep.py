"""What a job that runs for long does for its tables between batches: it joins the small files that batches leave.

Files are joined with others of about their size, so that a row is written anew a few times at most, however many batches there are, and a
partition has some dozens of files. Into the largest ones, and in the order of their times, `lake optimize` joins them.

Invariant: a stream looks after the tables that it fills, between two of its batches; what goes wrong there is said, and ends no job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from math import log
from typing import TYPE_CHECKING

from ..telemetry import get_logger
from .appending import Appender
from .commits import TableFile
from .optimize import join_files, remove_old_files
from .tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BATCHES", "Upkeep"]

BATCHES = 16
"""After so many a table is looked at."""
_ENOUGH = 8
"""Files of about one size and one partition that are worth joining."""
_JOINED_BYTES = 128 * 1024**2
"""What is as large stays as it is: further joining would cost more than files cost readers."""
_RETAIN_S = 7 * 86_400.0
_REMOVE_EACH_S = 3_600.0

_log = get_logger("lakehouse.upkeep")


class Upkeep:
    """Of the tables of one stream."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._batches = 0
        self._remove_at = time.monotonic() + _REMOVE_EACH_S

    def after_batch(self, spark: SparkSession, tables: Iterable[Table]) -> None:
        """Joins what has come together, now and then."""
        self._batches += 1
        if self._batches % BATCHES:
            return
        removes = time.monotonic() >= self._remove_at
        if removes:
            self._remove_at = time.monotonic() + _REMOVE_EACH_S
        for table in tables:
            try:
                join_files(spark, self._appender, table, alike(self._appender.commits.all_files(table)))
                if removes:
                    remove_old_files(self._appender, table, _RETAIN_S)
            except Exception as error:
                _log.warning("small files could not be joined, and will be later", table=table.name, error=str(error))


def alike(files: Iterable[TableFile]) -> Iterator[Sequence[TableFile]]:
    """Files of one partition and of about one size, in the order of their times, where there are enough of them."""
    found: dict[tuple[object, ...], list[TableFile]] = {}
    for file in files:
        if file.size < _JOINED_BYTES:
            found.setdefault((*file.partition.values(), int(log(max(file.size, 1), _ENOUGH))), []).append(file)
    for group in found.values():
        if len(group) >= _ENOUGH:
            yield sorted(group, key=lambda file: (file.first_us, file.name))
