"""silver.control_events: errors, disconnects, and the ledgers with which sessions end."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from .columns import Column, Payload, SilverTable, boolean, enum, integer, text, timestamp

_INSTANT = pa.timestamp("us", "UTC")
_ENTRIES = pa.list_(
    pa.struct(
        {
            "exchange": pa.string(),
            "symbol": pa.string(),
            "payload_case": pa.string(),
            "count": pa.int64(),
            "first_sequence": pa.int64(),
            "last_sequence": pa.int64(),
            "first_local_ts": _INSTANT,
            "last_local_ts": _INSTANT,
            "digest": pa.binary(),
        }
    )
)
_ENTRIES_DDL = (
    "ARRAY<STRUCT<exchange: STRING, symbol: STRING, payload_case: STRING, count: BIGINT, first_sequence: BIGINT, "
    "last_sequence: BIGINT, first_local_ts: TIMESTAMP, last_local_ts: TIMESTAMP, digest: BINARY>>"
)


def _symbols(payload: Payload) -> pa.Array:
    symbols = payload.field("symbols")
    return pc.if_else(pc.fill_null(payload.field("symbols_given"), fill_value=False), symbols, pa.scalar(None, symbols.type))


CONTROL_EVENTS = SilverTable(
    "control_events",
    cases=("error", "disconnect", "session_end"),
    columns={
        "kind": Column("STRING", pa.string(), lambda payload: payload.case_names()),
        "details": text("details"),
        "subsequent_errors": integer("subsequent_errors"),
        "error_code": enum("ControlError.code"),
        "reason": text("reason"),
        "close_code": integer("close_code"),
        # Null: the disconnect concerns every symbol of its exchange.
        "symbols": Column("ARRAY<STRING>", pa.list_(pa.string()), _symbols),
        "ended_session": text("session_id"),
        "complete": boolean("complete"),
        "started_ts": timestamp("started_ts"),
        "ended_ts": timestamp("ended_ts"),
        "entries": Column(_ENTRIES_DDL, _ENTRIES, lambda payload: payload.field("entries")),
    },
)
