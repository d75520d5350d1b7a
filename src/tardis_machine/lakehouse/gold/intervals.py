"""What products over intervals of the user's choice have in common: their name, their keys, and the head of their rows.

Invariant: one table holds all intervals of a kind, and `interval` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..tables import Table
from .product import GoldProduct, Scope
from .windows import interval_us, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ORDER", "interval_product", "interval_table"]

_HEAD: Mapping[str, str] = {
    "date": "DATE",
    "exchange": "STRING",
    "symbol": "STRING",
    "interval": "STRING",
    "start": "TIMESTAMP",
    "end": "TIMESTAMP",
}
_KEYS = ("exchange", "symbol", "interval", "start")

ORDER = "struct(ts, local_ts, sequence, event_id)"
"""In which the rows of a window come, in SQL."""


def interval_table(kind: str, columns: Mapping[str, str]) -> Table:
    """The table of a kind of product."""
    return Table(f"gold.{kind}", {**_HEAD, **columns}, skip_by=("start",))


def interval_product(
    table: Table,
    interval: str,
    reads: frozenset[str],
    compute: Callable[[Scope], DataFrame],
    further_keys: tuple[str, ...] = (),
    **further: Any,
) -> GoldProduct:
    """The product at one interval; `compute` gives exchange, symbol, start and the table's own columns."""
    kind = table.name.removeprefix("gold.")
    own = [name for name in table.columns if name not in _HEAD]

    def complete(scope: Scope) -> DataFrame:
        return compute(scope).selectExpr(
            "to_date(start) AS date",
            "exchange",
            "symbol",
            f"'{interval}' AS interval",
            "start",
            f"{later('start', scope.interval_us)} AS end",
            *own,
        )

    return GoldProduct(
        name=f"{kind}_{interval}",
        table=table,
        keys=(*_KEYS, *further_keys),
        reads=reads,
        interval_us=interval_us(interval),
        only={"interval": interval},
        compute=complete,
        **further,
    )
