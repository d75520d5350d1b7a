"""Trades of an interval summed up on columns, by workers that read silver's files themselves.

Spark would take every trade apart into objects, of which its decimals are the dearest, sort them between processes, and add them up one by
one.

Windows are cut into tasks by their start, and then by their symbols, so that a task has about as many rows as it may hold. It reads the
parts of files that may have rows of its windows, by both clocks.

Invariant: what comes of a window depends on its rows alone, not on how they are spread over files, or windows over tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..commits import TableFile
from ..row_groups import Span, overlapping, zoned
from ..silver.trades import TRADES
from ..storage import Storage
from ..tasks import cores, tasks
from .product import Scope
from .windows import MAX_SKEW_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SumTask", "sum_trades", "summed_trades"]

_PRICE = pa.decimal128(38, 18)
_INSTANT = pa.timestamp("us", "UTC")
SUMMED = pa.schema(
    {
        "exchange": pa.string(),
        "symbol": pa.string(),
        "start": _INSTANT,
        **dict.fromkeys(("open", "high", "low", "close", "volume", "buy_volume", "sell_volume"), _PRICE),
        "trades": pa.int64(),
        "vwap": _PRICE,
        "twap": _PRICE,
    }
)
SUMMED_DDL = (
    "exchange STRING, symbol STRING, start TIMESTAMP, open DECIMAL(38, 18), high DECIMAL(38, 18), low DECIMAL(38, 18), "
    "close DECIMAL(38, 18), volume DECIMAL(38, 18), buy_volume DECIMAL(38, 18), sell_volume DECIMAL(38, 18), trades BIGINT, "
    "vwap DECIMAL(38, 18), twap DECIMAL(38, 18)"
)
_READ = ["symbol", "local_ts", "event_ts", "price", "amount", "side", "sequence", "event_id"]
_TASK_BYTES = 16 * 1024**2
"""Of files that a task reads: some hundred thousand trades."""
_SMALL_BYTES = 1024**2
"""For which a further task is not worth its start."""
_NONE = np.iinfo(np.int64).min

Instants = npt.NDArray[np.int64]


class SumTask(msgspec.Struct, frozen=True):
    """Windows of one exchange, and the files that may have their trades."""

    storage: Storage
    exchange: str
    interval_us: int
    symbols: tuple[str, ...]
    starts_us: bytes
    """Of each window, with the symbol at the same place."""
    files: tuple[TableFile, ...]


def summed_trades(scope: Scope) -> DataFrame:
    """The trades of each window that has some, summed up."""
    planned = [task for exchange in scope.exchanges for task in _plan(scope, exchange)]
    if not planned:
        return scope.spark.createDataFrame([], SUMMED_DDL)
    return tasks(scope.spark, planned).mapInArrow(partial(_run, planned), SUMMED_DDL)


def _run(planned: Sequence[SumTask], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch.column(0).to_pylist():
            yield from sum_trades(planned[place]).to_batches()


def _plan(scope: Scope, exchange: str) -> Iterator[SumTask]:
    # A connection that is lost touches windows of no symbol, which have no trades.
    is_own = pc.and_(pc.equal(scope.windows["exchange"], exchange), pc.is_valid(scope.windows["symbol"]))
    windows = scope.windows.filter(is_own).sort_by([("start", "ascending"), ("symbol", "ascending")])
    if not windows.num_rows:
        return
    starts = _us(windows["start"])
    places = [{"date": str(day), "exchange": exchange} for day in scope.dates(MAX_SKEW_US)]
    files = [file for found in scope.commits.files(TRADES.table, places).values() for file in found]
    near = _near(files, (int(starts[0]), int(starts[-1]) + scope.interval_us - 1))
    size_bytes = sum(file.size for file in near)
    count = min(len(starts), max(min(cores(scope.spark), -(-size_bytes // _SMALL_BYTES)), -(-size_bytes // _TASK_BYTES)))
    for part in range(count):
        first, last = len(starts) * part // count, len(starts) * (part + 1) // count
        own = starts[first:last]
        symbols = tuple(windows["symbol"].slice(first, last - first).to_pylist())
        files_of_part = tuple(_near(near, (int(own[0]), int(own[-1]) + scope.interval_us - 1)))
        if files_of_part:
            yield SumTask(scope.commits.storage, exchange, scope.interval_us, symbols, own.tobytes(), files_of_part)


def _near(files: Iterable[TableFile], span: Span) -> list[TableFile]:
    """Those that may have rows which one of their clocks puts there."""
    first_us, last_us = span
    return [
        file
        for file in files
        if (file.first_us <= last_us and first_us <= file.last_us)
        or (file.first_event_us <= last_us and first_us <= file.last_event_us)
    ]


def sum_trades(task: SumTask) -> pa.Table:
    """What comes of a task's windows."""
    starts = np.frombuffer(task.starts_us, np.int64)
    span = (int(starts.min()), int(starts.max()) + task.interval_us - 1)
    known = sorted({*task.symbols})
    wanted = pc.index_in(pa.array(task.symbols), pa.array(known)).to_numpy().astype(np.int64), starts
    parts = [part for file in task.files for part in _read(task.storage, file, span)]
    parts = [part for part in (_placed(part, task.interval_us, known, wanted) for part in parts) if part.num_rows]
    if not parts:
        return SUMMED.empty_table()
    rows = _ordered(pa.concat_tables(parts))
    summed = _sum(rows, task.interval_us)
    symbols = pa.array(known).take(summed["code"].combine_chunks())
    whole = {"exchange": pa.repeat(task.exchange, summed.num_rows), "symbol": symbols}
    return pa.table(
        {name: whole.get(name, summed[name] if name in summed.column_names else None) for name in SUMMED.names}, SUMMED
    )


def _read(storage: Storage, file: TableFile, span: Span) -> Iterator[pa.Table]:
    with storage.open_parquet(file.path) as opened:
        groups = sorted({*overlapping(opened, "local_ts", [span]), *overlapping(opened, "event_ts", [span])})
        for group in groups:
            yield zoned(opened.read_row_group(group, _READ, use_threads=False))


def _placed(rows: pa.Table, interval_us: int, known: list[str], wanted: tuple[Instants, Instants]) -> pa.Table:
    """The rows of the windows, with their instant (`ts`), their window (`start`) and the place of their symbol (`code`)."""
    local, event = _us(rows["local_ts"]), _us(rows["event_ts"])
    ts = np.where((event != _NONE) & (np.abs(event - local) <= MAX_SKEW_US), event, local)
    start = ts - np.mod(ts, interval_us)
    code = pc.fill_null(pc.index_in(rows["symbol"], pa.array(known)), -1).to_numpy().astype(np.int64)
    windows = len(known), int(wanted[1].min())
    number = (start - windows[1]) // interval_us * windows[0] + code
    chosen = np.flatnonzero((code >= 0) & np.isin(number, (wanted[1] - windows[1]) // interval_us * windows[0] + wanted[0]))
    rows = rows.drop_columns(["symbol", "event_ts"]).take(pa.array(chosen)) if len(chosen) < len(ts) else rows
    for name, column in (("ts", ts), ("start", start), ("code", code)):
        rows = rows.append_column(name, pa.array(column[chosen]))
    return rows.select(["code", "start", "ts", "local_ts", "sequence", "event_id", "price", "amount", "side"])


def _ordered(rows: pa.Table) -> pa.Table:
    """By window, and then in the order of their instants and their arrival."""
    keys = [rows[name].to_numpy() for name in ("code", "start", "ts")] + [_us(rows["local_ts"]), rows["sequence"].to_numpy()]
    if not _is_ordered(keys):
        order = np.lexsort(keys[::-1])
        rows, keys = rows.take(pa.array(order)), [key[order] for key in keys]
    same = np.flatnonzero(np.logical_and.reduce([key[1:] == key[:-1] for key in keys]))
    if len(same):
        # Sequences are of a session: two may have the same.
        names = ("code", "start", "ts", "local_ts", "sequence", "event_id")
        rows = rows.sort_by([(name, "ascending") for name in names])
    return rows


def _is_ordered(keys: Sequence[Instants]) -> bool:
    is_equal = np.ones(len(keys[0]) - 1, np.bool_)
    for key in keys:
        step = np.diff(key)
        if (step[is_equal] < 0).any():
            return False
        is_equal &= step == 0
    return True


def _sum(rows: pa.Table, interval_us: int) -> pa.Table:
    code, start, ts = (rows[name].to_numpy() for name in ("code", "start", "ts"))
    begins = np.concatenate([[True], (code[1:] != code[:-1]) | (start[1:] != start[:-1])])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(ts)) - 1
    until = np.append(ts[1:], 0)
    until[last] = start[last] + interval_us
    held_us = until - ts
    price, amount, side = rows["price"].combine_chunks(), rows["amount"].combine_chunks(), rows["side"]
    zero = pa.scalar(0, pa.int64()).cast(_PRICE)

    def of(wanted: str) -> pa.ChunkedArray:
        return pc.if_else(pc.fill_null(pc.equal(side, wanted), False), pc.fill_null(amount, zero), zero)

    group = pa.array(np.cumsum(begins) - 1)
    columns = {"group": group, "price": price, "volume": amount, "buy_volume": of("buy"), "sell_volume": of("sell")}
    sums = (
        pa.table(columns)
        .group_by("group", use_threads=False)
        .aggregate([("price", "max"), ("price", "min"), *((name, "sum") for name in ("volume", "buy_volume", "sell_volume"))])
        .sort_by("group")
    )
    prices, amounts = _doubles(price), _doubles(amount)
    close = price.take(pa.array(last))
    volume = _doubles(sums["volume_sum"])
    held = np.add.reduceat(held_us, first)
    with np.errstate(divide="ignore", invalid="ignore"):
        vwap = _totals(prices * amounts, first) / volume
        at_prices = _totals(prices * held_us, first)
        twap = np.where((held > 0) & ~np.isnan(at_prices), at_prices / held, _doubles(close))
    return pa.table(
        {
            "code": code[first],
            "start": pa.array(start[first]).cast(_INSTANT),
            "open": price.take(pa.array(first)),
            "high": sums["price_max"],
            "low": sums["price_min"],
            "close": close,
            **{name: sums[f"{name}_sum"].cast(_PRICE) for name in ("volume", "buy_volume", "sell_volume")},
            "trades": last - first + 1,
            "vwap": _decimals(vwap),
            "twap": _decimals(twap),
        }
    )


def _us(instants: pa.ChunkedArray) -> Instants:
    found: Instants = pc.fill_null(instants.cast(pa.int64()), _NONE).to_numpy()
    return found


def _totals(values: npt.NDArray[np.float64], first: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The sum of each group, of the numbers that it has; NaN where it has none."""
    is_known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(is_known, values, 0.0), first)
    return np.where(np.logical_or.reduceat(is_known, first), sums, np.nan)


def _doubles(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """NaN where there is none: some exchanges send trades without a price or an amount."""
    found: npt.NDArray[np.float64] = pc.fill_null(values.cast(pa.float64()), float("nan")).to_numpy()
    return found


def _decimals(values: npt.NDArray[np.float64]) -> pa.Array:
    """Null where there is none."""
    return pa.array(np.where(np.abs(values) < 1e20, values, np.nan), from_pandas=True).cast(_PRICE)
