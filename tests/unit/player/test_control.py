"""Controls are read strictly: whatever comes, it is a control or one sentence about one field."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.errors import OptionsError
from tardis_machine.player.control import CONTROLS, Control, parse_control
from tardis_machine.player.rate import MessageRate
from tardis_machine.server.replays import MAX_CONTROL_BYTES, control_in

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4)


@pytest.mark.parametrize(
    ("message", "control"),
    [
        ({"control": "pause"}, Control(name="pause")),
        ({"control": "seek", "to": "1970-01-01T00:00:02Z"}, Control(name="seek", to_us=2_000_000)),
        ({"control": "speed", "speed": "max"}, Control(name="speed", speed=inf)),
        ({"control": "speed", "speed": 0.5}, Control(name="speed", speed=0.5)),
        ({"control": "step"}, Control(name="step")),
        ({"control": "step", "count": 3}, Control(name="step", count=3)),
    ],
)
def test_a_control_is_read(message: dict[str, Any], control: Control) -> None:
    assert parse_control(message) == control


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ([], "control"),
        ({"control": "stop"}, "control"),
        ({"control": ["pause"]}, "control"),
        ({"control": "pause", "to": "2020-01-01"}, "control"),
        ({"control": "seek"}, "to"),
        ({"control": "seek", "to": "soon"}, "to"),
        ({"control": "speed", "speed": 0}, "speed"),
        ({"control": "speed", "speed": "nan"}, "speed"),
        ({"control": "speed", "speed": 1e9}, "speed"),
        ({"control": "step", "count": True}, "count"),
        ({"control": "step", "count": 100_000}, "count"),
    ],
)
def test_a_mistake_is_named(message: Any, field: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse_control(message)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@given(st.sampled_from(sorted(CONTROLS)) | JSON, st.dictionaries(st.sampled_from(["to", "speed", "count", "x"]), JSON))
def test_anything_is_a_control_or_a_sentence(name: Any, fields: dict[str, Any]) -> None:
    problem: OptionsError | None = None
    try:
        parsed = parse_control({"control": name, **fields})
    except OptionsError as error:
        problem = error
    if problem is None:
        assert parsed.name == name
    else:
        assert problem.field
        assert len(str(problem)) < 500


def test_what_is_no_control_is_passed_over() -> None:
    assert control_in('{"control":"pause"}') == control_in(b'{"control":"pause"}') == {"control": "pause"}
    for frame in ('{"op":"subscribe","args":["trade:XBTUSD"]}', '"control"', '{"control":', '["control"]', b"\xff\x00"):
        assert control_in(frame) is None
    assert control_in('{"control":"pause"' + " " * MAX_CONTROL_BYTES + "}") is None


def test_a_rate_is_of_the_last_seconds() -> None:
    rate = MessageRate(now_s=100.0)
    rate.count(100.1, 50)
    assert rate.per_second(100.2) == 50
    rate.count(102.0, 50)
    assert rate.per_second(102.0) == 50
    assert (rate.per_second(120.0), rate.total) == (0, 100)
