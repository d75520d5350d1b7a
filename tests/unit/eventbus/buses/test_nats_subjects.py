"""NATS subjects: escapes, patterns, and what a stream covers."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tardis_machine.eventbus.buses.nats_jetstream.subjects import (
    check_subject,
    covers,
    escape_token,
    producible_subjects,
    without_covered,
)

tokens = st.sampled_from(["a", "b", "*"])
patterns = st.builds(
    lambda parts, tail: ".".join([*parts, *tail]), st.lists(tokens, min_size=1, max_size=3), st.sampled_from([[], [">"]])
)
subjects = st.lists(st.sampled_from("ab"), min_size=1, max_size=5).map(".".join)


@given(st.text())
@example("")
@example("BTC-USD.P")
@example("%2E")
def test_an_escaped_value_is_one_token_and_can_be_read_back(value: str) -> None:
    token = escape_token(value)
    assert check_subject(f"x.{token}") is None
    assert "." not in token
    assert ("" if token == "%" else unquote(token)) == value


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("", "empty token"),
        ("a..b", "empty token"),
        ("a.", "empty token"),
        ("a.*", "wildcard"),
        (">", "wildcard"),
        ("a b", "space"),
        ("a.é", "ASCII"),
        ("a\r\nPUB x", "space"),
        ("$JS.API.x", "reserved for the server"),
    ],
)
def test_what_is_no_subject_is_said(subject: str, problem: str) -> None:
    assert problem in (check_subject(subject) or "")


def matches(pattern: str, subject: str) -> bool:
    """As the server does it, for a subject without wildcards."""
    wide, narrow = pattern.split("."), subject.split(".")
    if wide[-1] == ">":
        return len(narrow) >= len(wide) and all(a in ("*", b) for a, b in zip(wide[:-1], narrow, strict=False))
    return len(wide) == len(narrow) and all(a in ("*", b) for a, b in zip(wide, narrow, strict=True))


@given(patterns, patterns, subjects)
def test_who_covers_a_pattern_takes_all_its_subjects(wide: str, narrow: str, subject: str) -> None:
    assert covers(wide, subject) == matches(wide, subject)
    if covers(wide, narrow) and matches(narrow, subject):
        assert matches(wide, subject)


@given(patterns)
def test_a_pattern_covers_itself(pattern: str) -> None:
    assert covers(pattern, pattern)


def test_every_subject_that_can_come_is_known() -> None:
    options: dict[str, Any] = {"subject": "md.all"}
    assert producible_subjects(options) == ["md.all"]
    options["routing"] = {"trade": "md.trades"}
    assert producible_subjects(options) == ["md.trades", "md.all"]
    options["destination_template"] = "md.{{exchange}}-x.{{ meta.a.b }}.end"
    assert producible_subjects(options) == ["md.trades", "md.*.*.end", "md.all"]
    options["include_payloads"] = ("trade", "session_end")
    assert producible_subjects(options) == ["md.trades", "md.all"]
    assert without_covered(["md.a.b", "md.*.*", "md.all", "x"]) == ["md.*.*", "md.all", "x"]
