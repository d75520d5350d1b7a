"""Any source to bronze.events: every record as it came, once, with the columns of its envelope.

Invariant: `value` is the bytes that the bus held. What can't be decoded goes to bronze.quarantine, and the stream goes on; so does,
as a row without a value, the news that records were gone before they could be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..telemetry import get_logger
from .envelope import decode_envelopes
from .lake import Lake
from .sources import FindLost, SourceStream, ToRecords
from .streams import BatchWriter, planned_offsets, split_refused
from .tables import EVENTS, QUARANTINE, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LOST", "BronzeWriter", "to_events"]

LOST = "source"
"""The stage of a quarantine row that tells of records which were never seen."""

_log = get_logger("lakehouse.bronze")


class BronzeWriter(BatchWriter):
    """Appends batches of records, in the columns that every source has."""

    def __init__(
        self, lake: Lake, stream: str, *, bus: str, source: SourceStream, identity: str | None, may_repeat: bool
    ) -> None:
        super().__init__(lake, stream, identity=identity, may_repeat=may_repeat)
        self.bus = bus
        self._to_records = source.to_records
        self._find_lost = source.find_lost

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Decodes the envelopes and appends."""
        rows = self.append_batch(batch, partial(to_events, self.bus, self._to_records), [EVENTS], batch_id)
        if self._find_lost is not None:
            self._report_loss(batch, batch_id, rows, self._find_lost)

    def _report_loss(self, batch: DataFrame, batch_id: int, rows: int, find_lost: FindLost) -> None:
        start, end = planned_offsets(self.lake, self.stream, batch_id)
        lost = find_lost(start, end, rows)
        if lost == 0:
            return
        how_many = f"{lost} records" if lost is not None and lost > 0 else "records, nobody knows how many,"
        between = f"between {json.dumps(start)} and {json.dumps(end)}"
        reason = f"{how_many} were gone before they could be read"
        _log.warning(reason, bus=self.bus, between=between)
        row = {"stage": LOST, "reason": reason, "bus": self.bus, "position": between}
        rows_of_loss = batch.sparkSession.createDataFrame([tuple(row.get(name) for name in QUARANTINE.columns)], QUARANTINE.ddl)
        self.prepare(QUARANTINE)
        self.appender.append_rows(rows_of_loss, QUARANTINE, self.step(f"{EVENTS.name}/{LOST}", batch_id))
        self.counts.add(QUARANTINE.name, 1)
        self.counts.lost += max(lost or 1, 1)


def to_events(bus: str, to_records: ToRecords, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """What a source brings, as rows of bronze.events or of the quarantine."""
    for records in to_records(batches):
        envelopes = decode_envelopes(records.column("value"))
        columns = {name: records.column(name) for name in records.schema.names}
        columns |= {column.name: pc.struct_field(envelopes, place) for place, column in enumerate(envelopes.type)}
        columns |= {"bus": pa.repeat(bus, len(records)), "date": columns["local_ts"].cast(pa.date32())}
        yield from split_refused(EVENTS, columns)
