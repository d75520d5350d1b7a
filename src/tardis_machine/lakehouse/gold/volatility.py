"""gold.volatility: how far the price moved within an interval, `volatility_1m`, `volatility_1h` and any other of a second or more.

The price of a second is that of its last trade. Between consecutive seconds of the interval that have one:

- returns: how many there are
- realized_variance: the sum of squared logarithmic returns
- realized_volatility: its square root
- annualized_volatility: the same for a year of 365 days
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.trades import TRADES
from .intervals import ORDER, interval_product, interval_table
from .product import GoldProduct, Scope
from .windows import SECOND_US, floor_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["VOLATILITY", "volatility"]

_YEAR_US = 365 * 86_400 * SECOND_US

VOLATILITY = interval_table(
    "volatility",
    {
        "returns": "BIGINT",
        "realized_variance": "DOUBLE",
        "realized_volatility": "DOUBLE",
        "annualized_volatility": "DOUBLE",
    },
)


def volatility(interval: str) -> GoldProduct:
    """Realized volatility of an interval."""
    return interval_product(VOLATILITY, interval, frozenset({"trades"}), _compute)


def _compute(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    trades = scope.rows(TRADES.table)
    seconds = (
        trades.where("price > 0")
        .withColumn("second", F.expr(floor_to("ts", SECOND_US)))
        .groupBy("exchange", "symbol", "start", "second")
        .agg(F.expr(f"double(max_by(price, {ORDER}))").alias("price"))
    )
    before = F.lag("price").over(Window.partitionBy("exchange", "symbol", "start").orderBy("second"))
    # As decimals squares add up to the same sum in any order.
    squares = seconds.withColumn("square", F.pow(F.log(F.col("price") / before), 2).cast("DECIMAL(38, 30)"))
    summed = squares.groupBy("exchange", "symbol", "start").agg(
        F.count("square").alias("returns"), F.expr("double(sum(square))").alias("variance")
    )
    return summed.selectExpr(
        "exchange",
        "symbol",
        "start",
        "returns",
        "variance AS realized_variance",
        "sqrt(variance) AS realized_volatility",
        f"sqrt(variance * {_YEAR_US / scope.interval_us!r}D) AS annualized_volatility",
    )
