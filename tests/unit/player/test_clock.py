"""The clock of a replay: where it is follows from what it was told, and nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.player.clock import MAX_LATE_S, PlayerClock

SECOND_US = 1_000_000


def started(speed: float, position_us: int = 0, now_s: float = 1000.0) -> PlayerClock:
    clock = PlayerClock(speed, position_us)
    clock.start(now_s)
    return clock


def test_nothing_is_due_before_there_is_something_to_play() -> None:
    clock = PlayerClock(1, 5 * SECOND_US)
    assert (clock.position_us(now_s=1e6), clock.due_s(5 * SECOND_US)) == (5 * SECOND_US, inf)
    clock.start(now_s=1000)
    clock.start(now_s=2000)  # it has started already
    assert clock.due_s(6 * SECOND_US) == 1001


@pytest.mark.parametrize("speed", [0.5, 1, 10, 1000])
def test_an_instant_is_due_when_the_clock_is_there(speed: float) -> None:
    clock = started(speed)
    for instant_us in (0, 1, 7 * SECOND_US, 3600 * SECOND_US):
        assert clock.position_us(clock.due_s(instant_us)) == pytest.approx(instant_us, abs=speed)


def test_a_pause_takes_no_local_time() -> None:
    clock = started(2)
    clock.pause(now_s=1010)
    clock.pause(now_s=1500)
    assert (clock.position_us(now_s=5000), clock.due_s(0), clock.is_paused) == (20 * SECOND_US, inf, True)
    clock.resume(now_s=6000)
    clock.resume(now_s=7000)
    assert (clock.position_us(now_s=6001), clock.due_s(30 * SECOND_US)) == (22 * SECOND_US, 6005)


def test_another_speed_begins_where_it_is() -> None:
    clock = started(1)
    clock.set_speed(now_s=1010, speed=10)
    assert (clock.position_us(now_s=1011), clock.due_s(40 * SECOND_US)) == (20 * SECOND_US, 1013)
    clock.pause(now_s=1011)
    clock.set_speed(now_s=1100, speed=1)
    clock.resume(now_s=1200)
    assert clock.due_s(25 * SECOND_US) == 1205


def test_without_a_speed_it_is_where_it_was_sent_to() -> None:
    clock = started(inf)
    assert clock.due_s(3600 * SECOND_US) == -inf
    clock.reach(1001, 3600 * SECOND_US)
    clock.reach(1002, 1800 * SECOND_US)  # a recorder's clock may step back
    assert clock.position_us(now_s=1003) == 3600 * SECOND_US
    clock.set_speed(now_s=1010, speed=1)
    assert clock.due_s(3601 * SECOND_US) == 1011


def test_a_step_releases_one_instant_and_goes_there() -> None:
    clock = started(1)
    clock.pause(now_s=1010)
    clock.step(12 * SECOND_US)
    assert (clock.due_s(12 * SECOND_US), clock.due_s(12 * SECOND_US + 1)) == (-inf, inf)
    assert clock.position_us(now_s=2000) == 12 * SECOND_US
    clock.resume(now_s=2000)
    assert clock.due_s(13 * SECOND_US) == 2001


def test_a_seek_waits_for_what_is_there_and_keeps_speed_and_pause() -> None:
    clock = started(10)
    clock.pause(now_s=1001)
    clock.seek(70 * SECOND_US)
    clock.start(now_s=1500)
    # What a seek opens with is due, paused or not; what comes after it is not.
    assert (clock.due_s(70 * SECOND_US), clock.due_s(70 * SECOND_US + 1)) == (-inf, inf)
    clock.resume(now_s=1600)
    assert clock.due_s(80 * SECOND_US) == 1601
    clock.seek(5 * SECOND_US)
    assert (clock.position_us(now_s=9999), clock.due_s(6 * SECOND_US)) == (5 * SECOND_US, inf)
    clock.start(now_s=2000)
    assert clock.due_s(6 * SECOND_US) == 2000.1


def test_what_was_not_there_in_time_holds_the_clock_up() -> None:
    clock = started(1)
    clock.reach(1000 + 5 + MAX_LATE_S / 2, 5 * SECOND_US)
    assert clock.due_s(6 * SECOND_US) == 1006  # a little late: it catches up
    clock.reach(1030, 6 * SECOND_US)
    assert (clock.position_us(now_s=1030), clock.due_s(7 * SECOND_US)) == (6 * SECOND_US, 1031)
    clock.reach(1032, 1 * SECOND_US)  # older than what was sent: no reason to go back
    assert clock.position_us(now_s=1032) == 8 * SECOND_US


OPERATIONS: dict[str, Callable[[PlayerClock, float, float], None]] = {
    "start": lambda clock, now_s, _: clock.start(now_s),
    "pause": lambda clock, now_s, _: clock.pause(now_s),
    "resume": lambda clock, now_s, _: clock.resume(now_s),
    "speed": lambda clock, now_s, number: clock.set_speed(now_s, number),
    "max": lambda clock, now_s, _: clock.set_speed(now_s, inf),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.floats(0, 100), st.floats(0.01, 1000))))
def test_it_never_goes_back_unless_it_is_told_to(steps: list[tuple[str, float, float]]) -> None:
    clock, now_s = PlayerClock(1, 0), 1000.0
    for name, elapsed_s, number in steps:
        before_us = clock.position_us(now_s)
        now_s += elapsed_s
        here_us = clock.position_us(now_s)
        assert here_us >= before_us
        OPERATIONS[name](clock, now_s, number)
        assert clock.position_us(now_s) == here_us
