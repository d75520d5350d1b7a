"""Dates that users type are read as they mean them, or refused with what a date looks like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.dates import parse_date_us, parse_instant_us
from tardis_machine.messages import parse_timestamp_us, to_timestamp


@given(st.integers(-8_640_000_000_000_000, 8_640_000_000_000_000))
def test_every_date_of_javascript_survives_its_text(instant_ms: int) -> None:
    assert parse_date_us(to_timestamp(instant_ms * 1000, milliseconds=True)) == instant_ms * 1000


@given(st.text())
def test_any_text_is_an_instant_or_none(text: str) -> None:
    assert isinstance(parse_instant_us(text), int | None)


def test_a_day_that_the_month_lacks_is_the_next_month_s_unless_strict() -> None:
    assert parse_instant_us("2019-06-31") == parse_instant_us("2019-07-01")
    assert parse_instant_us("2019-06-31", strict=True) is None


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2019-01-01", "2019-01-01T00:00:00.000Z"),
        ("2019-01-01T12:34", "2019-01-01T12:34:00.000Z"),
        ("2019-01-01T12:34:56.789Z", "2019-01-01T12:34:56.789Z"),
        ("2019-01-01 12:34:56.7891234", "2019-01-01T12:34:56.789123Z"),
        ("2019-06-01T00:00:00+02:00", "2019-05-31T22:00:00.000Z"),
        ("2020-02-29", "2020-02-29T00:00:00.000Z"),
    ],
)
def test_dates_of_a_request(text: str, instant: str) -> None:
    assert parse_date_us(text) == parse_timestamp_us(instant)


@pytest.mark.parametrize("text", ["", "2019-02-29", "2019-06-31", "1567296022565", "tomorrow", "2019-06-01T00:00:00 CET"])
def test_a_request_with_no_date_is_told_what_it_got(text: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}' is no date; a date is written like 2019-06-01 or "):
        parse_date_us(text)
