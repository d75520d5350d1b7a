"""gold.order_flow: who pressed the price over an interval, `order_flow_1s`, `order_flow_1m` and any other; by the recorder's clock.

- order_flow: the sum of `order_flow` of gold.top_of_book, that is, the order flow imbalance of the best level
- updates: how often the top changed
- buy_volume, sell_volume: amounts of trades by the taker's side
- trade_imbalance: (buy_volume - sell_volume) / (buy_volume + sell_volume), from -1 to 1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.trades import TRADES
from .intervals import interval_product, interval_table
from .product import GoldProduct, Scope
from .top_of_book import TOP_OF_BOOK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ORDER_FLOW", "order_flow"]

_WINDOW = ("exchange", "symbol", "start")

ORDER_FLOW = interval_table(
    "order_flow",
    {
        "order_flow": "DECIMAL(38, 18)",
        "updates": "BIGINT",
        "buy_volume": "DECIMAL(38, 18)",
        "sell_volume": "DECIMAL(38, 18)",
        "trade_imbalance": "DOUBLE",
    },
)


def order_flow(interval: str) -> GoldProduct:
    """Order flow of an interval."""
    sources = frozenset({"trades", "top_of_book"})
    return interval_product(ORDER_FLOW, interval, sources, _compute, clock="local_s", may_vanish=True)


def _compute(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    tops = scope.rows(TOP_OF_BOOK, clock="local_ts").select(*_WINDOW, "order_flow", F.lit(1).alias("change"))
    trades = scope.rows(TRADES.table, clock="local_ts").select(*_WINDOW, "side", "amount")
    both = tops.unionByName(trades, allowMissingColumns=True)
    grouped = both.groupBy(*_WINDOW).agg(
        F.expr(_sum("order_flow")).alias("order_flow"),
        F.count("change").alias("updates"),
        F.expr(_sum("amount", "side = 'buy'")).alias("buy_volume"),
        F.expr(_sum("amount", "side = 'sell'")).alias("sell_volume"),
    )
    imbalance = F.expr("try_divide(double(buy_volume - sell_volume), double(buy_volume + sell_volume))")
    return grouped.withColumn("trade_imbalance", imbalance)


def _sum(column: str, only: str = "true") -> str:
    """0 of nothing, and null where it is wider than a number of the lake."""
    return f"CASE WHEN count({column}) FILTER (WHERE {only}) = 0 THEN 0 ELSE try_sum({column}) FILTER (WHERE {only}) END"
