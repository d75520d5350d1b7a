"""Bundles of events to rows of bronze, many at a time.

A bundle becomes bytes and numbers in a row as soon as it is there, while its events are in the processor's cache; they are
gone before the next ones are made. What is left to do for a batch of rows is to put those pieces together.

Invariant: rows have the order of their bundles, and in a bundle those of one stream are together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..bronze.bundle import Bundle
from ..bronze.event import EventStream
from .tables import EVENTS

__all__ = ["Gathered"]

_INSTANT = pa.timestamp("us", "UTC")
_ID_BYTES = 16


@dataclass
class Gathered:
    """What is to become one batch of rows; each list has an item for each stream of each bundle."""

    rows: int = 0
    size_bytes: int = 0
    """Of the values."""
    _streams: list[EventStream] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    _event_ids: list[bytes] = field(default_factory=list)
    _values: list[bytes] = field(default_factory=list)
    _sizes: list[np.ndarray] = field(default_factory=list)
    _sequences: list[np.ndarray] = field(default_factory=list)
    _local_ts_us: list[np.ndarray] = field(default_factory=list)

    def add(self, bundle: Bundle) -> None:
        """Takes events in."""
        self.rows += len(bundle)
        self._streams += bundle.streams
        for columns in bundle.columns:
            count = len(columns.values)
            self.size_bytes += columns.size_bytes
            self._counts.append(count)
            self._event_ids.append(b"".join(columns.event_ids))
            self._values.append(b"".join(columns.values))
            self._sizes.append(np.fromiter(map(len, columns.values), np.int32, count))
            self._sequences.append(np.fromiter(columns.sequences, np.int64, count))
            self._local_ts_us.append(np.fromiter(columns.local_ts_us, np.int64, count))

    def to_batch(self, bus: str, position: int, now_us: int) -> pa.RecordBatch:
        """The rows, numbered from `position` on in their session, which is what they came from."""
        # Events are many, streams are few: what a stream has is said once, here and in the file.
        of_stream = pa.array(np.repeat(np.arange(len(self._counts)), self._counts))
        by_stream = {
            "exchange": [stream.exchange or None for stream in self._streams],
            "symbol": [stream.symbol or None for stream in self._streams],
            "payload_case": [stream.payload_case for stream in self._streams],
            "origin": [stream.origin for stream in self._streams],
            "session": (sessions := [stream.session_id for stream in self._streams]),
            "destination": sessions,
            "bus": [bus] * len(self._streams),
            "key": [f"{stream.exchange}|{stream.symbol}|{stream.payload_case}" for stream in self._streams],
        }
        columns = {name: pa.array(values, pa.string()).dictionary_encode().take(of_stream) for name, values in by_stream.items()}
        now = pa.repeat(pa.scalar(now_us, _INSTANT), self.rows)
        local_ts_us = np.concatenate(self._local_ts_us)
        columns |= {
            # Arrow's own cast asks the calendar of a time zone for each.
            "date": pa.array(local_ts_us.view("datetime64[us]").astype("datetime64[D]")),
            "local_ts": pa.array(local_ts_us).cast(_INSTANT),
            "ingest_ts": now,
            "event_id": _binaries(self._event_ids, np.full(self.rows, _ID_BYTES, np.int32)),
            "sequence": pa.array(np.concatenate(self._sequences)),
            "value": _binaries(self._values, np.concatenate(self._sizes)),
            "headers": pa.nulls(self.rows, pa.map_(pa.string(), pa.string())),
            "position": pa.array(np.arange(position, position + self.rows)).cast(pa.string()),
            "broker_timestamp": now,
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in EVENTS.columns], names=[*EVENTS.columns])


def _binaries(parts: list[bytes], sizes: np.ndarray) -> pa.Array:
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))])
