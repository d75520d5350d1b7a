"""What new rows touch: by source, exchange, symbol and second, on the driver.

Rows are many, the seconds that they lie in are few: a symbol has at most 86,400 a day, each of them 40 bytes here.

Invariant: says where rows belong, nothing of what they say.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .windows import SECOND_US

__all__ = ["PLACE", "TOUCHED", "WINDOWS", "Place", "Span", "Touched"]

PLACE = ("exchange", "symbol")
Place = tuple[str, str]
Instants = np.ndarray[tuple[int], np.dtype[np.int64]]

TOUCHED = pa.schema(
    {
        "source": pa.string(),
        "exchange": pa.string(),
        "symbol": pa.string(),
        "local_s": pa.int64(),
        "clock_s": pa.int64(),
        "first_us": pa.int64(),
    }
)
"""The second of either clock, and the first instant by the recorder's."""

WINDOWS = pa.schema({"exchange": pa.string(), "symbol": pa.string(), "start": pa.timestamp("us", "UTC")})


class Span(NamedTuple):
    """From the first row to the end of the last one's second."""

    first_us: int
    end_us: int

    def with_other(self, other: Span) -> Span:
        """From the earlier start to the later end."""
        return Span(min(self.first_us, other.first_us), max(self.end_us, other.end_us))


@dataclass(frozen=True)
class Touched:
    """The places of new rows, in the columns of `TOUCHED`."""

    table: pa.Table

    @cached_property
    def sources(self) -> frozenset[str]:
        """What the rows are of."""
        return frozenset(self.table["source"].unique().to_pylist())

    def with_seconds(self, source: str, seconds: pa.Table) -> Touched:
        """These, and seconds of another table: exchange, symbol, start."""
        start_us = seconds["start"].cast(pa.int64())
        second = pa.array(np.asarray(start_us) // SECOND_US)
        columns = [pa.array([source] * len(start_us)), seconds["exchange"], seconds["symbol"], second, second, start_us]
        return Touched(pa.concat_tables([self.table, pa.Table.from_arrays(columns, schema=TOUCHED)]))

    def spans(self, source: str) -> dict[Place, Span]:
        """For each place: from when and until when rows of a source are new."""
        own = self.table.filter(pc.equal(self.table["source"], source))
        found = own.group_by([*PLACE]).aggregate([("first_us", "min"), ("local_s", "max")]).to_pylist()
        return {
            (row["exchange"], row["symbol"]): Span(row["first_us_min"], (row["local_s_max"] + 1) * SECOND_US) for row in found
        }

    def windows(self, sources: Collection[str], *, clock: str, length_us: int, reach_us: int, by_symbol: bool) -> pa.Table:
        """The windows of a length that rows of some sources touch, in the columns of `WINDOWS`."""
        own = self.table.filter(pc.is_in(self.table["source"], pa.array(sorted(sources))))
        own = own.group_by([*PLACE, clock] if by_symbol else ["exchange", clock]).aggregate([])
        at_us = np.asarray(own[clock]) * SECOND_US
        last = _floor(at_us + reach_us + SECOND_US - 1, length_us)
        start = _floor(at_us - reach_us, length_us)
        symbols = own["symbol"] if by_symbol else pa.chunked_array([pa.nulls(own.num_rows, pa.string())])
        pieces = []
        while (is_in := start <= last).any():
            piece = pa.Table.from_arrays([own["exchange"], symbols, pa.array(start, WINDOWS.field("start").type)], schema=WINDOWS)
            pieces.append(piece.filter(pa.array(is_in)))
            start = start + length_us
        return distinct(pa.concat_tables(pieces)) if pieces else WINDOWS.empty_table()


def distinct(windows: pa.Table) -> pa.Table:
    """Each window once."""
    return windows.group_by(WINDOWS.names).aggregate([]).select(WINDOWS.names)


def _floor(instants: Instants, length_us: int) -> Instants:
    floored: Instants = instants - np.mod(instants, length_us)
    return floored
