"""Compiled or not, numbers and times are read the same; what runs as Python says what is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tardis_machine.exchanges import decode_lines
from tardis_machine.messages import UNSET
from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.exchanges._parsing") for load in (import_compiled, import_as_python))

ODD: list[Any] = [
    None,
    True,
    False,
    UNSET,
    [],
    ["7"],
    [None],
    {},
    float("nan"),
    float("inf"),
    -0.0,
    1e21,
    2**53,
    -(2**53),
    2**64,
    10**400,
]

plain_text = st.from_regex(r"-?[0-9]{0,12}\.?[0-9]{0,12}", fullmatch=True)
number_text = st.from_regex(r"\s?[+-]?[0-9]{0,20}\.?[0-9]{0,20}([eE][+-]?[0-9]{1,3})?\s?", fullmatch=True)
numbers = st.one_of(
    plain_text,
    number_text,
    st.text(max_size=6),
    st.floats(),
    st.integers(),
    st.decimals(allow_nan=False).map(str),
    st.sampled_from(ODD),
)
seconds = st.datetimes().map(lambda at: at.isoformat(timespec="seconds"))
fractions = st.from_regex(r"\.?[0-9]{0,9}(Z|z|\+00:00|\+02:00)?", fullmatch=True)
times = st.one_of(
    st.tuples(seconds, fractions).map("".join),
    st.tuples(st.just("2020-02-01T00:00:28"), fractions).map("".join),
    st.from_regex(r"2020-02-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}([0-9]{3})?Z", fullmatch=True),
    st.text(max_size=30),
    numbers,
)


def assert_same(name: str, *args: Any) -> None:
    """Value, type and sign, as they print."""

    def outcome(read: Callable[..., Any]) -> tuple[str, str]:
        try:
            found = read(*args)
        except Exception as error:
            return type(error).__name__, str(error)
        return type(found).__name__, repr(found)

    # Twice: what the first one learns, the second one uses.
    for _ in range(2):
        assert outcome(getattr(compiled, name)) == outcome(getattr(python, name))


def test_the_compiled_ones_are_in_use() -> None:
    for name in (
        "levels",
        "levels_as_sent",
        "levels_by_side",
        "nonzero_number",
        "number_if_there",
        "number_unless_null",
        "optional_number",
        "timestamp_from_ms",
        "timestamp_from_text",
        "to_number",
        "verbatim",
    ):
        assert getattr(compiled, name).__module__ == "tardis_machine.exchanges._parsing_compiled"
        assert getattr(python, name).__module__ == "tardis_machine.exchanges._parsing"


@given(numbers)
@example("9007199254740991")
@example("9007199254740992")
@example("-0")
@example("-0.000")
@example("0.00001")
@example("0.0000085")
@example("0.1234567890123456")
@example("1.7976931348623157")
@example("-.5")
@example("5.")
@example("0.")
@example(".")
@example("-")
@example("")
@example("00.5")
@example("1.2.3")
@example("٣")
def test_numbers(value: Any) -> None:
    assert_same("to_number", value)
    assert_same("verbatim", value)
    assert_same("optional_number", value)
    assert_same("nonzero_number", value)
    assert_same("number_if_there", {"price": value}, "price")
    assert_same("number_unless_null", {"price": value}, "price")


@pytest.mark.parametrize("row", [{}, {"size": "1"}, [], ["price"], None])
def test_a_field_that_is_not_there(row: Any) -> None:
    assert_same("number_if_there", row, "price")
    assert_same("number_unless_null", row, "price")


@given(st.integers(0, 10**16), st.integers(0, 16))
def test_digits_are_rounded_as_the_standard_asks(digits: int, decimals: int) -> None:
    text = f"{digits:0{decimals + 1}d}"
    assert_same("to_number", f"{text[: len(text) - decimals]}.{text[len(text) - decimals :]}" if decimals else text)


@given(
    st.lists(
        st.one_of(st.lists(numbers, min_size=2, max_size=4), st.lists(numbers, max_size=1), st.tuples(numbers, numbers)),
        max_size=4,
    )
)
@example([{0: "1", 1: "2"}])
@example([None])
@example(["12"])
def test_levels(pairs: list[Any]) -> None:
    assert_same("levels", pairs)
    assert_same("levels_as_sent", pairs)


sides = st.sampled_from(["buy", "sell", "neither", None])


@given(st.lists(st.tuples(sides, numbers, numbers).map(list)), st.lists(st.lists(st.one_of(sides, numbers), max_size=4)))
def test_levels_of_rows_with_more_columns(rows: list[Any], any_rows: list[Any]) -> None:
    for some in (rows, any_rows):
        assert_same("levels_as_sent", some, 1, "buy")
        assert_same("levels_by_side", some)
        assert_same("levels_by_side", some, "neither", "sell")


plain_rows = st.lists(
    st.tuples(st.sampled_from(["buy", "sell", "neither"]), plain_text, st.one_of(st.integers(-(10**20), 10**20), plain_text)).map(
        list
    ),
    min_size=1,
)


@given(plain_rows, st.integers(0, 3))
def test_levels_of_rows_that_were_left_as_text(rows: list[list[Any]], columns: int) -> None:
    rows = [row[3 - columns :] for row in rows]
    text = json.dumps({"rows": rows}, separators=(",", ":")).encode()
    [message] = decode_lines([b"2020-02-01T00:00:00.1234567Z " + text], True)[1]
    left = message["rows"]
    rows = orjson.loads(text)["rows"]
    for name, arguments in (
        ("levels", ()),
        ("levels_as_sent", ()),
        ("levels_as_sent", (1, "buy")),
        ("levels_by_side", ()),
        ("levels_by_side", ("neither", "sell")),
    ):
        try:
            expected = getattr(python, name)(rows, *arguments)
        except (IndexError, TypeError) as error:
            with pytest.raises(type(error)):
                getattr(compiled, name)(left, *arguments)
            continue
        found = getattr(compiled, name)(left, *arguments)
        assert repr(_read(found)) == repr(expected)


def _read(found: Any) -> Any:
    return tuple(map(_read, found)) if isinstance(found, tuple) else [*found]


@given(times, st.booleans())
@example("2020-02-30T00:00:28.123Z", False)
@example("2020-02-01T00:00:28.12aZ", False)
@example("2020-02-01T00:00:aa.123Z", False)
@example("2020-02-01T00:00:28.1234567Z", True)
@example("2020-02-01T00:00:28,123Z", False)
@example("2020-02-01T24:00:00.000Z", False)
@example("-00001-01-01T00:00:00.123Z", False)
@example("+02020-02-01T00:00:28.1Z", True)
def test_times(text: Any, micros: bool) -> None:
    # A second that is known first, so that the other is compared with it.
    compiled.timestamp_from_text("2020-02-01T00:00:28.619Z")
    assert_same("timestamp_from_text", text, micros)


@given(st.one_of(st.integers(1_000_000_000_000, 2_000_000_000_000), st.integers(), numbers))
@example(999_999_999_999)
@example(1_000_000_000_000)
@example(252_999_999_999_999)
@example(253_000_000_000_000)
@example(253_402_300_800_000)
@example(8_640_000_000_000_000)
@example(8_640_000_000_000_001)
def test_milliseconds(value: Any) -> None:
    assert_same("timestamp_from_ms", value)
    if type(value) is int:
        # The same second, and one that takes the same place.
        assert_same("timestamp_from_ms", value // 1000 * 1000 + 7)
        assert_same("timestamp_from_ms", value + 64_000)
        assert_same("timestamp_from_ms", value)
