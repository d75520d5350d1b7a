"""gold.liquidations: forced trades over intervals and by side, `liquidations_1m`, `liquidations_1h` and any other.

Side buy: shorts were liquidated. `liquidations` is their number, `amount` the sum of their amounts as the exchange tells these, `notional`
what they are worth in `notional_currency` (`notional`; null where the lake does not know the instrument), `low` and `high` their extreme
prices.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..silver.liquidations import LIQUIDATIONS as FORCED_TRADES
from .intervals import interval_product, interval_table
from .notional import SOURCE, WORTH, reopened_by_instruments, total, with_notional
from .product import GoldProduct, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LIQUIDATIONS", "liquidations"]

LIQUIDATIONS = interval_table(
    "liquidations",
    {
        "side": "STRING",
        "liquidations": "BIGINT",
        **dict.fromkeys(("amount", "notional", "low", "high"), WORTH),
        "notional_currency": "STRING",
    },
)


def liquidations(interval: str) -> GoldProduct:
    """Liquidations of an interval."""
    return interval_product(
        LIQUIDATIONS,
        interval,
        frozenset({"liquidations", SOURCE}),
        _compute,
        ("side",),
        reopened=partial(reopened_by_instruments, table=LIQUIDATIONS, interval=interval),
        touched_by=frozenset({"liquidations"}),
    )


def _compute(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    forced = with_notional(scope, scope.rows(FORCED_TRADES.table))
    return forced.groupBy("exchange", "symbol", "start", "side").agg(
        F.count(F.lit(1)).alias("liquidations"),
        F.try_sum("amount").alias("amount"),
        F.expr(total("notional")).alias("notional"),
        F.max("notional_currency").alias("notional_currency"),
        F.min("price").alias("low"),
        F.max("price").alias("high"),
    )
