"""gold.bars: trades summed up over intervals of time, `bars_1s`, `bars_1m`, `bars_5m`, `bars_1h`, `bars_1d` and any other.

A bar has the trades of one symbol whose instant lies in [start, end). In the order of their instants, then of their arrival:

- open, high, low, close: the first, highest, lowest and last price
- volume, buy_volume, sell_volume, trades: sums of amounts, all and by the taker's side, and the number of trades
- vwap: the sum of price times amount, divided by the volume
- twap: the mean of prices, each weighted with the time until the next trade, the last one until the end of the bar
- is_complete: trades of the exchange go on past the end of the bar (within a day), and the connection was not lost within it

An interval without a trade has no bar.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ..silver.control_events import CONTROL_EVENTS
from .intervals import interval_product, interval_table
from .product import GoldProduct, Scope
from .summing import summed_trades
from .touched import WINDOWS
from .windows import floor_to, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BARS", "bars"]

BARS = interval_table(
    "bars",
    {
        **dict.fromkeys(("open", "high", "low", "close", "volume", "buy_volume", "sell_volume"), "DECIMAL(38, 18)"),
        "trades": "BIGINT",
        "vwap": "DECIMAL(38, 18)",
        "twap": "DECIMAL(38, 18)",
        "is_complete": "BOOLEAN",
    },
)


def bars(interval: str) -> GoldProduct:
    """Bars of an interval."""
    sources = frozenset({"trades", "control_events"})
    compute, reopened = partial(_compute, interval=interval), partial(_reopened, interval=interval)
    return interval_product(BARS, interval, sources, compute, reopened=reopened)


def _compute(scope: Scope, interval: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    summed = summed_trades(scope).withColumn("end", F.expr(later("start", scope.interval_us)))
    both = summed.withColumn("is_new", F.lit(True)).unionByName(_latest(scope, interval), allowMissingColumns=True)
    # Bars lie on a grid: trades go on past the end of one when another starts there or later, on a date by which it is looked at again.
    day = F.unix_date(F.to_date("start"))
    near = Window.partitionBy("exchange").orderBy(day).rangeBetween(Window.currentRow, scope.reach_days())
    latest = F.max("start").over(near)
    known = both.withColumn("latest", latest).where("is_new").join(_cut(scope), ["exchange", "symbol", "start"], "left")
    return known.withColumn("is_complete", (F.col("latest") >= F.col("end")) & F.col("is_cut").isNull())


def _latest(scope: Scope, interval: str) -> DataFrame:
    """How far the trades of each exchange go on each date, as far as the bars already there tell."""
    from pyspark.sql import functions as F  # noqa: N812

    known = _own(scope, interval).where(F.col("date").isin(*scope.dates()))
    return known.groupBy("exchange", "date").agg(F.max("start").alias("start")).select("exchange", "start")


def _own(scope: Scope, interval: str) -> DataFrame:
    """The bars that are there already."""
    from pyspark.sql import functions as F  # noqa: N812

    return scope.lake.read(scope.spark, BARS).where(F.col("exchange").isin(*scope.exchanges) & (F.col("interval") == interval))


def _disconnects(scope: Scope) -> DataFrame:
    """Windows in which a connection was lost; symbols null: of every symbol of the exchange."""
    lost = scope.near(CONTROL_EVENTS.table).where("kind = 'disconnect'")
    return lost.selectExpr("exchange", f"{floor_to('local_ts', scope.interval_us)} AS start", "symbols")


def _cut(scope: Scope) -> DataFrame:
    return (
        scope.frame.join(_disconnects(scope), ["exchange", "start"])
        .where("symbols IS NULL OR array_contains(symbols, symbol)")
        .selectExpr("exchange", "symbol", "start", "true AS is_cut")
        .distinct()
    )


def _reopened(scope: Scope, interval: str) -> pa.Table:
    """Bars that were not complete when they were computed, and those in which a connection turns out to have been lost."""
    from pyspark.sql import functions as F  # noqa: N812

    own = _own(scope, interval).where(F.col("date").isin(*scope.dates())).select("exchange", "symbol", "start", "is_complete")
    again = own.where("NOT is_complete")
    if "control_events" in scope.touched.sources:
        again = again.unionByName(own.where("is_complete").join(_disconnects(scope), ["exchange", "start"], "left_semi"))
    return again.select(*WINDOWS.names).toArrow().cast(WINDOWS)
