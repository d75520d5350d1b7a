"""The as-of join: for an instant, the top of the book that was last received before it.

Invariant: a top that is more than a minute old tells nothing; then there is none. So an answer depends on the minute before it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .windows import MINUTE_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MAX_AGE_US", "quotes_at"]

MAX_AGE_US = MINUTE_US
_COLUMNS = "local_ts, bid_price, bid_amount, ask_price, ask_amount, mid"


def quotes_at(asked: DataFrame, tops: DataFrame) -> DataFrame:
    """Rows with exchange, symbol and `at`, and as `quote` the top before `at` (null: none)."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    both = tops.selectExpr("exchange", "symbol", "local_ts AS at", f"struct({_COLUMNS}) AS quote", "1 AS is_quote").unionByName(
        asked.withColumn("is_quote", F.lit(0))
        .withColumn("row", F.struct(*asked.columns))
        .select("exchange", "symbol", "at", "is_quote", "row"),
        allowMissingColumns=True,
    )
    # At equal instants what is asked comes first, and so does not see that top.
    before = Window.partitionBy("exchange", "symbol").orderBy("at", "is_quote").rowsBetween(Window.unboundedPreceding, 0)
    joined = both.withColumn("quote", F.last("quote", ignorenulls=True).over(before)).where("is_quote = 0")
    fresh = F.expr(f"CASE WHEN unix_micros(at) - unix_micros(quote.local_ts) <= {MAX_AGE_US} THEN quote END")
    return joined.withColumn("quote", fresh).select("row.*", "quote")
