"""Waits grow, are bounded, and differ between clients."""

from __future__ import annotations

from tardis_machine.realtime.backoff import Backoff, Timings


def test_waits_double_up_to_a_bound_and_start_anew() -> None:
    backoff = Backoff(Timings(first_s=1.0, most_s=8.0), random=lambda: 1.0)
    assert [backoff.next_s() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    backoff.reset()
    assert backoff.next_s() == 1
    for _ in range(5_000):  # days of it
        backoff.next_s()


def test_jitter_takes_up_to_half() -> None:
    timings = Timings(first_s=1.0)
    assert Backoff(timings, random=lambda: 0.0).next_s() == 0.5
    assert len({Backoff(timings).next_s() for _ in range(20)}) > 10


def test_who_asked_too_often_waits_longer_and_as_long_as_it_is_told() -> None:
    backoff = Backoff(Timings(first_s=1.0, limited_s=16.0, most_limited_s=40.0), random=lambda: 1.0)
    assert [backoff.next_s(limited=True) for _ in range(3)] == [16, 32, 40]
    assert backoff.next_s(limited=True, at_least_s=100.0) == 100
