"""A bad day on purpose is the same bad day again, and as bad as it was asked for."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.errors import OptionsError
from tardis_machine.pipeline.faults import MINUTE_US, BadDay, FaultInjector, parse_faults

HOUR = [(number * 50_000, f"m{number}") for number in range(3600 * 20)]
"""An hour of twenty messages a second."""


def play(faults: BadDay, items: list[tuple[int, str]], cuts: list[int] | None = None) -> list[tuple[int, str]]:
    injector = FaultInjector(faults, disconnected=lambda _: ["lost"], reconnected=lambda: ["book"])
    out: list[tuple[int, str]] = []
    for start, end in pairwise([0, *sorted(cuts or ()), len(items)]):
        out += injector.apply(items[start:end])
    return out + injector.finish()


def test_no_fault_changes_nothing() -> None:
    assert play(BadDay(seed=1), HOUR) == HOUR


ALL = BadDay(
    seed=7, drop=0.05, duplicate=0.05, delay=0.05, delay_ms=400, disconnects_per_hour=20, gaps_per_hour=10, gap_minutes=0.5
)


@given(st.lists(st.integers(0, 6000), max_size=5), st.integers(0, 2**32))
def test_batches_change_nothing(cuts: list[int], seed: int) -> None:
    faults = BadDay(seed=seed, drop=0.1, duplicate=0.1, delay=0.1, disconnects_per_hour=30, gaps_per_hour=30, gap_minutes=0.1)
    assert play(faults, HOUR[:6000], cuts) == play(faults, HOUR[:6000])


def test_another_seed_is_another_day() -> None:
    assert play(ALL, HOUR) == play(ALL, HOUR)
    assert play(ALL, HOUR) != play(BadDay(**{**{name: getattr(ALL, name) for name in ALL.__struct_fields__}, "seed": 8}), HOUR)


def test_as_many_are_lost_as_was_asked_for() -> None:
    kept = play(BadDay(seed=1, drop=0.1), HOUR)
    assert 0.89 < len(kept) / len(HOUR) < 0.91
    assert set(kept) < set(HOUR)


def test_some_come_twice_in_a_row() -> None:
    out = play(BadDay(seed=1, duplicate=0.1), HOUR)
    doubled = [one for one, other in pairwise(out) if one == other]
    assert len(out) == len(HOUR) + len(doubled)
    assert 0.09 < len(doubled) / len(HOUR) < 0.11


def test_some_come_late_and_none_is_lost() -> None:
    out = play(BadDay(seed=1, delay=0.1, delay_ms=400), HOUR)
    sent = {item: instant for instant, item in HOUR}
    late = [(instant, item) for instant, item in out if instant != sent[item]]
    assert len(out) == len(HOUR)
    assert out == sorted(out, key=lambda item: item[0])
    assert {instant - sent[item] for instant, item in late} == {400_000}
    assert 0.09 < len(late) / len(HOUR) < 0.11


def test_one_kind_changes_nothing_of_another() -> None:
    lost = {item for _, item in HOUR} - {item for _, item in play(BadDay(seed=3, drop=0.1), HOUR)}
    both = play(BadDay(seed=3, drop=0.1, duplicate=0.2, delay=0.1), HOUR)
    assert {item for _, item in HOUR} - {item for _, item in both} == lost


def test_a_gap_is_silent() -> None:
    out = play(BadDay(seed=1, gaps_per_hour=4, gap_minutes=2), HOUR)
    pauses = [after - before for (before, _), (after, _) in pairwise(out) if after - before > MINUTE_US]
    assert 1 <= len(pauses) <= 10
    assert set(out) < set(HOUR)
    assert min(pauses) >= 2 * MINUTE_US - 50_000


def test_a_lost_connection_is_told_and_begins_anew() -> None:
    out = play(BadDay(seed=1, disconnects_per_hour=6, disconnect_ms=5000), HOUR)
    places = [place for place, (_, item) in enumerate(out) if item == "lost"]
    assert 2 <= len(places) <= 12
    for place in places:
        assert out[place + 1][1] == "book"
        assert out[place + 1][0] - out[place][0] >= 5_000_000


def test_a_connection_that_is_closed_brings_nothing_more_and_another_goes_on() -> None:
    faults = BadDay(seed=1, disconnects_per_hour=6, disconnect_closes=True)
    first = FaultInjector(faults, disconnected=lambda _: ["lost"])
    out = first.apply(HOUR)
    assert first.has_closed
    assert out == HOUR[: len(out)]
    assert len(out) < len(HOUR)
    assert first.apply(HOUR[len(out) :]) == []
    again = FaultInjector(faults, disconnected=lambda _: ["lost"])
    assert len(again.apply(HOUR[len(out) :])) > 0  # not closed by the same fault at once


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (None, None),
        ({}, BadDay()),
        ({"seed": 3, "drop": 0.5}, BadDay(seed=3, drop=0.5)),
        ({"delay": 0.5}, BadDay(delay=0.5)),
        ({"delay": {"probability": 0.5, "ms": 10}}, BadDay(delay=0.5, delay_ms=10)),
        ({"disconnect": {"perHour": 2, "close": True}}, BadDay(disconnects_per_hour=2, disconnect_closes=True)),
        ({"gap": {"perHour": 1, "minutes": 3}, "published": True}, BadDay(gaps_per_hour=1, gap_minutes=3, published=True)),
    ],
)
def test_faults_are_read(value: Any, faults: BadDay | None) -> None:
    assert parse_faults(value, "faults") == faults


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "faults"),
        ({"dorp": 0.1}, "faults"),
        ({"drop": 2}, "faults.drop"),
        ({"drop": True}, "faults.drop"),
        ({"drop": float("nan")}, "faults.drop"),
        ({"seed": -1}, "faults.seed"),
        ({"delay": {"ms": -1}}, "faults.delay.ms"),
        ({"gap": {"hours": 1}}, "faults.gap"),
        ({"disconnect": {"close": 1}}, "faults.disconnect.close"),
        ({"published": "yes"}, "faults.published"),
    ],
)
def test_a_mistake_is_named(value: Any, field: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse_faults(value, "faults")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
