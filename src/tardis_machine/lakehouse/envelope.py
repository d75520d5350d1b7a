"""The envelope of an event: what every event has, whatever its payload.

`to_envelopes` is the definition. Where `envelope_compiled.pyx` was compiled, batches in which every event is usual are read there, seven
times as fast.

Invariant: pure, values in, columns out. An event without exchange, time or a payload that is known is refused, as no table could
hold it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from .decoding import PAYLOAD_CASES, REASON, check_instants, decode_each, decode_fields, enum_names, name_enum

__all__ = ["ENVELOPE", "decode_envelopes"]

_INSTANT = pa.timestamp("us", "UTC")

ENVELOPE = pa.struct(
    {
        "exchange": pa.string(),
        "symbol": pa.string(),
        "payload_case": pa.string(),
        "local_ts": _INSTANT,
        "ingest_ts": _INSTANT,
        "origin": pa.string(),
        "event_id": pa.binary(),
        "session": pa.string(),
        "sequence": pa.int64(),
    }
)

_OF_NO_EXCHANGE = pa.array(["error", "session_end"])
"""Payload cases that may concern several exchanges, or none."""

_FIELDS = ("exchange", "symbol", "local_ts", "ingest_ts", "origin", "event_id", "sequence", "meta")


def decode_envelopes(values: pa.Array) -> pa.StructArray:
    """One row for each value, with the reason where it can't be decoded; texts are dictionaries, as they repeat."""
    columns = _read_usual(values)
    if columns is None:
        *found, reasons = decode_each(values, to_envelopes, ENVELOPE).flatten()
        # The same types either way: batches of both may end up in one file.
        columns = [*(column.dictionary_encode() if column.type == pa.string() else column for column in found), reasons]
    return pa.StructArray.from_arrays(columns, names=[*(field.name for field in ENVELOPE), REASON])


def _read_usual(values: pa.Array) -> list[pa.Array] | None:
    """The columns of values that are all usual events; None where they are left to `to_envelopes`."""
    if values.null_count or values.type != pa.binary():
        return None
    _, offsets, data = values.buffers()
    # There may be none where all values are empty.
    found = data and read_envelopes(offsets, data, values.offset, len(values))
    if not found:
        return None
    columns = [_to_column(field.type, column, len(values)) for field, column in zip(ENVELOPE, found, strict=True)]
    return [*columns, pa.nulls(len(values), pa.string())]


def read_envelopes(offsets: Any, data: Any, first: int, count: int) -> tuple[Any, ...] | None:
    """The columns of values of a binary array, of which these are the buffers; None, as only what is compiled gains by it."""
    return None


def _to_column(kind: pa.DataType, found: Any, count: int) -> pa.Array:
    if kind == pa.string():
        places = np.frombuffer(found[0], np.int32)
        is_null = places < 0
        indices = pa.array(places, mask=is_null if is_null.any() else None)
        return pa.DictionaryArray.from_arrays(indices, pa.array(found[1], kind), safe=False)
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, found)])


def to_envelopes(values: pa.Array) -> pa.StructArray:
    """One row for each value; raises ValueError when any of them is no event."""
    events = decode_fields(values, _FIELDS, PAYLOAD_CASES)
    cases = pa.nulls(len(values), pa.string())
    for case in PAYLOAD_CASES:
        payload = events.column(case)
        if payload.null_count < len(payload):
            cases = pc.if_else(pc.is_valid(payload), case, cases)
    exchange, ingest_ts = events.column("exchange"), events.column("ingest_ts")
    local_ts = pc.coalesce(events.column("local_ts"), ingest_ts)
    if cases.null_count:
        raise ValueError("the payload is absent, or of a kind that this version does not know")
    if local_ts.null_count:
        raise ValueError("local_ts is absent")
    if exchange.null_count and not pc.all(pc.or_(exchange.is_valid(), pc.is_in(cases, _OF_NO_EXCHANGE))).as_py():
        raise ValueError("exchange is absent")
    return pa.StructArray.from_arrays(
        [
            exchange,
            events.column("symbol"),
            cases,
            check_instants(local_ts, "local_ts"),
            check_instants(ingest_ts, "ingest_ts"),
            name_enum(events.column("origin"), enum_names("NormalizedEvent.origin"), "origin"),
            _event_ids(events.column("event_id"), values),
            _session_ids(events.column("meta")),
            events.column("sequence").cast(pa.int64()),
        ],
        fields=list(ENVELOPE),
    )


def _session_ids(meta: pa.MapArray) -> pa.Array:
    # Nearly always each event has one: then they stand one after the other, and nothing has to be looked up row by row.
    is_session = pc.equal(meta.keys, "session_id")
    before = np.concatenate([[0], np.cumsum(is_session.to_numpy(zero_copy_only=False))])
    if (np.diff(before[meta.offsets.to_numpy()]) == 1).all():
        return meta.items.filter(is_session)
    return pc.map_lookup(meta, "session_id", "first")


def _event_ids(event_ids: pa.Array, values: pa.Array) -> pa.Array:
    # Producers of the schema's first version give no id: then the bytes are the identity, and a record read twice is one event.
    if not event_ids.null_count:
        return event_ids
    pairs = zip(event_ids.to_pylist(), values.to_pylist(), strict=True)
    return pa.array([given or xxhash.xxh3_128_digest(value) for given, value in pairs], pa.binary())


# Where it was compiled, usual events are read there; all others are left to the functions above.
with suppress(ImportError):
    from .envelope_compiled import *  # noqa: F403
