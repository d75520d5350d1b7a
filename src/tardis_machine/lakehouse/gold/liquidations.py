"""gold.liquidations: forced trades over intervals and by side, `liquidations_1m`, `liquidations_1h` and any other.

Side buy: shorts were liquidated. `liquidations` is their number, `amount` their sum, `notional` the sum of price times amount,
`low` and `high` their extreme prices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.liquidations import LIQUIDATIONS as FORCED_TRADES
from .intervals import interval_product, interval_table
from .product import GoldProduct, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LIQUIDATIONS", "liquidations"]

LIQUIDATIONS = interval_table(
    "liquidations",
    {
        "side": "STRING",
        "liquidations": "BIGINT",
        **dict.fromkeys(("amount", "notional", "low", "high"), "DECIMAL(38, 18)"),
    },
)


def liquidations(interval: str) -> GoldProduct:
    """Liquidations of an interval."""
    return interval_product(LIQUIDATIONS, interval, frozenset({"liquidations"}), _compute, ("side",))


def _compute(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    forced = scope.rows(FORCED_TRADES.table)
    return forced.groupBy("exchange", "symbol", "start", "side").agg(
        F.count(F.lit(1)).alias("liquidations"),
        F.sum("amount").alias("amount"),
        F.expr("sum(try_cast(double(price) * double(amount) AS DECIMAL(38, 18)))").alias("notional"),
        F.min("price").alias("low"),
        F.max("price").alias("high"),
    )
