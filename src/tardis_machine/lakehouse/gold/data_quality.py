"""gold.data_quality: how good the data of each hour is, by exchange, symbol and silver table; hours by the recorder's clock.

- events: rows in silver
- records: records in bronze, repeats too
- quarantined: records of the hour that did not fit the table; what could not even be decoded has no exchange and is in bronze.quarantine
- out_of_order: rows whose event_ts is before that of the row received before them
- mean_lateness_ms, max_lateness_ms: from event_ts to local_ts
- crossed_levels: levels that were removed from crossed books, for book_changes
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from ..silver import SILVER_TABLES
from ..tables import EVENTS, QUARANTINE, Table
from .product import GoldProduct, Scope
from .top_of_book import TOP_OF_BOOK
from .windows import HOUR_US, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DATA_QUALITY", "data_quality"]

KINDS = ("trades", "book_changes", "derivative_tickers", "liquidations")
_KEYS = ("exchange", "symbol", "kind", "start")

DATA_QUALITY = Table(
    "gold.data_quality",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "kind": "STRING",
        "start": "TIMESTAMP",
        "end": "TIMESTAMP",
        "events": "BIGINT",
        "records": "BIGINT",
        "quarantined": "BIGINT",
        "out_of_order": "BIGINT",
        "mean_lateness_ms": "DOUBLE",
        "max_lateness_ms": "DOUBLE",
        "crossed_levels": "BIGINT",
    },
    skip_by=("start",),
)


def data_quality() -> GoldProduct:
    """The product."""
    return GoldProduct(
        name="data_quality",
        table=DATA_QUALITY,
        keys=_KEYS,
        reads=frozenset({*KINDS, "events", "top_of_book"}),
        interval_us=HOUR_US,
        compute=_compute,
        clock="local_s",
    )


def _compute(scope: Scope) -> DataFrame:
    known = reduce(lambda one, other: one.unionByName(other), [_rows(scope, kind) for kind in KINDS])
    known = known.join(_records(scope), [*_KEYS], "full_outer").join(_crossed(scope), [*_KEYS], "left")
    return known.selectExpr(
        "to_date(start) AS date",
        *_KEYS,
        f"{later('start', HOUR_US)} AS end",
        "coalesce(events, 0L) AS events",
        "coalesce(records, 0L) AS records",
        "coalesce(quarantined, 0L) AS quarantined",
        "coalesce(out_of_order, 0L) AS out_of_order",
        "mean_lateness_ms",
        "max_lateness_ms",
        "crossed_levels",
    )


def _rows(scope: Scope, kind: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    table = next(silver.table for silver in SILVER_TABLES if silver.name == kind)
    rows = scope.rows(table, clock="local_ts")
    before = F.lag("event_ts").over(Window.partitionBy("exchange", "symbol", "start").orderBy("local_ts", "sequence"))
    late_us = F.unix_micros("local_ts") - F.unix_micros("event_ts")
    return (
        rows.withColumn("is_behind", F.when(F.col("event_ts") < before, 1))
        .withColumn("late_us", late_us)
        .groupBy("exchange", "symbol", F.lit(kind).alias("kind"), "start")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.count("is_behind").alias("out_of_order"),
            (F.avg("late_us") / 1000).alias("mean_lateness_ms"),
            (F.max("late_us") / 1000).alias("max_lateness_ms"),
        )
    )


def _records(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    names = {case: silver.name for silver in SILVER_TABLES if silver.name in KINDS for case in silver.cases}
    kind = F.create_map(*(F.lit(text) for pair in names.items() for text in pair))[F.col("payload_case")]
    own = scope.rows(EVENTS, clock="local_ts").withColumn("kind", kind).where("kind IS NOT NULL")
    refused = scope.lake.read(scope.spark, QUARANTINE).select("bus", "destination", "position", "stage").distinct()
    marked = own.join(
        refused.withColumn("kind", F.expr("replace(stage, 'silver.')")), ["bus", "destination", "position", "kind"], "left"
    )
    return marked.groupBy(*_KEYS).agg(F.count(F.lit(1)).alias("records"), F.count("stage").alias("quarantined"))


def _crossed(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    tops = scope.rows(TOP_OF_BOOK, clock="local_ts")
    named = tops.groupBy("exchange", "symbol", F.lit("book_changes").alias("kind"), "start")
    return named.agg(F.sum("crossed_levels").alias("crossed_levels"))
