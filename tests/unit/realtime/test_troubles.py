"""Errors are told once, then counted, and none is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.messages import ErrorCode
from tardis_machine.realtime.troubles import Trouble, Troubles


def test_the_first_is_told_the_others_counted_until_it_works() -> None:
    troubles = Troubles(60.0)
    assert troubles.add("WS_CONNECT", "refused", 0.0) == [Trouble("WS_CONNECT", "refused")]
    assert [troubles.add("WS_CONNECT", f"refused {n}", float(n)) for n in range(1, 4)] == [[], [], []]
    assert troubles.recover() == [Trouble("WS_CONNECT", "refused 3", 3)]
    assert not troubles
    assert troubles.add("WS_CONNECT", "again", 5.0) == [Trouble("WS_CONNECT", "again")]
    assert troubles.recover() == []


def test_what_goes_on_is_summed_up_once_in_a_while() -> None:
    troubles = Troubles(60.0)
    told = [trouble for second in range(0, 200, 10) for trouble in troubles.add(None, "no", float(second))]
    assert told == [Trouble(None, "no", 0), *[Trouble(None, "no", 6)] * 3]
    assert troubles.settle(1_000.0) == [Trouble(None, "no", 1)]
    assert troubles.settle(2_000.0) == []
    assert not troubles


def test_answers_to_subscriptions_are_not_told_again_because_data_flows() -> None:
    troubles = Troubles(60.0)
    assert troubles.add("SOURCE_AUTH", "no", 0.0)
    assert not troubles.recover()
    assert not troubles.add("SOURCE_AUTH", "no", 1.0)


CODES: list[ErrorCode | None] = ["WS_CONNECT", "WS_SEND", "SOURCE_AUTH", "SOURCE_RATE_LIMIT", None]


@given(st.lists(st.tuples(st.sampled_from([*CODES, "recover", "settle"]), st.floats(0, 50)), max_size=60))
def test_every_error_is_told_or_counted(steps: list[tuple[str | None, float]]) -> None:
    troubles, now_s, happened, told = Troubles(60.0), 0.0, 0, []
    for what, wait_s in steps:
        now_s += wait_s
        if what == "recover":
            told += troubles.recover()
        elif what == "settle":
            told += troubles.settle(now_s)
        else:
            happened += 1
            told += troubles.add(what, "x", now_s)  # type: ignore[arg-type]
    told += troubles.end()
    assert sum(trouble.followed or 1 for trouble in told) == happened
