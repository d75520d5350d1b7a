"""Compiled or not, recorded lines reach the mappers the same; what runs as Python says what is right."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tardis_machine.exchanges._feeding import Call
from tardis_machine.messages import Disconnect, Message
from tests.compiled_or_not import import_as_python, import_compiled

CLOCK = "2020-02-01T00:00:00.123456Z"

(compiled,), (python,) = (load("tardis_machine.exchanges._feeding") for load in (import_compiled, import_as_python))
BOTH = pytest.mark.parametrize("module", [compiled, python], ids=["compiled", "python"])


def recorded(*messages: bytes) -> list[bytes]:
    return [b"2020-02-01T00:00:0%d.1234567Z %b" % (n % 10, message) for n, message in enumerate(messages)]


def test_what_is_compiled_is_what_is_used() -> None:
    for name in ("join_lines", "feed_messages"):
        assert getattr(compiled, name).__module__ == "tardis_machine.exchanges._feeding_compiled"
        assert getattr(python, name).__module__ == "tardis_machine.exchanges._feeding"


@BOTH
def test_lines_become_one_array_and_their_clocks(module: ModuleType) -> None:
    assert module.join_lines(recorded(b'{"a":1}', b"[]", '"é"'.encode())) == (
        [f"2020-02-01T00:00:0{n}.123456Z" for n in range(3)],
        '[{"a":1},[],"é"]'.encode(),
    )


@pytest.mark.parametrize(
    "lines",
    [
        recorded(b"{}"),
        tuple(recorded(b"{}", b"{}")),
        [*recorded(b"{}"), b"", *recorded(b"{}")],
        [b""],
        [b"short"],
        recorded(b""),
        [recorded(b"")[0][:-1]],
        [b"no time but something that is long enough"],
        ["2020-02-01T00:00:00.123456éé {}".encode()],
        [bytearray(recorded(b"{}")[0])],
        recorded(*(b"%d" % n for n in range(3_000))),
    ],
)
def test_lines_of_any_form(lines: Any) -> None:
    assert compiled.join_lines(lines) == python.join_lines(lines)


@BOTH
def test_a_time_that_is_no_text_is_refused(module: ModuleType) -> None:
    with pytest.raises(UnicodeDecodeError):
        module.join_lines([b"\xff" * 40])


class Mappers:
    """Two of them, and what they were given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def calls(self) -> list[Call]:
        return [(self.is_even, self.to_list), (self.is_any, self.generate)]

    def is_even(self, message: Any) -> bool:
        self.seen.append(("even", message))
        return bool(message % 2 == 0)

    def to_list(self, message: Any, clock: str) -> list[Message]:
        return [Disconnect(f"list {message}", clock)]

    def is_any(self, message: Any) -> bool:
        self.seen.append(("any", message))
        return bool(message != 5)

    def generate(self, message: Any, clock: str) -> Iterator[Message]:
        yield Disconnect(f"first {message}", clock)
        if message == 3:
            raise KeyError("three")
        yield Disconnect(f"second {message}", clock)


@BOTH
def test_messages_are_mapped_one_after_the_other(module: ModuleType) -> None:
    mappers, out = Mappers(), [Disconnect("before", CLOCK)]
    assert module.feed_messages(mappers.calls(), [CLOCK] * 4, [7, 2, 5, 1], 1, out) == (4, None)
    assert mappers.seen == [(who, message) for message in (2, 5, 1) for who in ("even", "any")]
    assert [message.exchange for message in out] == ["before", "list 2", "first 2", "second 2", "first 1", "second 1"]
    assert {message.local_timestamp for message in out} == {CLOCK}


@BOTH
def test_a_lost_connection_stops_it(module: ModuleType) -> None:
    out: list[Message] = []
    assert module.feed_messages(Mappers().calls(), [CLOCK, None, CLOCK], [1, None, 1], 0, out) == (1, None)
    assert module.feed_messages(Mappers().calls(), [CLOCK, None, CLOCK], [1, None, 1], 1, out) == (1, None)
    assert module.feed_messages(Mappers().calls(), [CLOCK], [], 0, out) == (0, None)
    assert len(out) == 2


@BOTH
@pytest.mark.parametrize(("message", "mistake"), [(3, KeyError), ("text", TypeError)])
def test_what_a_mapper_raises_is_told_with_its_place_and_leaves_what_was_emitted(
    module: ModuleType, message: Any, mistake: type[Exception]
) -> None:
    out: list[Message] = []
    place, error = module.feed_messages(Mappers().calls(), [CLOCK] * 3, [1, message, 2], 0, out)
    assert (place, type(error)) == (1, mistake)
    assert len(out) == (3 if message == 3 else 2)


@BOTH
def test_what_no_mapper_may_raise_goes_through(module: ModuleType) -> None:
    def interrupt(message: Any) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.feed_messages([(interrupt, interrupt)], [CLOCK], [1], 0, [])
