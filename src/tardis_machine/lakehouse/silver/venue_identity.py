"""Which executions are the same to their venue, whoever received them.

An event id holds the time at which a recorder received the event, so two recorders, or a live session and a later backfill, give one
trade two event ids. What the venue said of it is the same for all: symbol, time, price, amount, side and, mostly, an id.

- With an id, rows in which all of that is equal are one execution, wherever they come from.
- Without one, two equal rows of one session are two executions, as a venue may well have two such. Rows of different sessions are
  paired in their order: the second of one session is the second of another. So there are as many as the session has that has most.

A row that the venue gave no time is never paired with another.

Invariant: pure. Of rows of one session none is lost but those that repeat an id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["VENUE_COLUMNS", "find_unpaired"]

VENUE_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "trades": ("symbol", "event_ts", "trade_id", "price", "amount", "side"),
    "liquidations": ("symbol", "event_ts", "liquidation_id", "price", "amount", "side"),
}
"""By silver table, what its venue says of an execution; the third is the venue's id."""

Mask = npt.NDArray[np.bool_]
Key = tuple[Any, ...]

_TIME, _ID = 1, 2
_NO_TIME = -(1 << 62)
_ROWS_AT_ONCE = 100_000
"""Of which Python objects are made."""


def find_unpaired(rows: pa.Table, known: pa.Table, table: str) -> Mask:
    """Which rows are no execution that is known, nor one that an earlier row of them is.

    Both have the columns of VENUE_COLUMNS and `session`, rows also `local_ts` and `sequence`: the one that was received first stays.
    """
    is_new = np.ones(len(rows), np.bool_)
    suspects = _find_suspects(rows, known, table)
    if not len(suspects):
        return is_new
    rows = rows.take(pa.array(suspects))
    times, known_times = _times(rows, table), _times(known, table)
    by_time, known_by_time = np.argsort(times, kind="stable"), np.argsort(known_times, kind="stable")
    times, known_times = times[by_time], known_times[known_by_time]
    # Rows that are paired have one time: a slice of time needs to know nothing of the others.
    first = 0
    while first < len(times):
        end = int(np.searchsorted(times, times[min(first + _ROWS_AT_ONCE, len(times)) - 1], "right"))
        known_first, known_end = np.searchsorted(known_times, times[first]), np.searchsorted(known_times, times[end - 1], "right")
        own = by_time[first:end]
        near = known.take(pa.array(known_by_time[known_first:known_end]))
        is_new[suspects[own]] = _pair(rows.take(pa.array(own)), near, table)
        first = end
    return is_new


def _pair(rows: pa.Table, known: pa.Table, table: str) -> Mask:
    # Of each execution how many there are, and how many of these each session brought.
    there: Counter[Key] = Counter()
    brought: Counter[tuple[Key, str | None]] = Counter()
    for key, session in _keys(known, table):
        there[key] += 1
        brought[key, session] += 1
    keys = [*_keys(rows, table)]
    is_new = np.ones(len(keys), np.bool_)
    for place in _order(rows):
        key, session = keys[place]
        brought[key, session] += 1
        is_new[place] = not there[key] if key[_ID] is not None else brought[key, session] > there[key]
        there[key] += int(is_new[place])
    return is_new


def _times(rows: pa.Table, table: str) -> npt.NDArray[np.int64]:
    times: npt.NDArray[np.int64] = rows.column(VENUE_COLUMNS[table][_TIME]).cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
    return times


def _find_suspects(rows: pa.Table, known: pa.Table, table: str) -> npt.NDArray[np.int64]:
    """Rows of which there may be another: those with a time that occurs more than once."""
    time = VENUE_COLUMNS[table][_TIME]
    times, known_times = rows.column(time).cast(pa.int64()), known.column(time).cast(pa.int64())
    found = pc.value_counts(times.combine_chunks())
    twice = found.field("values").filter(pc.greater(found.field("counts"), 1))
    is_suspect = pc.or_(pc.is_in(times, twice), pc.is_in(times, known_times.combine_chunks()))
    return np.flatnonzero(pc.and_(is_suspect, times.is_valid()).to_numpy())


def _keys(rows: pa.Table, table: str) -> Iterator[tuple[Key, str | None]]:
    columns = [_values(rows.column(name)) for name in VENUE_COLUMNS[table]]
    return zip(zip(*columns, strict=True), rows.column("session").to_pylist(), strict=True)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Values that are equal where the column's are; decimals as the bytes that they are made of, which is much faster."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if not pa.types.is_decimal(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    values: list[Any] = []
    for chunk in column.chunks:
        data = chunk.buffers()[1].to_pybytes() if len(chunk) else b""
        is_valid = chunk.is_valid().to_pylist() if chunk.null_count else None
        for place in range(len(chunk)):
            start = (chunk.offset + place) * 16
            values.append(data[start : start + 16] if is_valid is None or is_valid[place] else None)
    return values


def _order(rows: pa.Table) -> list[int]:
    keys = [(name, "ascending") for name in ("local_ts", "session", "sequence")]
    return pc.sort_indices(rows, sort_keys=keys).to_pylist()  # type: ignore[no-any-return]
