"""Compiled or not, the same frames are written; what runs as Python says what is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.bronze.event import Event, EventStream
from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.eventbus.segment") for load in (import_compiled, import_as_python))

STREAMS = [EventStream("s", "bitmex", symbol, "trade", "trade", "test", "replay", {"a": "b"}) for symbol in ("X", "Y", "Z")]

events = st.lists(
    st.builds(
        Event,
        st.sampled_from(STREAMS),
        st.binary(min_size=16, max_size=16),
        st.binary(max_size=300),
        st.integers(0, 2**63 - 1),
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=20,
)


@given(st.lists(st.tuples(events, st.integers(-(2**63), 2**63 - 1)), max_size=4), st.lists(st.booleans(), min_size=4, max_size=4))
def test_any_events(groups: list[tuple[list[Event], int]], starts: list[bool]) -> None:
    tables = compiled.StreamTable(), python.StreamTable()
    for (group, accepted_us), starts_segment in zip(groups, starts, strict=False):
        if starts_segment:
            for table in tables:
                table.start_segment()
        ours, expected = (
            module.encode_events(group, accepted_us, table) for module, table in zip((compiled, python), tables, strict=True)
        )
        assert ours == expected


def test_streams_are_described_again_after_a_while() -> None:
    group = [Event(STREAMS[0], bytes(16), b"x" * 1000, number, 0) for number in range(50)]
    tables = compiled.StreamTable(), python.StreamTable()
    for _ in range(5):
        ours, expected = (module.encode_events(group, 0, table) for module, table in zip((compiled, python), tables, strict=True))
        assert ours == expected


@pytest.mark.parametrize(
    "odd",
    [
        Event(STREAMS[1], b"short", b"value", 1, 2),
        Event(STREAMS[1], bytes(16), b"value", 2**64 - 1, 2),
        Event(STREAMS[1], bytes(16), bytearray(b"value"), 1, 2),  # type: ignore[arg-type]
    ],
)
def test_what_is_unusual_is_left_to_python(odd: Event) -> None:
    group = [Event(STREAMS[0], bytes(16), b"value", 1, 2), odd]
    ours, expected = (module.encode_events(group, 7, module.StreamTable()) for module in (compiled, python))
    assert ours == expected


@pytest.mark.parametrize("number", [-1, 2**64])
def test_what_python_refuses_is_refused(number: int) -> None:
    for module in (compiled, python):
        with pytest.raises(Exception, match=r"argument|range|format"):
            module.encode_events([Event(STREAMS[0], bytes(16), b"value", number, 2)], 7, module.StreamTable())
