"""Compiled or not, messages reach the mappers the same; what runs as Python says what is right."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tardis_machine.exchanges._feeding import Call
from tardis_machine.messages import UNSET, BookChange, Disconnect, Message, OptionSummary, Trade, to_json
from tests.compiled_or_not import import_as_python, import_compiled

CLOCK = "2020-02-01T00:00:00.123456Z"

(compiled,), (python,) = (load("tardis_machine.exchanges._feeding") for load in (import_compiled, import_as_python))
BOTH = pytest.mark.parametrize("module", [compiled, python], ids=["compiled", "python"])


def test_what_is_compiled_is_what_is_used() -> None:
    assert compiled.feed_messages.__module__ == "tardis_machine.exchanges._feeding_compiled"
    assert python.feed_messages.__module__ == "tardis_machine.exchanges._feeding"


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


def of_kind(**fields: Any) -> Trade:
    whole = {
        "symbol": "A",
        "exchange": "x",
        "id": "1",
        "price": 1,
        "amount": 1,
        "side": "buy",
        "timestamp": None,
        "local_timestamp": CLOCK,
    }
    return Trade(**(whole | fields))


def change(**fields: Any) -> BookChange:
    whole = {
        "symbol": "A",
        "exchange": "x",
        "is_snapshot": True,
        "bids": [],
        "asks": [],
        "timestamp": None,
        "local_timestamp": CLOCK,
    }
    return BookChange(**(whole | fields))


def option(**fields: Any) -> OptionSummary:
    named = {"symbol": "A-C", "exchange": "x", "underlying_index": "A", "timestamp": None, "local_timestamp": CLOCK}
    return OptionSummary(**(dict.fromkeys(OptionSummary.__struct_fields__, UNSET) | named | fields))


@BOTH
@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (of_kind(symbol=["A"]), "symbol is ['A'], which it can't be"),
        (of_kind(symbol=7), "symbol is 7, which it can't be"),
        (of_kind(id={}), "id is {}, which it can't be"),
        (of_kind(id=True), "id is True, which it can't be"),
        (of_kind(side=["buy"]), "side is ['buy'], which it can't be"),
        (change(symbol={}), "symbol is {}, which it can't be"),
        (change(is_snapshot="yes"), "is_snapshot is 'yes', which it can't be"),
        (option(symbol=7), "symbol is 7, which it can't be"),
        (option(underlying_index=["A"]), "underlying_index is ['A'], which it can't be"),
    ],
)
def test_what_is_no_name_and_no_flag_is_told_and_not_emitted(module: ModuleType, made: Message, problem: str) -> None:
    sound = of_kind()
    out: list[Message] = []
    calls = [(lambda message: True, lambda message, clock: [sound, made, sound])]
    place, error = module.feed_messages(calls, [CLOCK], [1], 0, out)
    assert (place, type(error), str(error)) == (0, TypeError, problem)
    assert out == [sound]


@BOTH
def test_names_may_be_missing_and_ids_may_be_numbers(module: ModuleType) -> None:
    made = [
        of_kind(symbol=None, id=UNSET, side=None),
        of_kind(symbol=UNSET, id=5),
        change(is_snapshot=None),
        option(),
        of_kind(id=1e25),
    ]
    out: list[Message] = []
    assert module.feed_messages([(lambda message: True, lambda message, clock: made)], [CLOCK], [1], 0, out) == (1, None)
    assert out == made
    assert b'"id":1e+25,' in to_json(out[-1])
