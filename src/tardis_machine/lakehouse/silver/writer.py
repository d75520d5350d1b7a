"""bronze.events to the silver tables: typed, and each event once, however many sessions, buses and reruns brought it.

Equal event ids have equal exchange, payload case and local time, as all go into the id. So it is enough to look for a batch's events
among the rows of the same dates, exchanges and time range, and a table that has years of data costs no more than one that has a day.

Whole rows are compared only where ids alone have shown that a part of them is repeated: mostly none is, or all are, and then rows
need neither be sorted nor sent between tasks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..streams import BatchWriter, with_decoded
from . import SILVER_TABLES, SilverTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

__all__ = ["SilverWriter"]


class SilverWriter(BatchWriter):
    """Appends batches of bronze events to the tables of their payload cases."""

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Appends to each table what it has not yet."""
        from pyspark.sql import functions as F  # noqa: N812

        spans = (
            batch.groupBy("payload_case", "date", "exchange")
            .agg(
                F.min("local_ts").alias("first"),
                F.max("local_ts").alias("last"),
                F.count(F.lit(1)).alias("rows"),
                F.count_distinct("event_id").alias("events"),
            )
            .collect()
        )
        for silver in SILVER_TABLES:
            own = [span for span in spans if span["payload_case"] in silver.cases]
            if own:
                events = batch.where(F.col("payload_case").isin(*silver.cases))
                fresh = self._without_repeats(events, silver, own)
                if fresh is not None:
                    decoded = with_decoded(fresh, partial(decode_payloads, silver.name), silver.ddl)
                    self.append_decoded(decoded, silver.table, batch_id)

    def _without_repeats(self, events: DataFrame, silver: SilverTable, spans: list[Row]) -> DataFrame | None:
        """The events that are new, each once; None where there are none."""
        distinct = sum(span["events"] for span in spans)
        once = events if distinct == sum(span["rows"] for span in spans) else _first_copies(events)
        self.prepare(events.sparkSession, silver.table)
        known = self._known_ids(events, silver, spans)
        if known.isEmpty():
            return once
        repeated = known.join(events.select("event_id"), "event_id", "left_semi").count()
        if repeated == distinct:
            return None
        return once.join(known, "event_id", "left_anti") if repeated else once

    def _known_ids(self, events: DataFrame, silver: SilverTable, spans: list[Row]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        rows = self.lake.read(events.sparkSession, silver.table).where(
            F.col("date").isin(*{span["date"] for span in spans})
            & F.col("local_ts").between(min(span["first"] for span in spans), max(span["last"] for span in spans))
        )
        exchanges = {span["exchange"] for span in spans}
        if None not in exchanges:
            rows = rows.where(F.col("exchange").isin(*exchanges))
        return rows.select("event_id")


def _first_copies(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    # Which of several equal events stays is fixed, not left to the order in which tasks end.
    order = Window.partitionBy("event_id").orderBy("session", "sequence", "bus", "position")
    return events.withColumn("_copy", F.row_number().over(order)).where("_copy = 1").drop("_copy")


def decode_payloads(table: str, values: pa.Array) -> pa.Array:
    """The columns of a silver table, named so that workers find it by themselves."""
    return next(silver for silver in SILVER_TABLES if silver.name == table).decode(values)
