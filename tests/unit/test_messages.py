"""Messages print as the reference prints them."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.messages import (
    UNSET,
    BookChange,
    BookLevel,
    DerivativeTicker,
    Disconnect,
    Trade,
    from_json,
    is_calendar_second,
    js_number,
    parse_timestamp_us,
    to_json,
    to_json_lines,
    to_timestamp,
)

AT = "2020-01-01T00:00:01.002003Z"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2000.0, "2000"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e-5, "0.00001"),
        (8.5e-6, "0.0000085"),
        (-8.5e-6, "-0.0000085"),
        (1e-6, "0.000001"),
        (9.5e-7, "9.5e-7"),
        (1e-7, "1e-7"),
        (2.0**53, "9007199254740992"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e21, "1e+21"),
        (-1.5e300, "-1.5e+300"),
        (float("nan"), "null"),
        (float("inf"), "null"),
    ],
)
def test_numbers_print_as_javascript_prints_them(number: float, text: str) -> None:
    assert to_json(js_number(number)).decode() == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_as_the_same_double(number: float) -> None:
    text = to_json(js_number(number)).decode()
    assert float(text) == number
    digits = text.lstrip("-").partition("e")[0]
    assert ("e" in text) == (number != 0 and not 1e-6 <= abs(number) < 1e21)
    assert not digits.endswith(".0")


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))  # noqa: DTZ001 - made aware below
def test_timestamps_read_back_as_the_same_instant(moment: datetime) -> None:
    instant_us = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    text = to_timestamp(instant_us)
    assert text == moment.isoformat(timespec="microseconds") + "Z"
    assert parse_timestamp_us(text) == instant_us
    assert parse_timestamp_us(to_timestamp(instant_us, milliseconds=True)) == instant_us // 1000 * 1000


@given(st.integers(-8_640_000_000_000_000, 8_640_000_000_000_000))
def test_every_javascript_date_reads_back(instant_ms: int) -> None:
    assert parse_timestamp_us(to_timestamp(instant_ms * 1000, milliseconds=True)) == instant_ms * 1000


def test_a_message_prints_its_fields_in_order_and_leaves_out_what_is_absent() -> None:
    trade = Trade("XBTUSD", "bitmex", UNSET, 8544.5, 1000, "sell", "2020-01-01T00:00:01.000Z", AT)
    assert to_json(trade) == (
        b'{"type":"trade","symbol":"XBTUSD","exchange":"bitmex","price":8544.5,"amount":1000,"side":"sell",'
        b'"timestamp":"2020-01-01T00:00:01.000Z","localTimestamp":"2020-01-01T00:00:01.002003Z"}'
    )
    assert to_json_lines([trade, trade]) == (to_json(trade) + b"\n") * 2


def test_null_is_not_absent() -> None:
    ticker = DerivativeTicker("X", "e", UNSET, None, 0, UNSET, UNSET, UNSET, UNSET, AT, AT)  # type: ignore[arg-type]
    printed = json.loads(to_json(ticker))
    assert printed["openInterest"] is None
    assert printed["fundingRate"] == 0
    assert "lastPrice" not in printed


def test_messages_read_back_from_their_json() -> None:
    change = BookChange("X", "e", True, [BookLevel(8.5e-6, 1)], [BookLevel(UNSET, UNSET)], AT, AT)
    assert from_json(to_json(change)) == change
    lost = Disconnect("e", AT)
    assert from_json(to_json(lost)) == lost
    with pytest.raises(ValueError, match="no field colour"):
        from_json(b'{"type":"disconnect","exchange":"e","localTimestamp":"","colour":1}')


def test_messages_know_their_instants_and_survive_pickling() -> None:
    lost = Disconnect("e", AT, ["X"])
    assert lost.local_timestamp_us == lost.timestamp_us == 1_577_836_801_002_003
    assert pickle.loads(pickle.dumps(lost)) == lost
    assert to_json(pickle.loads(pickle.dumps(js_number(8.5e-6)))) == b"0.0000085"


@pytest.mark.parametrize(
    "text", ["2026-06-01T00:00,00.050Z", "2026-06-01T000000.050Z", "2026-06-01 00:00:00.050Z", "2026-06-01T00.050Z"]
)
def test_other_separators_make_no_timestamp(text: str) -> None:
    assert not is_calendar_second(text)
    with pytest.raises(ValueError, match="is not a timestamp"):
        parse_timestamp_us(text)
