"""bronze.events to the silver tables: typed, and each event once, however many sessions, buses and reruns brought it.

Equal event ids have equal exchange and local time, as both go into the id. So it is enough to look for a batch's events among the
rows of the same dates, exchanges and time range, and a table that has years of data costs no more than one that has a day.
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
            .agg(F.min("local_ts").alias("first"), F.max("local_ts").alias("last"))
            .collect()
        )
        for silver in SILVER_TABLES:
            own = [span for span in spans if span["payload_case"] in silver.cases]
            if own:
                events = batch.where(F.col("payload_case").isin(*silver.cases))
                fresh = self._without_repeats(events, silver, own)
                self.append_decoded(
                    with_decoded(fresh, partial(decode_payloads, silver.name), silver.ddl), silver.table, batch_id
                )

    def _without_repeats(self, events: DataFrame, silver: SilverTable, spans: list[Row]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.window import Window

        # Which of several equal events stays is fixed, not left to the order in which tasks end.
        order = Window.partitionBy("event_id").orderBy("session", "sequence", "bus", "position")
        once = events.withColumn("_copy", F.row_number().over(order)).where("_copy = 1").drop("_copy")
        self.prepare(events.sparkSession, silver.table)
        known = self.lake.read(events.sparkSession, silver.table).where(
            F.col("date").isin(*{span["date"] for span in spans})
            & F.col("local_ts").between(min(span["first"] for span in spans), max(span["last"] for span in spans))
        )
        exchanges = {span["exchange"] for span in spans}
        if None not in exchanges:
            known = known.where(F.col("exchange").isin(*exchanges))
        return once.join(known.select("event_id"), "event_id", "left_anti")


def decode_payloads(table: str, values: pa.Array) -> pa.Array:
    """The columns of a silver table, named so that workers find it by themselves."""
    return next(silver for silver in SILVER_TABLES if silver.name == table).decode(values)
