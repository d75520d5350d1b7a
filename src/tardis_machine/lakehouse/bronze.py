"""Any source to bronze.events: every record as it came, once, with the columns of its envelope.

Invariant: `value` is the bytes that the bus held. What can't be decoded goes to bronze.quarantine, and the stream goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .envelope import ENVELOPE_DDL, decode_envelopes
from .streams import BatchWriter, with_decoded
from .tables import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BronzeWriter"]


class BronzeWriter(BatchWriter):
    """Appends batches of records, in the columns that every source has."""

    def __init__(self, *args: Any, bus: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bus = bus

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Decodes the envelopes and appends."""
        from pyspark.sql import functions as F  # noqa: N812

        decoded = with_decoded(batch.withColumn("bus", F.lit(self.bus)), decode_envelopes, ENVELOPE_DDL)
        self.append_decoded(decoded.withColumn("date", F.to_date("local_ts")), EVENTS, batch_id)
