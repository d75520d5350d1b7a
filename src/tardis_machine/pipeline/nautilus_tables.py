"""Rows of datasets as the tables of NautilusTrader's Parquet catalog, each with its place in it.

Numbers are integers of 128 bits with 16 places, as NautilusTrader is built for Linux and macOS. A snapshot clears the book first.

Invariant: the last change of a moment is marked as such, and a row has the times of its message in nanoseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OptionsError
from .dataset_tables import PLACES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["NAUTILUS_KINDS", "Precision", "catalog_path", "precision_of", "to_nautilus"]

NAUTILUS_KINDS = {"trades": "trade_tick", "incremental_book_L2": "order_book_delta", "quotes": "quote_tick"}
"""Dataset to folder."""

_UPDATE, _ADD, _DELETE, _CLEAR = 2, 1, 3, 4
_LAST, _SNAPSHOT = 128, 32


class Precision(NamedTuple):
    """How many places an instrument's numbers have."""

    price: int
    size: int


def precision_of(table: pa.Table) -> Precision:
    """The most places that any of its numbers has."""
    import pyarrow.compute as pc

    def places(*names: str) -> int:
        distinct = [value for name in names if name in table.column_names for value in pc.unique(table[name]).to_pylist()]
        exponents = [value.normalize().as_tuple().exponent for value in distinct if value is not None]
        return max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)

    prices = places("price", "bid_price", "ask_price")
    return Precision(max(prices, 0), max(places("amount", "bid_amount", "ask_amount"), 0))


def catalog_path(dataset: str, instrument: str, table: pa.Table) -> PurePath:
    """Where the catalog looks for it: by kind, instrument, and the first and last `ts_init`."""
    first, last = (_moment(table["ts_init"][place].as_py()) for place in (0, -1))
    return PurePath("data") / NAUTILUS_KINDS[dataset] / instrument.replace("/", "") / f"{first}_{last}.parquet"


def _moment(ns: int) -> str:
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H-%M-%S}-{rest:09d}Z"


def to_nautilus(dataset: str, table: pa.Table, instrument: str, precision: Precision) -> pa.Table:
    """The rows as the catalog has them. OptionsError where a number has more places than `precision`."""
    needed = precision_of(table)
    for name in ("price", "size"):
        if getattr(needed, name) > getattr(precision, name):
            raise OptionsError(
                f"--{name}-precision: expected {getattr(needed, name)} or more, which {instrument} has, got {getattr(precision, name)}",
                f"{name}-precision",
            )
    import pyarrow as pa

    columns = {"trades": _trades, "incremental_book_L2": _deltas, "quotes": _quotes}[dataset](table)
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    named = {"instrument_id": instrument, "price_precision": str(precision.price), "size_precision": str(precision.size)}
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields, metadata=named))


def _trades(table: pa.Table) -> dict[str, pa.Array]:
    import numpy as np
    import pyarrow as pa

    side = _texts(table["side"])
    given = _texts(table["id"]).tolist()
    arrived = table["local_timestamp"].to_numpy()
    # Every trade has an id there, of 36 letters at most.
    ids = [text[:36] or f"{at}-{place}" for place, (text, at) in enumerate(zip(given, arrived.tolist(), strict=True))]
    return {
        "price": _raw(table["price"]),
        "size": _raw(table["amount"]),
        "aggressor_side": pa.array(np.where(side == "buy", 1, np.where(side == "sell", 2, 0)).astype("u1")),
        "trade_id": pa.array(ids, pa.string()),
        **_times(table),
    }


def _quotes(table: pa.Table) -> dict[str, pa.Array]:
    import pyarrow.compute as pc

    numbers = ("bid_price", "ask_price", "bid_amount", "ask_amount")
    whole = pc.and_(*(pc.and_(*(pc.is_valid(table[name]) for name in pair)) for pair in (numbers[:2], numbers[2:])))
    table = table.filter(whole)
    named = zip(("bid_price", "ask_price", "bid_size", "ask_size"), numbers, strict=True)
    return {**{name: _raw(table[column]) for name, column in named}, **_times(table)}


def _deltas(table: pa.Table) -> dict[str, pa.Array]:
    import numpy as np
    import pyarrow as pa

    arrived = table["local_timestamp"].to_numpy()
    is_snapshot = table["is_snapshot"].to_numpy(zero_copy_only=False).astype(bool)
    begins = is_snapshot.copy()
    begins[1:] &= ~is_snapshot[:-1] | (arrived[1:] != arrived[:-1])
    starts = np.flatnonzero(begins)
    is_empty = np.frombuffer(_raw(table["amount"]).buffers()[1], "V16", len(table)) == np.zeros(1, "V16")
    side = _texts(table["side"])
    action = np.where(is_empty, _DELETE, np.where(is_snapshot, _ADD, _UPDATE))
    # The row of each delta; that of a clearing is the first of its snapshot.
    rows = np.insert(np.arange(len(table)), starts, starts)
    clears = np.zeros(len(rows), bool)
    clears[starts + np.arange(len(starts))] = True
    last = np.ones(len(rows), bool)
    last[:-1] = arrived[rows[1:]] != arrived[rows[:-1]]
    flags = np.where(last, _LAST, 0) | np.where(is_snapshot[rows], _SNAPSHOT, 0)
    taken = table.take(pa.array(rows))
    return {
        "action": pa.array(np.where(clears, _CLEAR, action[rows]).astype("u1")),
        "side": pa.array(np.where(clears, 0, np.where(side[rows] == "bid", 1, 2)).astype("u1")),
        "price": _raw(taken["price"], clears),
        "size": _raw(taken["amount"], clears),
        "order_id": pa.array(np.zeros(len(rows), "u8")),
        "flags": pa.array(flags.astype("u1")),
        "sequence": pa.array(np.zeros(len(rows), "u8")),
        **_times(taken),
    }


def _times(table: pa.Table) -> dict[str, pa.Array]:
    import pyarrow as pa

    named = (("ts_event", "timestamp"), ("ts_init", "local_timestamp"))
    return {name: pa.array((table[column].to_numpy() * 1000).astype("u8")) for name, column in named}


def _texts(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.asarray(column.fill_null("").to_numpy(zero_copy_only=False), dtype=object)


def _raw(column: pa.ChunkedArray, cleared: np.ndarray[Any, Any] | None = None) -> pa.Array:
    """Decimals as what they are in memory: integers of 128 bits, little end first; zero where there is none."""
    import numpy as np
    import pyarrow as pa

    assert column.type == pa.decimal128(38, PLACES)
    joined = column.combine_chunks()
    joined = joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
    raw = np.frombuffer(joined.buffers()[1], "V16", len(joined) + joined.offset)[joined.offset :].copy()
    if cleared is not None:
        raw[cleared] = np.zeros(1, "V16")[0]
    return pa.Array.from_buffers(pa.binary(16), len(raw), [None, pa.py_buffer(raw.tobytes())])
