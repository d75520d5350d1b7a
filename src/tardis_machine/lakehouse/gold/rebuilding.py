"""Books rebuilt from their changes, in one pass over rows that are sorted by symbol and time.

For each symbol the pass goes on from a book that is known (a row of gold.books), applies what follows, and gives what was asked
for: the top of the book whenever it changes, the best levels at the end of each interval in which something changed, and the whole
book at the end of each hour, for the next pass to go on from. It also says which seconds it went over, whatever changed in them: a top
that is there no more was in one of these.

Changes received at the same microsecond are applied together. A lost connection forgets its recorder's book: that has none until its
next snapshot. Crossed levels are removed as everywhere in this package: those of the side that the last change did not set. Where
several recorded a market each has a book, and what is given is of the one that is followed (`recorders`).

Prices and amounts are counted in units of their last digit while books are rebuilt: whole numbers are as exact as decimals, and taken
from columns, compared and put back in a fraction of the time.

Invariant: pure, batches in, batches out, holding one symbol's books at a time; the same rows give the same books, however cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...messages import BookChange, BookLevel
from .recorders import Recorder, choose, forget_silent
from .windows import HOUR_US, SECOND_US

__all__ = [
    "BOOKS",
    "CHANGE",
    "DISCONNECT",
    "KNOWN",
    "REBUILT",
    "REBUILT_DDL",
    "SECONDS",
    "TOP",
    "Sampling",
    "rebuild",
    "starts_of_places",
]

KNOWN, CHANGE, DISCONNECT = 0, 1, 2
"""Kinds of rows that come in: a book to begin with, a change, a lost connection."""

_ROW = ("kind", "local_us", "event_us", "level_count", "recorder", "number", "since_us", "has_gap")
"""The columns of `_Row`, but for the change itself."""
TOP, BOOKS, SECONDS = "top_of_book", "books", "seconds"
_FLUSH_ROWS = 4_096

_INSTANT = pa.timestamp("us", "UTC")
_DECIMAL = pa.decimal128(38, 18)
_LEVELS = pa.list_(pa.struct({"price": _DECIMAL, "amount": _DECIMAL}))
_MOST_UNITS = 10**38 - 1
"""That such a number can have."""
_HALVES = np.dtype([("low", "<u8"), ("high", "<i8")])
"""How a number lies in a column."""
REBUILT = pa.schema(
    {
        "product": pa.string(),
        "exchange": pa.string(),
        "symbol": pa.string(),
        "start": _INSTANT,
        "local_ts": _INSTANT,
        "event_ts": _INSTANT,
        "bids": _LEVELS,
        "asks": _LEVELS,
        "crossed_levels": pa.int64(),
        "order_flow": _DECIMAL,
        "recorder": pa.string(),
        "since": _INSTANT,
        "sequence": pa.int64(),
        "has_gap": pa.bool_(),
    }
)
_LEVELS_DDL = "ARRAY<STRUCT<price: DECIMAL(38, 18), amount: DECIMAL(38, 18)>>"
REBUILT_DDL = (
    "product STRING, exchange STRING, symbol STRING, start TIMESTAMP, local_ts TIMESTAMP, event_ts TIMESTAMP, "
    f"bids {_LEVELS_DDL}, asks {_LEVELS_DDL}, crossed_levels BIGINT, order_flow DECIMAL(38, 18), "
    "recorder STRING, since TIMESTAMP, sequence BIGINT, has_gap BOOLEAN"
)


class Sampling(NamedTuple):
    """Levels that are wanted at the end of each interval; depth None: all."""

    product: str
    depth: int | None
    interval_us: int
    interval: str = ""
    """As it was asked for."""


Top = tuple[BookLevel | None, BookLevel | None]
"""The best bid and ask."""


class _Row(NamedTuple):
    """What `rebuild` takes, of one symbol."""

    kind: int
    at_us: int
    event_us: int | None
    level_count: int | None
    recorder: str | None
    sequence: int | None
    """Where numbers of the recorder's changes are dense."""
    since_us: int | None
    has_gap: bool | None
    """Of a known book: when its snapshot came, and whether a change was missing since then."""
    change: BookChange


class _Rebuilding:
    """The books of one symbol."""

    def __init__(
        self,
        exchange: str,
        symbol: str,
        emit_from_us: int,
        until_us: int | None,
        samplings: Sequence[Sampling],
        out: list[Any],
    ) -> None:
        self._place = exchange, symbol
        self._emit_from_us = emit_from_us
        self._until_us = until_us
        self._samplings = samplings
        self._out = out
        self._recorders: dict[str | None, Recorder] = {}
        # The one that is followed.
        self._followed: Recorder | None = None
        # The instant whose changes are being applied.
        self._now_us: int | None = None
        self._top: Top = (None, None)
        self._second_us: int | None = None

    def take(self, row: _Row) -> None:
        """One row, not before those that came before it."""
        if row.kind == KNOWN:
            self._take_known(row)
            return
        if row.at_us != self._now_us:
            self._settle(row.at_us)
            self._now_us = row.at_us
        recorder = self._recorder(row.recorder)
        if row.at_us != recorder.heard_us:
            recorder.heard_us = row.at_us
            recorder.snapshot_left = 0
        recorder.event_us = row.event_us
        if row.kind == DISCONNECT:
            recorder.book = None
            return
        change = row.change
        if change.is_snapshot and row.level_count:
            if recorder.snapshot_left:
                change.is_snapshot = False
                recorder.snapshot_left -= 1
            else:
                recorder.snapshot_left = row.level_count - 1
        recorder.count(row.sequence)
        if change.is_snapshot:
            recorder.since_us, recorder.has_gap = row.at_us, False
            recorder.open().update(change)
        elif recorder.book is not None:
            recorder.book.update(change)

    def _take_known(self, row: _Row) -> None:
        recorder = self._recorders[row.recorder] = Recorder(row.recorder)
        recorder.heard_us, recorder.sequence, recorder.has_gap = row.at_us, row.sequence, bool(row.has_gap)
        recorder.since_us = row.at_us if row.since_us is None else row.since_us
        if row.change.is_snapshot:
            recorder.open().update(row.change)
        recorder.crossed = 0
        self._followed = choose(self._recorders, row.at_us)
        self._top = _look(self._followed)

    def _recorder(self, name: str | None) -> Recorder:
        found = self._recorders.get(name)
        if found is None:
            # A book of an earlier release is that of the first who is heard.
            found = self._recorders.pop(None, None) or Recorder(name)
            found.name = name
            self._recorders[name] = found
        return found

    def end(self) -> None:
        """No more rows of this symbol."""
        self._settle(self._until_us)

    def _settle(self, next_us: int | None) -> None:
        """All changes of an instant are applied, and the next one is known."""
        now_us = self._now_us
        if now_us is None:
            return
        recorders = self._recorders
        if len(recorders) > 1:
            forget_silent(recorders, now_us)
        followed = choose(recorders, now_us)
        top = _look(followed)
        if top != self._top:
            if now_us >= self._emit_from_us:
                bid, ask = top
                # Between books of two recorders nothing has flowed.
                flow = _order_flow(self._top, top) if followed is self._followed else None
                self._emit(TOP, now_us, followed, [bid] if bid else [], [ask] if ask else [], flow)
            self._top = top
        self._followed = followed
        second_us = now_us - now_us % SECOND_US
        if now_us >= self._emit_from_us and second_us != self._second_us:
            self._second_us = second_us
            self._emit(SECONDS, second_us, followed, None, None, None)
        for recorder in recorders.values():
            # Of this instant only: what came before is told by another row, or was told by another pass.
            recorder.crossed = 0
        for sampling in self._samplings:
            start_us = now_us - now_us % sampling.interval_us
            end_us = start_us + sampling.interval_us
            is_over = next_us is None or next_us >= end_us
            if not is_over or end_us <= self._emit_from_us:
                continue
            if sampling.product == BOOKS:
                for recorder in recorders.values():
                    if recorder.heard_us >= start_us:
                        self._emit(BOOKS, start_us, recorder, *_levels(recorder, None), None)
            elif followed is not None and followed.book is not None:
                self._emit(sampling.product, start_us, followed, *_levels(followed, sampling.depth), None)

    def _emit(
        self,
        product: str,
        start_us: int,
        recorder: Recorder | None,
        bids: list[BookLevel] | None,
        asks: list[BookLevel] | None,
        flow: int | None,
    ) -> None:
        local_us, event_us, crossed = self._now_us, None if recorder is None else recorder.event_us, None
        of_recorder: tuple[Any, ...] = (None, None, None, None)
        if product == TOP:
            crossed = recorder.crossed if recorder is not None else 0
        elif product == BOOKS and recorder is not None:
            local_us = recorder.heard_us
            of_recorder = (recorder.name, recorder.since_us if recorder.book else None, recorder.sequence, recorder.has_gap)
        self._out.append((product, *self._place, start_us, local_us, event_us, bids, asks, crossed, flow, *of_recorder))


def _look(recorder: Recorder | None) -> Top:
    book = None if recorder is None else recorder.book
    return (None, None) if book is None else (book.best_bid, book.best_ask)


def _levels(recorder: Recorder, depth: int | None) -> tuple[list[BookLevel] | None, list[BookLevel] | None]:
    book = recorder.book
    if book is None:
        return None, None
    return ([*book.bids()], [*book.asks()]) if depth is None else (book.top_bids(depth), book.top_asks(depth))


def _order_flow(before: Top, after: Top) -> int | None:
    """What a change of the top adds to the order flow imbalance: demand that came, less supply that came."""
    (bid_before, ask_before), (bid, ask) = before, after
    if bid_before is None or ask_before is None or bid is None or ask is None:
        return None
    flow: Any = 0
    if bid.price >= bid_before.price:  # type: ignore[operator]
        flow += bid.amount
    if bid.price <= bid_before.price:  # type: ignore[operator]
        flow -= bid_before.amount
    if ask.price <= ask_before.price:  # type: ignore[operator]
        flow -= ask.amount
    if ask.price >= ask_before.price:  # type: ignore[operator]
        flow += ask_before.amount
    return flow if abs(flow) <= _MOST_UNITS else None


def rebuild(samplings: Sequence[Sampling], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted rows to `REBUILT`.

    They have exchange, symbol, is_snapshot, bids, asks, emit_from_us, until_us, and what `_ROW` names. What is asked for begins at
    emit_from_us; at until_us, where it is given, a snapshot replaces the book, and intervals that go on past it are not given.
    """
    samplings = [*samplings, Sampling(BOOKS, None, HOUR_US)]
    out: list[Any] = []
    current: _Rebuilding | None = None
    place: tuple[str, str] | None = None
    for batch in batches:
        bids, asks = _sides(batch["bids"]), _sides(batch["asks"])
        are_snapshots = batch["is_snapshot"].to_pylist()
        others = [*zip(*(batch[name].to_pylist() for name in _ROW), strict=True)]
        for first, end in pairwise(starts_of_places(batch)):
            exchange, symbol, emit_from_us, until_us = (
                batch[name][first].as_py() for name in ("exchange", "symbol", "emit_from_us", "until_us")
            )
            if (exchange, symbol) != place:
                if current is not None:
                    current.end()
                place = exchange, symbol
                current = _Rebuilding(exchange, symbol, emit_from_us, until_us, samplings, out)
            assert current is not None
            for row in range(first, end):
                change = BookChange(symbol, exchange, bool(are_snapshots[row]), bids[row], asks[row], None, "")
                current.take(_Row._make((*others[row], change)))
                if len(out) >= _FLUSH_ROWS:
                    yield _to_batch(out)
                    out.clear()
    if current is not None:
        current.end()
    if out:
        yield _to_batch(out)


def starts_of_places(batch: pa.RecordBatch) -> list[int]:
    """The rows with which another symbol begins, and the end of the batch."""
    indices = [batch[name].dictionary_encode().indices.to_numpy() for name in ("exchange", "symbol")]
    is_other = np.any([np.diff(found, prepend=-1) != 0 for found in indices], axis=0)
    return [*np.flatnonzero(is_other).tolist(), batch.num_rows]


def _sides(column: pa.ListArray) -> list[list[BookLevel]]:
    """Of each row, the levels that have both numbers."""
    prices, amounts = column.flatten().flatten()
    levels = list(map(BookLevel, _to_units(prices), _to_units(amounts)))
    ends = np.cumsum(column.value_lengths().fill_null(0)).tolist()
    sides = [levels[first:end] for first, end in pairwise([0, *ends])]
    if prices.null_count or amounts.null_count:
        sides = [[level for level in side if level.price is not None and level.amount is not None] for side in sides]
    return sides


def _to_units(numbers: pa.Decimal128Array) -> list[Any]:
    """Whole numbers, and None where there is no number."""
    if not len(numbers):
        return []
    halves = np.frombuffer(numbers.buffers()[1], _HALVES, numbers.offset + len(numbers))[numbers.offset :]
    units: list[Any] = [(high << 64) + low for high, low in zip(halves["high"].tolist(), halves["low"].tolist(), strict=True)]
    if numbers.null_count:
        units = [number if known else None for number, known in zip(units, numbers.is_valid().to_pylist(), strict=True)]
    return units


def _from_units(units: Sequence[Any]) -> pa.Decimal128Array:
    numbers = b"".join([(number or 0).to_bytes(16, "little", signed=True) for number in units])
    is_known = pa.array([number is not None for number in units], pa.bool_())
    return pa.Array.from_buffers(_DECIMAL, len(units), [is_known.buffers()[1], pa.py_buffer(numbers)])


def _to_batch(rows: Sequence[Any]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [_to_array(column, field.type) for field, column in zip(REBUILT, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REBUILT)


def _to_array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == _LEVELS:
        return _to_levels(column)
    return _from_units(column) if kind == _DECIMAL else pa.array(column, kind)


def _to_levels(sides: Sequence[Sequence[BookLevel] | None]) -> pa.ListArray:
    flat = [level for side in sides if side is not None for level in side]
    prices, amounts = _from_units([level.price for level in flat]), _from_units([level.amount for level in flat])
    offsets = np.cumsum([0, *(0 if side is None else len(side) for side in sides)])
    items = pa.StructArray.from_arrays([prices, amounts], fields=list(_LEVELS.value_type))
    mask = pa.array([side is None for side in sides])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=_LEVELS, mask=mask)


# Where it was compiled, this is done there.
with suppress(ImportError):
    from .rebuilding_compiled import *  # noqa: F403
