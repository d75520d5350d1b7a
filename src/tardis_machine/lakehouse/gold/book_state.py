"""gold.book_state: the best levels of the rebuilt book at the end of intervals, `book_state_10_1s`, of any depth and interval.

A row has the book after the last change received in [start, end), whose time is `local_ts`; an interval without a change has no row, as
the one before still holds. `bids` and `asks` have at most `depth` levels, best first. No row while there is no book: before the first
snapshot, and from a lost connection to the next snapshot.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...errors import OptionsError
from ..tables import Table
from .rebuilding import Sampling
from .windows import interval_us, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BOOK_STATE", "book_state", "parse_book_state"]

_LEVELS = "ARRAY<STRUCT<price: DECIMAL(38, 18), amount: DECIMAL(38, 18)>>"

BOOK_STATE = Table(
    "gold.book_state",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "depth": "INT",
        "interval": "STRING",
        "start": "TIMESTAMP",
        "end": "TIMESTAMP",
        "local_ts": "TIMESTAMP",
        "bids": _LEVELS,
        "asks": _LEVELS,
    },
    skip_by=("start",),
)


def parse_book_state(name: str) -> Sampling:
    """What `book_state_10_1s` asks for."""
    found = re.fullmatch(r"book_state_([1-9]\d{0,4})_(\w+)", name)
    if found is None:
        raise OptionsError(
            f"the gold product {name!r} lacks a depth or an interval; --gold takes names such as book_state_10_1s", "gold"
        )
    return Sampling(name, int(found[1]), interval_us(found[2]), found[2])


def book_state(rebuilt: DataFrame, sampling: Sampling) -> DataFrame:
    """Of what was rebuilt, the books of one depth and interval."""
    return rebuilt.where(f"product = '{sampling.product}'").selectExpr(
        "to_date(start) AS date",
        "exchange",
        "symbol",
        f"{sampling.depth} AS depth",
        f"'{sampling.interval}' AS interval",
        "start",
        f"{later('start', sampling.interval_us)} AS end",
        "local_ts",
        "bids",
        "asks",
    )
