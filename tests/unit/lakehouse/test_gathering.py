"""Gathered bundles are the rows that their events say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.lakehouse.gathering import Gathered
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.messages import Disconnect, Message, Trade, to_timestamp

START_US = 1_580_515_199_999_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def trade(symbol: str, n: int) -> Trade:
    at = to_timestamp(START_US + n * 700)
    return Trade(symbol, "bitmex", f"{n}", 9000 + n, n, "buy", at, at)


def test_rows_are_those_of_the_events_by_bundle_and_stream() -> None:
    encoder = BronzeEncoder(session_id="s|1", origin="replay", meta={"transport": "backfill"}, clock_us=lambda: 7)
    batches: list[list[Message]] = [
        [trade("A", 0), trade("B", 1), trade("A", 2)],
        [],
        [trade("B", 3), Disconnect("bitmex", to_timestamp(START_US + 2_800)), trade("B", 5), trade("A" * 5_000, 6)],
    ]
    bundles = [encoder.encode(batch) for batch in batches]
    gathered = Gathered()
    for bundle in bundles:
        gathered.add(bundle)
    rows = gathered.to_batch("backfill", 41, START_US)
    events = [
        event
        for bundle in bundles
        for stream, columns in zip(bundle.streams, bundle.columns, strict=True)
        for event in columns.events(stream)
    ]
    assert gathered.rows == rows.num_rows == len(events) == 7
    assert gathered.size_bytes == sum(len(event.value) for event in events)
    assert rows.schema.names == [*EVENTS.columns]
    now = EPOCH + timedelta(microseconds=START_US)
    assert rows.to_pylist() == [
        {
            "date": (at := EPOCH + timedelta(microseconds=event.local_ts_us)).date(),
            "exchange": "bitmex",
            "symbol": event.stream.symbol or None,
            "payload_case": event.stream.payload_case,
            "local_ts": at,
            "ingest_ts": now,
            "origin": "replay",
            "event_id": event.event_id,
            "session": "s|1",
            "sequence": event.sequence,
            "value": event.value,
            "key": f"bitmex|{event.stream.symbol}|{event.stream.payload_case}",
            "headers": None,
            "bus": "backfill",
            "destination": "s|1",
            "position": f"{place}",
            "broker_timestamp": now,
        }
        for place, event in enumerate(events, 41)
    ]
    assert {row["date"].day for row in rows.to_pylist()} == {31, 1}
