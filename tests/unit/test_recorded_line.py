"""A recorded line and its parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.messages import parse_timestamp_us
from tardis_machine.recorded_line import (
    KEY_LENGTH,
    MESSAGE_START,
    MINUTE_LENGTH,
    TIME_LENGTH,
    begins_with_time,
    clock_of,
    message_of,
    time_of,
    to_clock,
    to_line,
    to_time,
    to_time_of_ticks,
)

LINE = b'2019-06-01T00:00:28.6190019Z {"table":"trade"}'


def test_the_parts_of_a_line() -> None:
    assert time_of(LINE) == b"2019-06-01T00:00:28.6190019Z"
    assert clock_of(LINE) == "2019-06-01T00:00:28.619001Z"
    assert message_of(LINE) == b'{"table":"trade"}'
    assert to_line(time_of(LINE), message_of(LINE)) == LINE
    assert (LINE[:TIME_LENGTH], LINE[MESSAGE_START:]) == (time_of(LINE), message_of(LINE))
    assert LINE[:KEY_LENGTH] == b"2019-06-01T00:00:28.619001"
    assert LINE[:MINUTE_LENGTH] == b"2019-06-01T00:00"


def test_a_line_is_known_by_its_time() -> None:
    assert begins_with_time(LINE)
    assert begins_with_time(LINE[:MESSAGE_START])
    for other in (b"", LINE[:TIME_LENGTH], LINE[1:], b'{"code":1}', LINE.replace(b"9Z ", b"Z  ")):
        assert not begins_with_time(other)


def test_a_message_that_is_printed_over_lines_is_one_line() -> None:
    assert to_line(b"2019-06-01T00:00:28.6190019Z", b'{\n"a":1}') == b'2019-06-01T00:00:28.6190019Z { "a":1}'


def test_a_clock_has_six_digits_or_those_that_it_had() -> None:
    assert to_clock("2019-06-01T00:00:28.6190019Z") == "2019-06-01T00:00:28.619001Z"
    assert to_clock("2019-06-01T00:00:28.619Z") == "2019-06-01T00:00:28.619Z"


def test_times_are_exact() -> None:
    assert to_time(1_559_347_408_619_999) == b"2019-06-01T00:03:28.6199990Z"
    assert to_time(253_402_300_799_999_999) == b"9999-12-31T23:59:59.9999990Z"
    assert to_time_of_ticks(15_593_474_086_199_997) == "2019-06-01T00:03:28.6199997Z"


@given(st.integers(0, 2_534_023_007_999_999_999))
def test_a_line_has_the_clock_of_its_time(ticks: int) -> None:
    time = to_time_of_ticks(ticks)
    line = to_line(time.encode(), b"{}")
    assert len(time) == TIME_LENGTH
    assert clock_of(line) == to_clock(time)
    assert parse_timestamp_us(clock_of(line)) == ticks // 10
