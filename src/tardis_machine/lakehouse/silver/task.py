"""A part of a batch of bronze, read, deduplicated and decoded by one task, straight from bronze's files.

Equal event ids have equal exchange, payload case and local time, as all go into the id. So it is enough to look for a batch's events
among those of the same date and exchange, in files whose times overlap; a table that has years of data costs no more than one
that has a day. Comparing ids is a twentieth of the work: each task that shares a date and exchange with others compares all of them, and
so needs to hear nothing from the others.

Invariant: of a batch every new event comes out of exactly one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..commits import TableFile
from ..sources.records import SCHEMA
from ..storage import DirectStorage
from ..streams import split_refused
from ..tables import QUARANTINE, Table
from . import SILVER_TABLES
from .repeats import ORDER, Mask, find_new

__all__ = ["SilverTask", "decode_events", "run_task"]

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

_INSTANT = pa.timestamp("us", "UTC")
_ROWS_IN_BATCH = 20_000
_INDEX = ["event_id", "payload_case", "local_ts"]
_READ = ["symbol", "payload_case", "local_ts", "origin", "event_id", "session", "sequence", "value"]


class SilverTask(msgspec.Struct, frozen=True):
    """What one task takes of the files that have the batch's events of one date and exchange."""

    storage: DirectStorage
    date: str | None
    exchange: str | None
    paths: tuple[str, ...]
    part: int
    """Of the rows, in the files' order, the `part`th of `parts` equal parts."""
    parts: int
    known: dict[str, tuple[TableFile, ...]]
    """The files of each silver table for the same date and exchange."""


def run_task(task: SilverTask) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """The new events of a task, as rows of their tables."""
    files = [_open(task.storage, path) for path in task.paths]
    is_taken = _find_taken(files, task)
    first = 0
    for file in files:
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            if is_taken[first:last].any():
                yield from _read_group(file, group, is_taken[first:last], task)
            first = last
        file.close()


def _open(storage: DirectStorage, path: str) -> pq.ParquetFile:
    # Spark, which rewrites files when it joins small ones, has instants of a type of its own.
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us", filesystem=storage.filesystem)


def _find_taken(files: Sequence[pq.ParquetFile], task: SilverTask) -> Mask:
    """Which rows are new, and for this task to read."""
    index = _read_all(files, _INDEX)
    is_taken = np.zeros(len(index), np.bool_)
    own = slice(len(index) * task.part // task.parts, len(index) * (task.part + 1) // task.parts)
    for silver in SILVER_TABLES:
        rows = np.flatnonzero(pc.is_in(index.column("payload_case"), pa.array(silver.cases)).to_numpy())
        if not len(rows):
            continue
        events = index if len(rows) == len(index) else index.take(pa.array(rows))
        ids, known = events.column("event_id"), _read_known(task.storage, task.known[silver.name], events.column("local_ts"))
        is_taken[rows] = find_new(ids, known, lambda rows=rows: _read_all(files, [*ORDER]).take(pa.array(rows)))  # type: ignore[misc]
    is_taken[: own.start] = is_taken[own.stop :] = False
    return is_taken


def _read_all(files: Sequence[pq.ParquetFile], columns: list[str]) -> pa.Table:
    return pa.concat_tables([_zoned(file.read(columns, use_threads=False)).select(columns) for file in files])


def _zoned(rows: Rows) -> Rows:
    """Spark writes instants without their zone."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            rows = rows.set_column(place, column.name, rows.column(place).cast(_INSTANT))
    return rows


def _read_known(storage: DirectStorage, files: Sequence[TableFile], times: pa.ChunkedArray) -> pa.ChunkedArray:
    """The ids in files, as far as their times overlap."""
    bounds = pc.min_max(times.cast(pa.int64()))
    first_us, last_us = bounds["min"].as_py(), bounds["max"].as_py()
    found: list[pa.Array] = []
    for path in (file.path for file in files if file.first_us <= last_us and first_us <= file.last_us):
        with _open(storage, path) as file:
            groups = [group for group in range(file.num_row_groups) if _overlaps(file, group, first_us, last_us)]
            found += file.read_row_groups(groups, ["event_id"], use_threads=False).column("event_id").chunks
    return pa.chunked_array(found, pa.binary())


def _overlaps(file: pq.ParquetFile, group: int, first_us: int, last_us: int) -> bool:
    metadata = file.metadata.row_group(group)
    place = next((n for n in range(metadata.num_columns) if metadata.column(n).path_in_schema == "local_ts"), None)
    times = None if place is None else metadata.column(place).statistics
    if times is None or not times.has_min_max:
        return True
    lowest, highest = (pa.scalar(bound, _INSTANT).cast(pa.int64()).as_py() for bound in (times.min, times.max))
    return bool(lowest <= last_us and first_us <= highest)


def _read_group(file: pq.ParquetFile, group: int, is_taken: Mask, task: SilverTask) -> Iterator[tuple[Table, pa.RecordBatch]]:
    first = 0
    for batch in file.iter_batches(_ROWS_IN_BATCH, [group], _READ, use_threads=False):
        taken = pa.array(is_taken[first : first + len(batch)])
        rows = [*decode_events(_completed(batch.filter(taken), task))]
        if any(table is QUARANTINE for table, _ in rows):
            # What only the quarantine keeps is read only then.
            whole = file.read_row_group(group, use_threads=False).slice(first, len(batch)).filter(taken).combine_chunks()
            rows = [*decode_events(_completed(whole.to_batches()[0], task))]
        yield from rows
        first += len(batch)


def _completed(events: pa.RecordBatch, task: SilverTask) -> pa.RecordBatch:
    """With the columns that stand in the table's log, and nulls for those that were not read."""
    columns = dict(zip(events.schema.names, _zoned(events).columns, strict=True))
    day = None if task.date is None else date.fromisoformat(task.date)
    columns |= {
        "date": pa.repeat(pa.scalar(day, pa.date32()), len(events)),
        "exchange": pa.repeat(pa.scalar(task.exchange, pa.string()), len(events)),
    }
    missing = {name: pa.nulls(len(events), SCHEMA.field(name).type) for name in SCHEMA.names if name not in columns}
    return pa.RecordBatch.from_pydict({"bus": pa.nulls(len(events), pa.string()), **missing, **columns})


def decode_events(events: pa.RecordBatch) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """Rows of bronze.events as rows of their silver tables, or of the quarantine."""
    for silver in SILVER_TABLES:
        is_own = pc.is_in(events.column("payload_case"), pa.array(silver.cases))
        own = events if is_own.true_count == len(events) else events.filter(is_own)
        if len(own):
            decoded = silver.decode(own.column("value"))
            columns = dict(zip(own.schema.names, own.columns, strict=True))
            columns |= {column.name: pc.struct_field(decoded, place) for place, column in enumerate(decoded.type)}
            yield from split_refused(silver.table, columns)
