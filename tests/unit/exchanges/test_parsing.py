"""Numbers and times are read as JavaScript reads them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.exchanges._parsing import (
    expiration_on,
    level_rows,
    levels,
    nonzero_number,
    optional_number,
    text_of,
    timestamp_from_expiration,
    timestamp_from_ms,
    timestamp_from_seconds,
    timestamp_from_text,
    timestamp_from_us,
    to_number,
    verbatim,
)
from tardis_machine.messages import UNSET, BookLevel, parse_timestamp_us, to_json


def printed(number: Any) -> str:
    return to_json(BookLevel(number, 0)).decode().removeprefix('{"price":').removesuffix(',"amount":0}')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("8544.5", "8544.5"),
        ("2000.0", "2000"),
        ("2000", "2000"),
        (2000.0, "2000"),
        (2000, "2000"),
        ("", "0"),
        ("  ", "0"),
        (None, "0"),
        ([], "0"),
        ([None], "0"),
        (["7.5"], "7.5"),
        ([[3]], "3"),
        (True, "1"),
        (False, "0"),
        ("-0", "0"),
        ("-0.0", "0"),
        (" 2\n", "2"),
        ("\ufeff2", "2"),
        ("0x10", "16"),
        ("0b11", "3"),
        ("0o17", "15"),
        (".5", "0.5"),
        ("5.", "5"),
        ("+7", "7"),
        ("007", "7"),
        ("1e-7", "1e-7"),
        ("0.0000085", "0.0000085"),
        ("1e21", "1e+21"),
        ("123456789012345678901", "123456789012345680000"),
        (9007199254740993, "9007199254740992"),
        ("9007199254740993", "9007199254740992"),
        ("0x20000000000001", "9007199254740992"),
        (-9007199254740993.0, "-9007199254740992"),
    ],
)
def test_numbers_print_as_javascript_prints_them(value: Any, text: str) -> None:
    assert printed(to_number(value)) == text


@pytest.mark.parametrize(
    "value",
    [
        "abc",
        "1_000",
        "nan",
        "inf",
        "infinity",
        "1 2",
        "-0x10",
        "0x",
        "１",
        "null",
        "true",
        "[1]",
        '"5"',
        UNSET,
        {},
        [1, 2],
        [True],
    ],
)
def test_what_is_no_number_is_nan_and_prints_null(value: Any) -> None:
    assert math.isnan(to_number(value))
    assert printed(to_number(value)) == "null"


@pytest.mark.parametrize(
    ("value", "number"),
    [("Infinity", math.inf), ("-Infinity", -math.inf), ("1e400", math.inf), (10**400, math.inf), (-(10**400), -math.inf)],
)
def test_infinities(value: Any, number: float) -> None:
    assert to_number(value) == number
    assert optional_number(value) is UNSET


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_text_of_a_double_is_that_double(number: float) -> None:
    assert to_number(repr(number)) == number
    assert printed(to_number(repr(number))) == printed(to_number(number)) == printed(verbatim(number))


@given(st.text())
def test_any_text_is_a_number_or_nan(text: str) -> None:
    assert isinstance(to_number(text), int | float)
    assert optional_number(text) is UNSET or math.isfinite(optional_number(text))


@pytest.mark.parametrize("value", [None, UNSET, "", "abc", "NaN", "Infinity", math.nan, {}])
def test_optional_numbers_may_be_missing(value: Any) -> None:
    assert optional_number(value) is UNSET
    assert nonzero_number(value) is UNSET


@pytest.mark.parametrize("value", [0, "0", "0.0", "-0", 0.0])
def test_zero_is_a_value_unless_the_exchange_means_none_by_it(value: Any) -> None:
    assert optional_number(value) == 0
    assert nonzero_number(value) is UNSET
    assert nonzero_number("1e-9") == optional_number("1e-9") == 1e-9


@pytest.mark.parametrize("value", [None, UNSET, 5, 0.5])
def test_verbatim_leaves_what_is_a_number_or_none_alone(value: Any) -> None:
    assert verbatim(value) is value


def test_verbatim_reads_text_that_is_a_number() -> None:
    assert printed(verbatim("8500.50")) == "8500.5"


@pytest.mark.parametrize("value", ["text", "", " ", "NaN", "1e999", True, [1], {}])
def test_verbatim_passes_nothing_else_on(value: Any) -> None:
    with pytest.raises(TypeError, match="is no number"):
        verbatim(value)


def test_verbatim_numbers_print_as_javascript_prints_them() -> None:
    assert printed(verbatim(2000.0)) == "2000"
    assert printed(verbatim(9007199254740993)) == "9007199254740992"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (12345678901234567890, "12345678901234567890"),
        (2000.0, "2000"),
        (1e-7, "1e-7"),
        (None, "null"),
        (True, "true"),
        (UNSET, "undefined"),
    ],
)
def test_ids_as_text(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_levels_of_pairs_and_of_rows() -> None:
    expected = [BookLevel(8544.5, 2000), BookLevel(8545, 0)]
    assert levels([["8544.5", "2000.0", "3"], [8545, None]]) == expected
    assert levels(iter([("8544.5", 2000.0), ("8545.0", "")])) == expected
    assert level_rows([{"price": "8544.5", "size": "2e3"}, {"price": 8545.0, "size": 0}]) == expected
    assert level_rows([{"p": 8544.5, "q": 2000}, {"p": "8545", "q": ""}], "p", "q") == expected
    assert levels([]) == level_rows([]) == []
    assert levels([["", "0x10"], [" 8545", None]]) == [BookLevel(0, 16), BookLevel(8545, 0)]
    assert to_json(levels([["abc", "null"], ["1", "[2]"], [UNSET, 9007199254740993]])) == (
        b'[{"price":null,"amount":null},{"price":1,"amount":null},{"price":null,"amount":9007199254740992}]'
    )
    assert [printed(level.price) for level in levels([["2000.0", 1], ["0.0000085", 1]])] == ["2000", "0.0000085"]
    assert to_json(level_rows([{"price": 1}])) == b'[{"price":1,"amount":null}]'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1567296022565, "2019-09-01T00:00:22.565Z"),
        (1567296022565.999, "2019-09-01T00:00:22.565Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (None, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-1.5, "1969-12-31T23:59:59.999Z"),
        (-0.5, "1970-01-01T00:00:00.000Z"),
        (8_640_000_000_000_000, "+275760-09-13T00:00:00.000Z"),
        (-62_198_755_200_000, "-000001-01-01T00:00:00.000Z"),
        (8_640_000_000_000_001, None),
        (1e300, None),
        (math.nan, None),
        (UNSET, None),
        ("1567296022565", None),
        ("2019-09-01", "2019-09-01T00:00:00.000Z"),
    ],
)
def test_milliseconds(value: Any, text: str | None) -> None:
    assert timestamp_from_ms(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1640131200000123, "2021-12-22T00:00:00.000123Z"),
        ("1640131200000123", "2021-12-22T00:00:00.000123Z"),
        (1640131200000000, "2021-12-22T00:00:00.000000Z"),
        (1640131200000, "2021-12-22T00:00:00.000Z"),
        (1e15, "+033658-09-27T01:46:40.000Z"),
        (3032827741311734928, "+098076-06-25T22:21:51.735784Z"),
        (-1602585252946976, "-048814-02-04T13:44:13.024Z"),
        (9e18, None),
        ("", "1970-01-01T00:00:00.000Z"),
        ("abc", None),
        (UNSET, None),
    ],
)
def test_microseconds(value: Any, text: str | None) -> None:
    assert timestamp_from_us(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1567296022.565123", "2019-09-01T00:00:22.565123Z"),
        (1567296022, "2019-09-01T00:00:22.000000Z"),
        (1561122399.966, "2019-06-21T13:06:39.966000Z"),
        ("1534614057.321597", "2018-08-18T17:40:57.321597Z"),
        # t * 1e6 rounds up to the next millisecond's microseconds, t * 1000 does not.
        (1550000000.0039998, "2019-02-12T19:33:20.003999Z"),
        ("nonsense", None),
        (1e300, None),
    ],
)
def test_seconds_with_a_fraction(value: Any, text: str | None) -> None:
    assert timestamp_from_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "milliseconds", "microseconds"),
    [
        ("2019-06-01T00:00:28.123Z", "2019-06-01T00:00:28.123Z", "2019-06-01T00:00:28.123000Z"),
        ("2019-06-01T00:00:28.6199941Z", "2019-06-01T00:00:28.619Z", "2019-06-01T00:00:28.619994Z"),
        ("2019-06-01T00:00:28.619994Z", "2019-06-01T00:00:28.619Z", "2019-06-01T00:00:28.619994Z"),
        ("2019-06-01T00:00:28.619994123Z", "2019-06-01T00:00:28.619Z", "2019-06-01T00:00:28.619994Z"),
        ("2019-06-01T00:00:28.619994+00:00", "2019-06-01T00:00:28.619Z", "2019-06-01T00:00:28.619994Z"),
        ("2019-06-01T00:00:28.619994+02:00", "2019-05-31T22:00:28.619Z", "2019-05-31T22:00:28.619994Z"),
        ("2019-06-01T00:00:28.61999Z", "2019-06-01T00:00:28.619Z", "2019-06-01T00:00:28.619000Z"),
        ("2019-06-01T00:00:28.61999412Z", "2019-06-01T00:00:28.619Z", "2019-06-01T00:00:28.619000Z"),
        ("2019-06-01T00:00:28.1234+00:00", "2019-06-01T00:00:28.123Z", "2019-06-01T00:00:28.123000Z"),
        ("2019-06-01T00:00:28.6Z", "2019-06-01T00:00:28.600Z", "2019-06-01T00:00:28.600000Z"),
        ("2019-06-01T00:00:28Z", "2019-06-01T00:00:28.000Z", "2019-06-01T00:00:28.000000Z"),
        ("2019-06-01 00:00:28", "2019-06-01T00:00:28.000Z", "2019-06-01T00:00:28.000000Z"),
        ("2019-06-01 00:00:28 UTC", "2019-06-01T00:00:28.000Z", "2019-06-01T00:00:28.000000Z"),
        ("2019-06-01T00:00:28-0530", "2019-06-01T05:30:28.000Z", "2019-06-01T05:30:28.000000Z"),
        ("2019-06-01", "2019-06-01T00:00:00.000Z", "2019-06-01T00:00:00.000000Z"),
        ("2019-06-31", "2019-07-01T00:00:00.000Z", "2019-07-01T00:00:00.000000Z"),
        ("2019-06-01T24:00:00Z", "2019-06-02T00:00:00.000Z", "2019-06-02T00:00:00.000000Z"),
        ("+002019-06-01", "2019-06-01T00:00:00.000Z", "2019-06-01T00:00:00.000000Z"),
        ("-000001-01-01", "-000001-01-01T00:00:00.000Z", "-000001-01-01T00:00:00.000000Z"),
    ],
)
def test_text(value: str, milliseconds: str, microseconds: str) -> None:
    assert timestamp_from_text(value) == milliseconds
    assert timestamp_from_text(value, micros=True) == microseconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yesterday",
        "2019-13-01",
        "2019-06-32",
        "2019-06-01T25:00",
        "2019-06-01T24:00:01Z",
        "2019-06-01T00:60",
        "2019-06-01T00:00:60Z",
        "-000000-01-01",
        "+275760-09-13T00:00:00.001Z",
        "2019-06-01T00:00:28+24:00",
        "2019-06-01T00:00:28.Z",
        " 2019-06-01",
        UNSET,
    ],
)
def test_text_that_is_no_date(value: Any) -> None:
    assert timestamp_from_text(value) is None
    assert timestamp_from_text(value, micros=True) is None


@given(st.integers(-8_640_000_000_000_000, 8_640_000_000_000_000))
def test_every_date_of_javascript_survives_its_text(instant_ms: int) -> None:
    text = timestamp_from_ms(instant_ms)
    assert text is not None
    assert parse_timestamp_us(text) == instant_ms * 1000
    assert timestamp_from_text(text) == text


@given(st.text())
def test_any_text_is_a_date_or_none(text: str) -> None:
    assert timestamp_from_text(text) is None or timestamp_from_text(text, micros=True) is not None


@pytest.mark.parametrize(
    ("text", "expiration"),
    [
        ("8JUN20", "2020-06-08T08:00:00.000Z"),
        ("29FEB24", "2024-02-29T08:00:00.000Z"),
        ("31FEB20", "2020-03-02T08:00:00.000Z"),
        ("32JAN20", None),
        ("0JAN20", None),
        ("JUN20", None),
        ("8XXX20", None),
    ],
)
def test_days_that_options_expire_on(text: str, expiration: str | None) -> None:
    assert timestamp_from_expiration(text) == expiration


def test_days_that_no_calendar_has_go_on_into_the_next() -> None:
    days = [(2020, 7, 24), (2020, 93, 27), (2020, 0, 1), (2099, 99, 99), (2021, 2, 0)]
    assert [expiration_on(*day)[:10] for day in days] == ["2020-07-24", "2027-09-27", "2019-12-01", "2107-06-07", "2021-01-31"]
