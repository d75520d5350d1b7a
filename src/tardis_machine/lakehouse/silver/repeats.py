"""Which events of a batch are new: each once, and none that its table has.

Ids are compared by their first eight bytes, as numbers; whole, only where those are equal.

Invariant: the answer does not depend on how events are spread over files, or on who asks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["ORDER", "find_new"]

ORDER = ("session", "sequence", "bus", "position")
"""Of equal events the first by these stays."""

Mask = npt.NDArray[np.bool_]
Heads = npt.NDArray[np.uint64]


def find_new(ids: pa.ChunkedArray, known: pa.ChunkedArray, read_order: Callable[[], pa.Table]) -> Mask:
    """Which of the events are new, each once; `read_order` gives the columns of ORDER, and is called only where ids repeat."""
    heads, known_heads = _heads(ids), _heads(known)
    is_new = np.ones(len(heads), np.bool_)
    if len(known_heads):
        suspects = np.flatnonzero(_is_in(heads, known_heads))
        if len(suspects):
            suspected = known.filter(pa.array(_is_in(known_heads, heads[suspects])))
            is_new[suspects] = ~pa.compute.is_in(ids.take(pa.array(suspects)), suspected.combine_chunks()).to_numpy()
    rows = np.flatnonzero(is_new)
    repeated = rows[_has_twin(heads[rows])]
    if len(repeated):
        is_new[repeated] = _is_first(ids.take(pa.array(repeated)), read_order().take(pa.array(repeated)))
    return is_new


def _heads(ids: pa.ChunkedArray) -> Heads:
    """The first bytes of each id; those of another length, which only other producers make, by what they have."""
    if not len(ids):
        return np.empty(0, np.uint64)
    heads = pa.compute.binary_slice(ids, 0, 8).combine_chunks()
    lengths = pa.compute.binary_length(heads)
    if pa.compute.min(lengths).as_py() == 8:
        return np.frombuffer(heads.buffers()[2], np.uint64, len(heads))
    return np.array([int.from_bytes(head.ljust(8, b"\0"), "little") for head in heads.to_pylist()], np.uint64)


def _is_in(heads: Heads, others: Heads) -> Mask:
    ordered = np.sort(others)
    places = np.searchsorted(ordered, heads)
    places[places == len(ordered)] = 0
    found: Mask = ordered[places] == heads
    return found


def _has_twin(heads: Heads) -> Mask:
    """Which occur more than once."""
    order = np.argsort(heads, kind="stable")
    is_same = np.diff(heads[order]) == 0
    found = np.zeros(len(heads), np.bool_)
    found[order[1:][is_same]] = found[order[:-1][is_same]] = True
    return found


def _is_first(ids: pa.ChunkedArray, order: pa.Table) -> Mask:
    """Which rows are the first of their id."""
    rows = order.select(ORDER).append_column("id", ids).append_column("row", pa.array(range(len(ids))))
    rows = rows.sort_by([(name, "ascending") for name in ("id", *ORDER, "row")])
    of_sorted = rows.column("id").combine_chunks()
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = pa.compute.not_equal(of_sorted[1:], of_sorted[:-1]).to_numpy(zero_copy_only=False)
    found = np.zeros(len(ids), np.bool_)
    found[rows.column("row").to_numpy()[is_first]] = True
    return found
