"""gold.order_flow: who pressed the price over an interval, `order_flow_1s`, `order_flow_1m` and any other; by the recorder's clock.

- order_flow: the sum of `order_flow` of gold.top_of_book, that is, the order flow imbalance of the best level
- updates: how often the top changed
- buy_volume, sell_volume: amounts of trades by the taker's side
- trade_imbalance: (buy_volume - sell_volume) / (buy_volume + sell_volume), from -1 to 1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.trades import TRADES
from ..tables import Table
from .product import Product, Scope
from .top_of_book import TOP_OF_BOOK
from .windows import interval_us, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ORDER_FLOW", "order_flow"]

_WINDOW = ("exchange", "symbol", "start")

ORDER_FLOW = Table(
    "gold.order_flow",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "interval": "STRING",
        "start": "TIMESTAMP",
        "end": "TIMESTAMP",
        "order_flow": "DECIMAL(38, 18)",
        "updates": "BIGINT",
        "buy_volume": "DECIMAL(38, 18)",
        "sell_volume": "DECIMAL(38, 18)",
        "trade_imbalance": "DOUBLE",
    },
    skip_by=("start",),
)


def order_flow(interval: str) -> Product:
    """Order flow of an interval."""
    return Product(
        name=f"order_flow_{interval}",
        table=ORDER_FLOW,
        keys=("exchange", "symbol", "interval", "start"),
        reads=frozenset({"trades", "top_of_book"}),
        interval_us=interval_us(interval),
        only={"interval": interval},
        compute=lambda scope: _compute(scope, interval),
        clock="local_s",
        may_vanish=True,
    )


def _compute(scope: Scope, interval: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    tops = scope.rows(TOP_OF_BOOK, clock="local_ts").select(*_WINDOW, "order_flow", F.lit(1).alias("change"))
    trades = scope.rows(TRADES.table, clock="local_ts").select(*_WINDOW, "side", "amount")
    both = tops.unionByName(trades, allowMissingColumns=True)
    grouped = both.groupBy(*_WINDOW).agg(
        F.expr("coalesce(sum(order_flow), 0)").alias("order_flow"),
        F.count("change").alias("updates"),
        F.expr("coalesce(sum(amount) FILTER (WHERE side = 'buy'), 0)").alias("buy_volume"),
        F.expr("coalesce(sum(amount) FILTER (WHERE side = 'sell'), 0)").alias("sell_volume"),
    )
    return grouped.selectExpr(
        "to_date(start) AS date",
        "exchange",
        "symbol",
        f"'{interval}' AS interval",
        "start",
        f"{later('start', scope.interval_us)} AS end",
        "order_flow",
        "updates",
        "buy_volume",
        "sell_volume",
        "try_divide(double(buy_volume - sell_volume), double(buy_volume + sell_volume)) AS trade_imbalance",
    )
