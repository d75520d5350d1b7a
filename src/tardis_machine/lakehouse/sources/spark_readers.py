"""A bus that a `PartitionReader` reads, as Spark's Python data sources have it: as a stream, or all that there is now.

Invariant: a reader is pickled and sent to executors with its options; connections belong to the process that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from .options import SourceOptions
from .partitions import ALL, OffsetRange, PartitionOffset, PartitionReader, from_json, reader_for, to_json, within

__all__ = ["BusReader", "BusStreamReader", "ToRows"]

ToRows = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What becomes of batches of records before Spark has them."""


def _as_they_are(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return records


class BusReader(DataSourceReader):
    """All records that a bus has when a query is planned."""

    def __init__(self, kind: type[PartitionReader[Any]], options: SourceOptions, to_rows: ToRows = _as_they_are) -> None:
        self._kind, self._options, self._to_rows = kind, options, to_rows

    def partitions(self) -> Sequence[InputPartition]:
        """What may be read side by side."""
        reader = reader_for(self._kind, self._options)
        return [InputPartition(tuple(part)) for part in reader.ranges({}, reader.newest({}))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        # Where none was planned, Spark makes one of its own.
        if partition.value is None:
            return iter(())
        return self._to_rows(reader_for(self._kind, self._options).read(OffsetRange(*partition.value)))


class BusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The records of a bus from the oldest one on."""

    def __init__(
        self, kind: type[PartitionReader[Any]], options: SourceOptions, max_rows: int, to_rows: ToRows = _as_they_are
    ) -> None:
        self._kind, self._options, self._max_rows, self._to_rows = kind, options, max_rows, to_rows
        # Of a job that is to end, where it ends; empty: that is not known yet.
        self._target: dict[str, PartitionOffset] | None = None
        self._planned: dict[str, PartitionOffset] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a partition begins stands in its first offset, so that a batch that is planned anew begins where it did."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Of a batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The stream is to end where the bus ends when its first batch is planned."""
        self._target = {}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        offsets = from_json(start)
        reader = reader_for(self._kind, self._options)
        if self._target == {}:
            self._target = reader.newest(offsets)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else ALL
        self._planned = within(reader.advance(offsets, rows), self._target, self._kind.order)
        return to_json(self._planned)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the bus ends, for whoever watches the stream."""
        if self._target is not None:
            return to_json(self._target)
        return to_json(reader_for(self._kind, self._options).newest(self._planned)) if self._kind.tells_its_end else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What a batch is read from."""
        ranges = reader_for(self._kind, self._options).ranges(from_json(start), from_json(end))
        return [InputPartition(tuple(part)) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        return self._to_rows(reader_for(self._kind, self._options).read(OffsetRange(*partition.value)))
