"""Books rebuilt from their changes, in one pass over rows that are sorted by symbol and time.

For each symbol the pass goes on from a book that is known (a row of gold.books), applies what follows, and gives what was asked
for: the top of the book whenever it changes, the best levels at the end of each interval in which something changed, and the whole
book at the end of each hour, for the next pass to go on from. It also says which seconds it went over, whatever changed in them: a top
that is there no more was in one of these.

Changes received at the same microsecond are applied together. A lost connection forgets the book: there is none until the next
snapshot. Crossed levels are removed as everywhere in this package: those of the side that the last change did not set.

Prices and amounts are counted in units of their last digit while books are rebuilt: whole numbers are as exact as decimals, and taken
from columns, compared and put back in a fraction of the time.

Invariant: pure, batches in, batches out, holding one symbol's book at a time; the same rows give the same books, however cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...computed.order_book import OrderBook
from ...messages import BookChange, BookLevel
from .windows import HOUR_US, SECOND_US

__all__ = ["BOOKS", "CHANGE", "DISCONNECT", "KNOWN", "REBUILT", "REBUILT_DDL", "SECONDS", "TOP", "Sampling", "rebuild"]

KNOWN, CHANGE, DISCONNECT = 0, 1, 2
"""Kinds of rows that come in: a book to begin with, a change, a lost connection."""

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
    }
)
_LEVELS_DDL = "ARRAY<STRUCT<price: DECIMAL(38, 18), amount: DECIMAL(38, 18)>>"
REBUILT_DDL = (
    "product STRING, exchange STRING, symbol STRING, start TIMESTAMP, local_ts TIMESTAMP, event_ts TIMESTAMP, "
    f"bids {_LEVELS_DDL}, asks {_LEVELS_DDL}, crossed_levels BIGINT, order_flow DECIMAL(38, 18)"
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


class _Rebuilding:
    """The book of one symbol."""

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
        self._book: OrderBook | None = None
        self._crossed = 0
        # The instant whose changes are being applied, and the exchange's time of the last of them.
        self._now_us: int | None = None
        self._event_us: int | None = None
        self._top: Top = (None, None)
        self._second_us: int | None = None
        # Of a snapshot that came a level at a time, how many levels are still to come.
        self._snapshot_left = 0

    def take(self, kind: int, at_us: int, event_us: int | None, row: BookChange, level_count: int | None) -> None:
        """One row, not before those that came before it."""
        if kind == KNOWN:
            self._forget()
            if row.is_snapshot:
                self._open().update(row)
            self._top, self._crossed = self._look(), 0
            return
        if at_us != self._now_us:
            self._settle(at_us)
            self._now_us = at_us
            self._snapshot_left = 0
        self._event_us = event_us
        if kind == DISCONNECT:
            self._forget()
            return
        if row.is_snapshot and level_count:
            if self._snapshot_left:
                row.is_snapshot = False
                self._snapshot_left -= 1
            else:
                self._snapshot_left = level_count - 1
        if row.is_snapshot:
            self._open().update(row)
        elif self._book is not None:
            self._book.update(row)

    def _forget(self) -> None:
        self._book = None

    def _open(self) -> OrderBook:
        if self._book is None:
            self._book = OrderBook(on_removed=self._count_crossed)
        return self._book

    def _count_crossed(self, *_: object) -> None:
        self._crossed += 1

    def end(self) -> None:
        """No more rows of this symbol."""
        self._settle(self._until_us)

    def _settle(self, next_us: int | None) -> None:
        """All changes of an instant are applied, and the next one is known."""
        now_us = self._now_us
        if now_us is None:
            return
        top = self._look()
        if top != self._top:
            if now_us >= self._emit_from_us:
                bid, ask = top
                flow = _order_flow(self._top, top)
                self._emit(TOP, now_us, [bid] if bid else [], [ask] if ask else [], flow)
            self._top = top
        second_us = now_us - now_us % SECOND_US
        if now_us >= self._emit_from_us and second_us != self._second_us:
            self._second_us = second_us
            self._emit(SECONDS, second_us, None, None, None)
        # Of this instant only: what came before is told by another row, or was told by another pass.
        self._crossed = 0
        for sampling in self._samplings:
            start_us = now_us - now_us % sampling.interval_us
            end_us = start_us + sampling.interval_us
            is_over = next_us is None or next_us >= end_us
            if is_over and end_us > self._emit_from_us and (self._book is not None or sampling.product == BOOKS):
                self._emit(sampling.product, start_us, *self._levels(sampling.depth), None)

    def _look(self) -> Top:
        book = self._book
        return (None, None) if book is None else (book.best_bid, book.best_ask)

    def _levels(self, depth: int | None) -> tuple[list[BookLevel] | None, list[BookLevel] | None]:
        book = self._book
        if book is None:
            return None, None
        return ([*book.bids()], [*book.asks()]) if depth is None else (book.top_bids(depth), book.top_asks(depth))

    def _emit(
        self, product: str, start_us: int, bids: list[BookLevel] | None, asks: list[BookLevel] | None, flow: int | None
    ) -> None:
        crossed = self._crossed if product == TOP else None
        self._out.append((product, *self._place, start_us, self._now_us, self._event_us, bids, asks, crossed, flow))


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
    """Sorted rows (exchange, symbol, kind, local_us, event_us, is_snapshot, bids, asks, level_count, emit_from_us, until_us) to
    `REBUILT`. What is asked for begins at emit_from_us; at until_us, where it is given, a snapshot replaces the book, and intervals that
    go on past it are not given."""
    samplings = [*samplings, Sampling(BOOKS, None, HOUR_US)]
    out: list[Any] = []
    current: _Rebuilding | None = None
    place: tuple[str, str] | None = None
    for batch in batches:
        bids, asks = _sides(batch["bids"]), _sides(batch["asks"])
        kinds, instants, event_instants, are_snapshots, level_counts = (
            batch[name].to_pylist() for name in ("kind", "local_us", "event_us", "is_snapshot", "level_count")
        )
        for first, end in pairwise(_starts_of_places(batch)):
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
                current.take(kinds[row], instants[row], event_instants[row], change, level_counts[row])
                if len(out) >= _FLUSH_ROWS:
                    yield _to_batch(out)
                    out.clear()
    if current is not None:
        current.end()
    if out:
        yield _to_batch(out)


def _starts_of_places(batch: pa.RecordBatch) -> list[int]:
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
