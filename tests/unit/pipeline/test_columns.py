"""Messages as Arrow columns: the same types and values as the lake's silver tables have, and in the order of the messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.errors import OptionsError
from tardis_machine.lakehouse.decoding import REASON
from tardis_machine.lakehouse.silver import SILVER_TABLES
from tardis_machine.messages import UNSET, Message, Trade, from_json, to_json
from tardis_machine.pipeline.columns import COLUMNS, kind_of, kinds_of, schema_of, to_batch
from tests.strategies import MESSAGES_BY_TYPE, messages

MARKET = sorted(MESSAGES_BY_TYPE.keys() - {"error", "disconnect"})


def trade(**fields: Any) -> Trade:
    known = {"id": "t1", "price": 9000.5, "amount": 2, "side": "buy", "timestamp": "2020-02-01T00:00:00.250Z"}
    return Trade(
        **{"symbol": "XBTUSD", "exchange": "bitmex", **known, "local_timestamp": "2020-02-01T00:00:00.250001Z", **fields}
    )


@pytest.mark.parametrize("case", MARKET)
@settings(max_examples=30)
@given(data=st.data())
def test_exact_columns_are_those_of_silver(case: str, data: st.DataObject) -> None:
    message = data.draw(MESSAGES_BY_TYPE[case])
    (silver,) = (table for table in SILVER_TABLES if case in table.cases)
    (event,) = BronzeEncoder(session_id="s1", origin="replay").encode([message])
    (row,) = silver.decode(pa.array([event.value])).to_pylist()
    try:
        (found,) = to_batch([message], [kind_of(message)], exact=True).to_pylist()
    except ValueError:
        assert row[REASON] is not None
        return
    assert row[REASON] is None
    assert {name: found[name] for name in COLUMNS[kind_of(message)]} == {name: row[name] for name in COLUMNS[kind_of(message)]}


@pytest.mark.parametrize("case", MARKET)
def test_exact_columns_have_the_types_of_silver(case: str) -> None:
    (silver,) = (table for table in SILVER_TABLES if case in table.cases)
    kind = case.removeprefix("grouped_")
    assert {name: column.type(True) for name, column in COLUMNS[kind].items()} == {
        name: silver.columns[name].arrow for name in COLUMNS[kind]
    }
    # All that a message has; parts and levels are what becomes of it on a bus.
    of_buses = {"part", "part_count", "whole_event_id", "level", "level_count"}
    assert silver.columns.keys() - of_buses == COLUMNS[kind].keys()


@settings(max_examples=30)
@given(st.lists(messages(), max_size=10))
def test_doubles_hold_what_messages_say_in_their_order(drawn: list[Message]) -> None:
    try:
        batch = to_batch(drawn, list(COLUMNS))
    except ValueError as error:
        assert "years 1 to 9999" in str(error) or "int64" in str(error)  # noqa: PT017 - what else is refused is a defect
        return
    assert batch.schema == schema_of(COLUMNS)
    assert batch.column("type").to_pylist() == [kind_of(message) for message in drawn]
    assert batch.column("exchange").to_pylist() == [message.exchange for message in drawn]
    assert batch.column("local_ts").cast(pa.int64()).to_pylist() == [message.local_timestamp_us for message in drawn]
    said = [getattr(message, "price", None) for message in drawn]
    # An integer that is no double is the nearest one.
    assert batch.column("price").to_pylist() == [None if price is UNSET or price is None else float(price) for price in said]


def test_a_message_that_was_printed_and_read_again_gives_the_same_columns() -> None:
    message = trade(price=8.5e-6, id=12)
    assert to_batch([message], ["trade"]).equals(to_batch([from_json(to_json(message))], ["trade"]))


def test_columns_of_several_kinds_stand_side_by_side_and_others_are_passed_over() -> None:
    tick = from_json(
        b'{"type":"derivative_ticker","symbol":"XBTUSD","exchange":"bitmex","markPrice":1.5,'
        b'"timestamp":"2020-02-01T00:00:00.000Z","localTimestamp":"2020-02-01T00:00:00.000Z"}'
    )
    gone = from_json(b'{"type":"disconnect","exchange":"bitmex","localTimestamp":"2020-02-01T00:00:00.000Z"}')
    batch = to_batch([tick, gone, trade()], ["trade", "derivative_ticker"])
    assert batch.select(["type", "price", "mark_price"]).to_pylist() == [
        {"type": "derivative_ticker", "price": None, "mark_price": 1.5},
        {"type": "trade", "price": 9000.5, "mark_price": None},
    ]
    assert to_batch([], ["trade"]).schema == to_batch([gone], ["trade"]).schema == schema_of(["trade"])


def test_what_no_column_can_hold_is_named() -> None:
    with pytest.raises(ValueError, match="price of a trade does not fit its column"):
        to_batch([trade(price=1e30)], ["trade"], exact=True)
    assert to_batch([trade(price=1e30)], ["trade"]).column("price").to_pylist() == [1e30]


def test_kinds_follow_from_data_types() -> None:
    assert kinds_of(["quote_10s", "trade_bar_1m", "book_snapshot_5_1s"]) == ["book_snapshot", "quote", "trade_bar"]
    assert kinds_of(["trade"], with_disconnects=True, with_errors=True) == ["trade", "error", "disconnect"]
    with pytest.raises(OptionsError):
        kinds_of(["trades"])
