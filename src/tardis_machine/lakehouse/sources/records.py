"""Records as every source brings them, and their columns.

Invariant: the columns are the same for all buses, in number, order and type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

__all__ = ["DDL", "ROW_BYTES", "SCHEMA", "Columns"]

SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "value": pa.binary(),
        "headers": pa.map_(pa.string(), pa.string()),
        "position": pa.string(),
        "broker_timestamp": pa.timestamp("us", "UTC"),
        "destination": pa.string(),
    }
)
DDL = "key STRING, value BINARY, headers MAP<STRING, STRING>, position STRING, broker_timestamp TIMESTAMP, destination STRING"

ROW_BYTES = 512
"""About what a record takes: sources count rows, and batches are bounded by bytes."""


@dataclass
class Columns:
    """Records, column by column."""

    keys: list[str | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Sequence[tuple[str, str]]] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    destinations: list[str] = field(default_factory=list)

    def add(
        self,
        key: str | None,
        value: bytes | None,
        headers: Sequence[tuple[str, str]],
        *,
        position: str,
        time_us: int,
        destination: str,
    ) -> None:
        """One more record."""
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)
        self.positions.append(position)
        self.times_us.append(time_us)
        self.destinations.append(destination)

    def to_batch(self) -> pa.RecordBatch:
        """As Spark takes them."""
        offsets = [0]
        for pairs in self.headers:
            offsets.append(offsets[-1] + len(pairs))
        names = [name for pairs in self.headers for name, _ in pairs]
        texts = [text for pairs in self.headers for _, text in pairs]
        columns = [
            pa.array(self.keys, pa.string()),
            pa.array(self.values, pa.binary()),
            pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(texts, pa.string())),
            pa.array(self.positions, pa.string()),
            pa.array(self.times_us, pa.timestamp("us", "UTC")),
            pa.array(self.destinations, pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
