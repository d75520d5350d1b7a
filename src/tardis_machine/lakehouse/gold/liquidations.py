"""gold.liquidations: forced trades over intervals and by side, `liquidations_1m`, `liquidations_1h` and any other.

Side buy: shorts were liquidated. `liquidations` is their number, `amount` their sum, `notional` the sum of price times amount,
`low` and `high` their extreme prices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.liquidations import LIQUIDATIONS as FORCED_TRADES
from ..tables import Table
from .product import Product, Scope
from .windows import interval_us, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LIQUIDATIONS", "liquidations"]

LIQUIDATIONS = Table(
    "gold.liquidations",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "interval": "STRING",
        "start": "TIMESTAMP",
        "end": "TIMESTAMP",
        "side": "STRING",
        "liquidations": "BIGINT",
        **dict.fromkeys(("amount", "notional", "low", "high"), "DECIMAL(38, 18)"),
    },
    skip_by=("start",),
)


def liquidations(interval: str) -> Product:
    """Liquidations of an interval."""
    return Product(
        name=f"liquidations_{interval}",
        table=LIQUIDATIONS,
        keys=("exchange", "symbol", "interval", "start", "side"),
        reads=frozenset({"liquidations"}),
        interval_us=interval_us(interval),
        only={"interval": interval},
        compute=lambda scope: _compute(scope, interval),
    )


def _compute(scope: Scope, interval: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    forced = scope.rows(FORCED_TRADES.table)
    summed = forced.groupBy("exchange", "symbol", "start", "side").agg(
        F.count(F.lit(1)).alias("liquidations"),
        F.sum("amount").alias("amount"),
        F.expr("sum(try_cast(double(price) * double(amount) AS DECIMAL(38, 18)))").alias("notional"),
        F.min("price").alias("low"),
        F.max("price").alias("high"),
    )
    return summed.selectExpr(
        "to_date(start) AS date",
        "exchange",
        "symbol",
        f"'{interval}' AS interval",
        "start",
        f"{later('start', scope.interval_us)} AS end",
        "side",
        "liquidations",
        "amount",
        "notional",
        "low",
        "high",
    )
