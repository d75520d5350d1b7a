"""Events to columns, without Spark: envelopes, the ten typed tables, and what is refused, row by row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.splitting import split_event
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as schema
from tardis_machine.lakehouse.decoding import PAYLOAD_CASES, REASON
from tardis_machine.lakehouse.envelope import ENVELOPE, decode_envelopes
from tardis_machine.lakehouse.silver import SILVER_TABLES
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.messages import UNSET, BookChange, BookLevel, Message, Trade, to_timestamp

LOCAL_US = 1_580_515_200_000_007
TABLES = {silver.name: silver for silver in SILVER_TABLES}


def event(**payload: Any) -> schema.NormalizedEvent:
    made = schema.NormalizedEvent(exchange="bitmex", symbol="XBTUSD", origin=2, event_id=b"i" * 16, sequence=3, **payload)
    made.local_ts.FromMicroseconds(LOCAL_US)
    made.meta["session_id"] = "s1"
    return made


def trade(price: str = "1.5", **fields: Any) -> schema.NormalizedEvent:
    return event(trade=schema.Trade(price_str=price, qty_str="2", side=schema.SIDE_BUY, **fields))


def values(*events: schema.NormalizedEvent | bytes | None) -> pa.Array:
    return pa.array([e.SerializeToString() if isinstance(e, schema.NormalizedEvent) else e for e in events], pa.binary())


def envelopes(*events: schema.NormalizedEvent | bytes | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_envelopes(values(*events)).to_pylist()
    return rows


def decode(table: str, *events: schema.NormalizedEvent) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = TABLES[table].decode(values(*events)).to_pylist()
    return rows


def test_an_envelope_has_what_every_event_has() -> None:
    (row,) = envelopes(trade())
    assert row.pop("local_ts").timestamp() == LOCAL_US / 1e6
    assert row == {
        "exchange": "bitmex",
        "symbol": "XBTUSD",
        "payload_case": "trade",
        "ingest_ts": None,
        "origin": "replay",
        "event_id": b"i" * 16,
        "session": "s1",
        "sequence": 3,
        REASON: None,
    }


@pytest.mark.parametrize("case", PAYLOAD_CASES)
def test_every_payload_case_is_told_and_belongs_to_one_table(case: str) -> None:
    made = event()
    getattr(made, case).SetInParent()
    assert envelopes(made)[0]["payload_case"] == case
    (silver,) = (silver for silver in SILVER_TABLES if case in silver.cases)
    (row,) = silver.decode(values(made)).to_pylist()
    assert row[REASON] is None


def test_one_bad_value_costs_its_own_row_only() -> None:
    rows = envelopes(trade(), b"\xff\xff", trade(), None, trade(), b"", trade())
    assert [row["exchange"] for row in rows] == ["bitmex", None, "bitmex", None, "bitmex", None, "bitmex"]
    assert [row[REASON] for row in rows] == [
        None,
        "failed to decode Protobuf message: unexpected EOF in varint",
        None,
        "the record has no value",
        None,
        "the payload is absent, or of a kind that this version does not know",
        None,
    ]


def test_a_batch_of_nothing_is_a_batch_of_nothing() -> None:
    assert len(decode_envelopes(values())) == 0


def test_what_no_table_could_hold_is_refused_with_its_reason() -> None:
    no_exchange, no_time, late, odd_origin, huge = trade(), trade(), trade(), trade(), trade()
    no_exchange.ClearField("exchange")
    no_time.ClearField("local_ts")
    late.local_ts.seconds = 1 << 60
    odd_origin.origin = 9  # type: ignore[assignment]
    huge.sequence = (1 << 64) - 1
    reasons = [row[REASON] for row in envelopes(no_exchange, no_time, late, odd_origin, huge)]
    assert reasons[:4] == [
        "exchange is absent",
        "local_ts is absent",
        "local_ts is not within the years 1 to 9999",
        "origin is 9, which this version does not know",
    ]
    assert "18446744073709551615" in reasons[4]


def test_a_ledger_may_concern_no_single_exchange() -> None:
    ledger = event(session_end=schema.SessionEnd(complete=True))
    ledger.ClearField("exchange")
    assert envelopes(ledger)[0][REASON] is None


def test_an_event_without_id_is_known_by_its_bytes() -> None:
    first, second = trade("1"), trade("2")
    for made in (first, second):
        made.ClearField("event_id")
    ids = [row["event_id"] for row in envelopes(first, second, first, trade())]
    assert ids[0] == ids[2] != ids[1]
    assert ids[3] == b"i" * 16
    assert {len(event_id) for event_id in ids} == {16}


def test_the_frame_of_a_schema_registry_is_seen_through() -> None:
    framed = b"\x00\x00\x00\x00\x2a\x00" + trade().SerializeToString()
    other_message = b"\x00\x00\x00\x00\x2a\x02\x04" + trade().SerializeToString()
    rows = envelopes(framed, other_message, trade())
    assert [row["exchange"] for row in rows] == ["bitmex", None, "bitmex"]
    assert rows[1][REASON] == "the schema registry frame is not of the file's first message"
    assert TABLES["trades"].decode(values(framed)).to_pylist()[0]["price"] == Decimal("1.5")


def test_fields_of_a_later_schema_do_no_harm() -> None:
    later = trade().SerializeToString() + b"\xf2\x3f\x03new"  # field 1022
    assert envelopes(later)[0][REASON] is None


def test_spark_is_told_the_columns_that_arrow_has() -> None:
    kinds = {"STRING": pa.string(), "TIMESTAMP": pa.timestamp("us", "UTC"), "BINARY": pa.binary(), "BIGINT": pa.int64()}
    assert {field.name: field.type for field in ENVELOPE} == {field.name: kinds[EVENTS.columns[field.name]] for field in ENVELOPE}
    for silver in SILVER_TABLES:
        assert [*silver.columns, REASON] == [field.name for field in silver.decode(values()).type]


@pytest.mark.parametrize(
    ("price", "reason"),
    [
        ("99999999999999999999.999999999999999999", None),
        ("-0.000000000000000001", None),
        ("100000000000000000000", "price: a number has more than 20 digits before the point"),
        ("-1000000000000000000000000000000", "price: a number has more than 20 digits before the point"),
        ("0.0000000000000000001", "price: Rescaling Decimal value would cause data loss"),
        ("nan", "price: The string 'nan' is not a valid decimal128 number"),
    ],
)
def test_a_price_fits_or_is_refused_never_rounded(price: str, reason: str | None) -> None:
    good, row = decode("trades", trade(), trade(price))
    assert good["price"] == Decimal("1.5")
    assert row[REASON] == reason
    assert row["price"] == (Decimal(price) if reason is None else None)


def test_absent_is_null_and_zero_is_zero() -> None:
    absent, zero = decode("trades", event(trade=schema.Trade()), trade("0"))
    assert {name for name, value in absent.items() if value is not None} == set()
    assert zero["price"] == 0


def test_computed_numbers_are_rounded_to_what_the_column_holds() -> None:
    bar = event(
        trade_bar=schema.TradeBar(kind=schema.BAR_KIND_TIME, interval=10, volume_str="0.0010000000000000002", open_str="7")
    )
    (row,) = decode("trade_bars", bar)
    assert (row["volume"], row["open"], row["interval"], row["kind"]) == (Decimal("0.001"), 7, 10, "time")


def test_rates_are_the_doubles_that_they_were() -> None:
    rate = 1.2345678901234567e-05
    ticker = event(derivative_ticker=schema.DerivativeTicker(funding_rate_str=f"{Decimal(repr(rate)):f}"))
    assert decode("derivative_tickers", ticker)[0]["funding_rate"] == rate


def test_whole_numbers_come_from_whichever_field_holds_them() -> None:
    level = schema.Level(price_str="1", qty_str="2")
    plain = event(book_snapshot=schema.BookSnapshot(name="a", depth=2, interval_ms=100, bids=[level, schema.Level()]))
    grouped = event(
        grouped_book_snapshot=schema.GroupedBookSnapshot(name="g", grouping_str="0.5", interval_str="5000000000", asks=[level])
    )
    first, second = decode("book_snapshots", plain, grouped)
    assert (first["interval_ms"], first["grouping"], first["depth"]) == (100, None, 2)
    assert first["bids"] == [{"price": 1, "amount": 2}, {"price": None, "amount": None}]
    assert first["asks"] == []
    assert (second["interval_ms"], second["grouping"]) == (5_000_000_000, Decimal("0.5"))
    assert second["asks"] == [{"price": 1, "amount": 2}]


def test_a_disconnect_tells_no_symbols_from_all_of_them() -> None:
    of_all = event(disconnect=schema.ControlDisconnect())
    of_none = event(disconnect=schema.ControlDisconnect(symbols_given=True))
    of_one = event(disconnect=schema.ControlDisconnect(symbols_given=True, symbols=["XBTUSD"], reason="gone"))
    failed = event(error=schema.ControlError(details="refused", code=schema.ERROR_CODE_WS_CONNECT, subsequent_errors=2))
    rows = decode("control_events", of_all, of_none, of_one, failed)
    assert [row["symbols"] for row in rows] == [None, [], ["XBTUSD"], None]
    assert [row["kind"] for row in rows] == ["disconnect", "disconnect", "disconnect", "error"]
    assert (rows[3]["details"], rows[3]["error_code"], rows[3]["subsequent_errors"]) == ("refused", "ws_connect", 2)
    assert rows[2]["reason"] == "gone"


LEVELS = st.lists(
    st.builds(BookLevel, price=st.integers(1, 10**6).map(lambda n: n / 4), amount=st.integers(0, 10**6).map(lambda n: n / 8)),
    max_size=5,
)


@given(st.lists(st.tuples(LEVELS, LEVELS, st.booleans()), min_size=1, max_size=5))
def test_book_changes_by_level_hold_the_levels_of_those_by_message(changes: list[tuple[list[Any], list[Any], bool]]) -> None:
    messages: list[Message] = [
        BookChange(
            symbol="S",
            exchange="bitmex",
            is_snapshot=is_snapshot,
            bids=bids,
            asks=asks,
            timestamp=to_timestamp(LOCAL_US + n),
            local_timestamp=to_timestamp(LOCAL_US + n),
        )
        for n, (bids, asks, is_snapshot) in enumerate(changes)
    ]
    whole, single = (
        TABLES["book_changes"].decode(pa.array([e.value for e in encoder.encode(messages)], pa.binary())).to_pylist()
        for encoder in (
            BronzeEncoder(session_id="s", origin="replay"),
            BronzeEncoder(session_id="s", origin="replay", book_changes="level"),
        )
    )
    for side in ("bids", "asks"):
        said = [(level["price"], level["amount"]) for row in whole for level in row[side]]
        assert said == [(level["price"], level["amount"]) for row in single for level in row[side]]
        assert said == [(level.price, level.amount) for message in messages for level in getattr(message, side)]
    assert all(row["level_count"] is None for row in whole)
    assert all(len(row["bids"]) + len(row["asks"]) == min(row["level_count"], 1) for row in single)


def test_a_book_that_came_in_parts_is_not_taken_for_several_books() -> None:
    change = BookChange(
        symbol="S",
        exchange="bitmex",
        is_snapshot=True,
        bids=[BookLevel(100 - n, 1) for n in range(12)],
        asks=[BookLevel(101 + n, 1) for n in range(12)],
        timestamp=to_timestamp(LOCAL_US),
        local_timestamp=to_timestamp(LOCAL_US),
    )
    [whole] = BronzeEncoder(session_id="s", origin="replay").encode([change])
    parts = split_event(whole, 400)
    assert parts is not None
    rows = TABLES["book_changes"].decode(pa.array([whole.value, *(part.value for part in parts)], pa.binary())).to_pylist()
    assert [rows[0][name] for name in ("part", "part_count", "whole_event_id")] == [None, None, None]
    assert [row["part"] for row in rows[1:]] == [*range(len(parts))]
    assert {(row["part_count"], row["whole_event_id"]) for row in rows[1:]} == {(len(parts), whole.event_id)}
    assert [row["is_snapshot"] for row in rows[1:]] == [True, *([False] * (len(parts) - 1))]
    assert [level for row in rows[1:] for level in row["bids"]] == rows[0]["bids"]


@given(st.lists(st.tuples(st.floats(1e-9, 1e12), st.integers(1, 10**9), st.booleans()), min_size=1, max_size=30))
def test_trades_come_out_as_they_went_in(given_trades: list[tuple[float, int, bool]]) -> None:
    messages: list[Message] = [
        Trade(
            symbol="S",
            exchange="bitmex",
            id=f"{n}" if has_id else UNSET,
            price=round(price, 8),
            amount=amount,
            side="buy",
            timestamp=to_timestamp(LOCAL_US + n),
            local_timestamp=to_timestamp(LOCAL_US + n),
        )
        for n, (price, amount, has_id) in enumerate(given_trades)
    ]
    events = BronzeEncoder(session_id="s", origin="replay").encode(messages)
    rows = TABLES["trades"].decode(pa.array([e.value for e in events], pa.binary())).to_pylist()
    for n, (row, message) in enumerate(zip(rows, messages, strict=True)):
        assert isinstance(message, Trade)
        assert row[REASON] is None
        assert float(row["price"]) == message.price
        assert (row["amount"], row["trade_id"]) == (message.amount, None if message.id is UNSET else message.id)
        assert round(row["event_ts"].timestamp() * 1e6) == LOCAL_US + n
