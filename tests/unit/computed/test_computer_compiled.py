"""Compiled or not, every message meets the computations of its own market; what runs as Python says what is right."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.messages import BookChange, Disconnect, Liquidation, Message, Trade
from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.computed.computer") for load in (import_compiled, import_as_python))

# Equal texts that are not the same object come too.
names = st.sampled_from(["a", "b", "ab"]).map(lambda text: "".join(list(text)))
messages = st.one_of(
    st.builds(lambda symbol, exchange: Trade(symbol, exchange, "1", 1, 1, "buy", "t", "t"), names, names),
    st.builds(lambda symbol, exchange: BookChange(symbol, exchange, False, [], [], "t", "t"), names, names),
    st.builds(lambda symbol, exchange: Liquidation(symbol, exchange, "1", 1, 1, "buy", "t", "t"), names, names),
    st.builds(lambda exchange: Disconnect(exchange, "t"), names),
)
kinds = st.sets(st.sampled_from([Trade, BookChange, Liquidation]))


class Noting:
    """A computation that puts out which market's it is, and how much it has seen."""

    def __init__(self, *market: Any) -> None:
        self.market = market
        self.seen = 0

    def update(self, message: Any, out: list[Any]) -> None:
        self.seen += 1
        out.append((self.market, self.seen, message))


def computed_by(module: Any, batches: list[list[Message]], sources: set[Any], dropped: set[Any], resets: bool) -> list[Any]:
    running: dict[str, dict[type[Message], dict[str, tuple[Noting, ...]]]] = {}

    def begin(exchange: str, kind: type[Message], symbol: str) -> tuple[Noting, ...]:
        begun = tuple(Noting(exchange, kind, symbol, number) for number in range(2))
        running.setdefault(exchange, {}).setdefault(kind, {})[symbol] = begun
        return begun

    out: list[Any] = []
    for batch in batches:
        module.compute_each(batch, out, sources, dropped, running, begin, resets)
    return out


def test_the_compiled_one_is_in_use() -> None:
    assert compiled.compute_each.__module__ == "tardis_machine.computed.computer_compiled"
    assert python.compute_each.__module__ == "tardis_machine.computed.computer"


@given(st.lists(st.lists(messages, max_size=8), max_size=3), kinds, kinds, st.booleans())
def test_both_compute_the_same(batches: list[list[Message]], sources: set[Any], dropped: set[Any], resets: bool) -> None:
    given_alike = batches, sources, dropped & sources, resets
    assert computed_by(compiled, *given_alike) == computed_by(python, *given_alike)
