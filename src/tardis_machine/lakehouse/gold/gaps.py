"""gold.gaps: where data is missing, or there was none to have.

By `kind`:

- disconnect: the recorder lost its connection; from then to the next event of the exchange (`end` null: none until the next hour is over)
- sequence: events of a session that did not come, `first_sequence` to `last_sequence` of a symbol and payload case, between the times of
  the events around them. Holes between events more than an hour apart, and at the end of a session, are found by `lake verify`
- silence: whole minutes without any event of the exchange, though the session had some before and after, less than an hour apart

A gap that late data fills is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.control_events import CONTROL_EVENTS
from ..tables import EVENTS, Table
from .product import GoldProduct, Scope
from .windows import HOUR_US, MINUTE_US, floor_to, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["GAPS", "gaps"]

GAPS = Table(
    "gold.gaps",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "kind": "STRING",
        "payload_case": "STRING",
        "bus": "STRING",
        "session": "STRING",
        "start": "TIMESTAMP",
        "end": "TIMESTAMP",
        "first_sequence": "BIGINT",
        "last_sequence": "BIGINT",
    },
    skip_by=("start",),
)


def gaps() -> GoldProduct:
    """The product."""
    return GoldProduct(
        name="gaps",
        table=GAPS,
        keys=("exchange", "symbol", "kind", "payload_case", "bus", "session", "start", "first_sequence"),
        reads=frozenset({"events", "control_events"}),
        interval_us=HOUR_US,
        compute=_compute,
        clock="local_s",
        reach_us=HOUR_US,
        by_symbol=False,
        may_vanish=True,
    )


def _compute(scope: Scope) -> DataFrame:
    events = scope.near(EVENTS, HOUR_US).select("exchange", "symbol", "payload_case", "bus", "session", "sequence", "local_ts")
    lost = scope.near(CONTROL_EVENTS.table, HOUR_US).where("kind = 'disconnect'")
    found = _holes(events).unionByName(_silences(events), allowMissingColumns=True)
    found = found.unionByName(_disconnects(lost, events), allowMissingColumns=True)
    return scope.in_windows(found, "start", ("exchange",)).selectExpr(
        "to_date(start) AS date",
        "exchange",
        "symbol",
        "kind",
        "payload_case",
        "bus",
        "session",
        "start",
        "end",
        "first_sequence",
        "last_sequence",
    )


def _holes(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    series = ("bus", "session", "exchange", "symbol", "payload_case")
    once = events.where("session IS NOT NULL").groupBy(*series, "sequence").agg(F.min("local_ts").alias("local_ts"))
    order = Window.partitionBy(*series).orderBy("sequence")
    around = once.withColumn("before", F.lag("sequence").over(order)).withColumn("start", F.lag("local_ts").over(order))
    return around.where(f"sequence - before > 1 AND unix_micros(local_ts) - unix_micros(start) <= {HOUR_US}").selectExpr(
        *series,
        "'sequence' AS kind",
        "start",
        "local_ts AS end",
        "before + 1 AS first_sequence",
        "sequence - 1 AS last_sequence",
    )


def _silences(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    minutes = events.where("session IS NOT NULL").selectExpr(
        "bus", "session", "exchange", f"{floor_to('local_ts', MINUTE_US)} AS minute"
    )
    following = F.lead("minute").over(Window.partitionBy("bus", "session", "exchange").orderBy("minute"))
    apart_us = "unix_micros(end) - unix_micros(minute)"
    silent = minutes.distinct().withColumn("end", following).where(f"{apart_us} > {MINUTE_US} AND {apart_us} <= {HOUR_US}")
    return silent.selectExpr(
        "bus", "session", "exchange", "'silence' AS kind", f"timestamp_micros(unix_micros(minute) + {MINUTE_US}) AS start", "end"
    )


def _disconnects(lost: DataFrame, events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    heard = events.where("payload_case NOT IN ('disconnect', 'error', 'session_end')").select("exchange", "local_ts")
    both = heard.withColumn("heard", F.col("local_ts")).unionByName(
        lost.select("exchange", "local_ts", "session").withColumn("is_lost", F.lit(1)), allowMissingColumns=True
    )
    # Of those received at the same moment as the disconnect, none came after it. Backwards, as a frame that ends with the last row is
    # computed anew for every row.
    backwards = Window.partitionBy("exchange").orderBy(F.unix_micros("local_ts").desc())
    after = backwards.rangeBetween(Window.unboundedPreceding, -1)
    ended = both.withColumn("end", F.min("heard").over(after)).where("is_lost = 1")
    # What comes later does not touch the window, and is only seen where some other window is computed with it.
    seen = f"end < {later(floor_to('local_ts', HOUR_US), 2 * HOUR_US)}"
    return ended.selectExpr(
        "exchange", "'disconnect' AS kind", "session", "local_ts AS start", f"CASE WHEN {seen} THEN end END AS end"
    )
