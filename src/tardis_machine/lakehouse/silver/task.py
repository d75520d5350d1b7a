"""A part of a batch of bronze, read, deduplicated and decoded by one task, straight from bronze's files.

Equal event ids have equal exchange, payload case and local time, as all go into the id. So it is enough to look for a batch's events
among those of the same date and exchange, in files whose times overlap; a table that has years of data costs no more than one
that has a day. Comparing ids is a twentieth of the work: each task that shares an exchange with others compares all of them, and
so needs to hear nothing from the others.

What several recorders heard has several event ids. Executions are besides compared by what their venue says of them
(`venue_identity`), with those of the table that have the same venue's times, and with each other: of a symbol that several sessions of
a batch have, one task takes all executions.

Parts of a book have its time: one task takes all that a batch has of it, and puts them together with those that came before.

Invariant: of a batch every new event comes out of exactly one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..commits import MAX_SKEW_US, TableFile
from ..row_groups import Span, overlapping, zoned
from ..sources.records import SCHEMA
from ..storage import Storage
from ..streams import split_refused
from ..tables import QUARANTINE, Table
from . import SILVER_TABLES
from .repeats import ORDER, Mask, find_new
from .venue_identity import VENUE_COLUMNS, find_unpaired
from .whole_books import BOOK_PARTS, SPLIT, put_together, split_off

__all__ = ["SilverTask", "decode_events", "run_task"]

DAY_US = 86_400_000_000
_ROWS_IN_BATCH = 20_000
PARTS = BOOK_PARTS.name.partition(".")[2]
_INDEX = ["event_id", "payload_case", "local_ts"]
_READ = ["symbol", "payload_case", "local_ts", "origin", "event_id", "session", "sequence", "value"]


class SilverTask(msgspec.Struct, frozen=True):
    """What one task takes of the files that have the batch's events of one exchange, of a date or of some that follow one another."""

    storage: Storage
    exchange: str | None
    paths: tuple[tuple[str | None, str], ...]
    """Each with the date of its rows."""
    part: int
    """Of the rows, in the files' order, the `part`th of `parts` equal parts."""
    parts: int
    known: dict[str, tuple[TableFile, ...]]
    """The files of each silver table for the same dates and exchange; of executions also for the dates before and after."""


def run_task(task: SilverTask) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """The new events of a task, as rows of their tables."""
    files = [task.storage.open_parquet(path) for _, path in task.paths]
    is_taken, is_compared = _find_taken(files, task)
    held: dict[str, list[pa.RecordBatch]] = {}
    parts: list[pa.RecordBatch] = []
    for table, rows in _read_taken(files, is_taken, task):
        if table is BOOK_PARTS:
            parts.append(rows)
        name = table.name.partition(".")[2]
        if name in is_compared:
            held.setdefault(name, []).append(rows)
        else:
            yield table, rows
    for name, batches in held.items():
        yield from _without_known_executions(name, pa.Table.from_batches(batches), task)
    if parts:
        yield from _new_wholes(pa.Table.from_batches(parts), task)


def _new_wholes(parts: pa.Table, task: SilverTask) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """The books that new parts make whole, and that did not come whole."""
    spans, wholes, found = _spans(parts.column("local_ts")), parts.column("whole_event_id").combine_chunks(), [parts]
    for known in task.known[PARTS]:
        if any(known.first_us <= last_us and first_us <= known.last_us for first_us, last_us in spans):
            with task.storage.open_parquet(known.path) as file:
                groups = overlapping(file, "local_ts", spans)
                rows = zoned(file.read_row_groups(groups, use_threads=False))
            rows = rows.filter(pc.is_in(rows.column("whole_event_id"), wholes))
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            # These two stand in the table's log.
            columns |= {
                "date": columns["local_ts"].cast(pa.date32()),
                "exchange": pa.repeat(pa.scalar(task.exchange, pa.string()), len(rows)),
            }
            found.append(pa.table({name: columns[name] for name in parts.schema.names}).cast(parts.schema))
    for table, rows in put_together(pa.concat_tables(found)):
        name = table.name.partition(".")[2]
        ids = [*_read_known(task.storage, task.known[name], spans).chunks]
        for _, path in task.paths:
            with task.storage.open_parquet(path) as file:
                ids += file.read(["event_id"], use_threads=False).column("event_id").chunks
        yield table, rows.filter(pc.invert(pc.is_in(rows.column("event_id"), pa.chunked_array(ids, pa.binary()))))


def _read_taken(files: Sequence[pq.ParquetFile], is_taken: Mask, task: SilverTask) -> Iterator[tuple[Table, pa.RecordBatch]]:
    first = 0
    for (day, _), file in zip(task.paths, files, strict=True):
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            if is_taken[first:last].any():
                yield from _read_group(file, group, is_taken[first:last], day, task.exchange)
            first = last
        file.close()


def _without_known_executions(name: str, rows: pa.Table, task: SilverTask) -> Iterator[tuple[Table, pa.RecordBatch]]:
    (table,) = (silver.table for silver in SILVER_TABLES if silver.name == name)
    columns, bounds = [*VENUE_COLUMNS[name], "session"], pc.min_max(rows.column("event_ts").cast(pa.int64()))
    span, found = (bounds["min"].as_py(), bounds["max"].as_py()), []
    if span[0] is not None:
        for known in task.known[name]:
            if known.first_event_us <= span[1] and span[0] <= known.last_event_us:
                with task.storage.open_parquet(known.path) as file:
                    found.append(zoned(file.read_row_groups(overlapping(file, "event_ts", [span]), columns, use_threads=False)))
    empty = rows.slice(0, 0).select(columns)
    unpaired = find_unpaired(rows, pa.concat_tables([empty, *(part.select(columns).cast(empty.schema) for part in found)]), name)
    for batch in rows.filter(pa.array(unpaired)).to_batches():
        yield table, batch


def _find_taken(files: Sequence[pq.ParquetFile], task: SilverTask) -> tuple[Mask, set[str]]:
    """Which rows are new, and for this task to read; and the tables of which they are to be compared by what their venue says."""
    index = _read_all(files, _INDEX)
    is_taken = np.zeros(len(index), np.bool_)
    owners = np.zeros(len(index), np.int64)
    for part in range(1, task.parts):
        owners[len(index) * part // task.parts :] = part
    is_compared: set[str] = set()
    for silver in SILVER_TABLES:
        rows = np.flatnonzero(pc.is_in(index.column("payload_case"), pa.array(silver.cases)).to_numpy())
        if not len(rows):
            continue
        events = index if len(rows) == len(index) else index.take(pa.array(rows))
        spans = _spans(events.column("local_ts"))
        known = (*task.known[silver.name], *(task.known[PARTS] if silver.name in SPLIT else ()))
        ids = events.column("event_id")
        known_ids = _read_known(task.storage, known, spans)
        is_taken[rows] = find_new(ids, known_ids, lambda rows=rows: _read_all(files, [*ORDER]).take(pa.array(rows)))  # type: ignore[misc]
        if silver.name in SPLIT and task.parts > 1:
            _, first, place = np.unique(
                events.column("local_ts").cast(pa.int64()).to_numpy(), return_index=True, return_inverse=True
            )
            owners[rows] = owners[rows[first[place]]]
        if silver.name in VENUE_COLUMNS:
            symbols = _of_several_sessions(_read_all(files, ["symbol", "session"]).take(pa.array(rows)))
            if symbols or any(_is_near(file, spans) for file in known):
                is_compared.add(silver.name)
            if symbols and task.parts > 1:
                places = pc.index_in(_read_all(files, ["symbol"]).column("symbol").take(pa.array(rows)), pa.array(symbols))
                is_shared = places.is_valid().to_numpy()
                owners[rows[is_shared]] = places.drop_null().to_numpy() % task.parts
    is_taken[owners != task.part] = False
    return is_taken, is_compared


def _of_several_sessions(rows: pa.Table) -> list[str | None]:
    """Symbols that more than one session has, sorted."""
    counts = rows.group_by(["symbol", "session"]).aggregate([]).group_by("symbol").aggregate([([], "count_all")])
    return sorted(counts.filter(pc.greater(counts.column("count_all"), 1)).column("symbol").drop_null().to_pylist())


def _spans(instants: pa.ChunkedArray) -> list[Span]:
    """The first and the last instant of each date."""
    us = instants.cast(pa.int64()).to_numpy()
    days = us // DAY_US
    return [(int(us[days == day].min()), int(us[days == day].max())) for day in np.unique(days)]


def _is_near(file: TableFile, spans: Sequence[Span]) -> bool:
    """Whether a file may have executions that were received in these spans, as far as clocks are apart at most."""
    return any(
        file.first_event_us <= last_us + MAX_SKEW_US and first_us - MAX_SKEW_US <= file.last_event_us
        for first_us, last_us in spans
    )


def _read_all(files: Sequence[pq.ParquetFile], columns: list[str]) -> pa.Table:
    return pa.concat_tables([zoned(file.read(columns, use_threads=False)).select(columns) for file in files])


def _read_known(storage: Storage, files: Sequence[TableFile], spans: Sequence[Span]) -> pa.ChunkedArray:
    """The ids in files, as far as their times overlap."""
    found: list[pa.Array] = []
    for known in files:
        if any(known.first_us <= last_us and first_us <= known.last_us for first_us, last_us in spans):
            with storage.open_parquet(known.path) as file:
                groups = overlapping(file, "local_ts", spans)
                found += file.read_row_groups(groups, ["event_id"], use_threads=False).column("event_id").chunks
    return pa.chunked_array(found, pa.binary())


def _read_group(
    file: pq.ParquetFile, group: int, is_taken: Mask, day: str | None, exchange: str | None
) -> Iterator[tuple[Table, pa.RecordBatch]]:
    first = 0
    for batch in file.iter_batches(_ROWS_IN_BATCH, [group], _READ, use_threads=False):
        taken = pa.array(is_taken[first : first + len(batch)])
        rows = [*decode_events(_completed(batch.filter(taken), day, exchange))]
        if any(table is QUARANTINE for table, _ in rows):
            # What only the quarantine keeps is read only then.
            whole = file.read_row_group(group, use_threads=False).slice(first, len(batch)).filter(taken).combine_chunks()
            rows = [*decode_events(_completed(whole.to_batches()[0], day, exchange))]
        yield from rows
        first += len(batch)


def _completed(events: pa.RecordBatch, day: str | None, exchange: str | None) -> pa.RecordBatch:
    """With the columns that stand in the table's log, and nulls for those that were not read."""
    columns = dict(zip(events.schema.names, zoned(events).columns, strict=True))
    when = None if day is None else date.fromisoformat(day)
    columns |= {
        "date": pa.repeat(pa.scalar(when, pa.date32()), len(events)),
        "exchange": pa.repeat(pa.scalar(exchange, pa.string()), len(events)),
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
            parts, wholes = split_off(silver.name, columns) if silver.name in SPLIT else (None, columns)
            if parts is not None:
                yield BOOK_PARTS, parts
            yield from split_refused(silver.table, wholes)
