"""Computed messages among the messages they come from.

Invariant: a computed message stands right after the one that caused it; state is kept for each symbol of each exchange, and a
lost connection ends that of its exchange.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import suppress
from typing import overload

from ..messages import Disconnect, Message
from .contract import Computable, Computation
from .data_types import DataTypes, parse_data_types

__all__ = ["Computer", "compute"]

DataTypeNames = Sequence[str | Computable]
"""Data types by name; a Computable stands for itself."""

_Running = dict[str, dict[type[Message], dict[str, tuple[Computation, ...]]]]


class Computer:
    """Computes what was asked for, over any number of batches; picklable between them.

    With `keep_sources`, the messages that come in all come out. Without, those that were not asked for and only served to compute
    others do not. With `reset_on_disconnect` false, a disconnect passes through and changes nothing.

    >>> from tardis_machine.messages import BookChange, BookLevel
    >>> book = BookChange("XBTUSD", "bitmex", True, [BookLevel(99, 5)], [BookLevel(101, 3)], "2024-01-01T00:00:00.000Z", "")
    >>> [message.name for message in Computer(["quote", "book_snapshot_5_1s"]).feed([book])]
    ['quote', 'book_snapshot_5_1s']
    """

    def __init__(
        self, data_types: DataTypes | DataTypeNames, keep_sources: bool = False, reset_on_disconnect: bool = True
    ) -> None:
        asked = data_types if isinstance(data_types, DataTypes) else parse_data_types(data_types)
        self._computables: dict[type[Message], list[Computable]] = {}
        for computable in asked.computables:
            self._computables.setdefault(computable.SOURCE, []).append(computable)
        self._dropped = frozenset() if keep_sources else frozenset(self._computables) - asked.shown
        self._resets = reset_on_disconnect
        # By exchange, type of source and symbol.
        self._running: _Running = {}

    def feed(self, messages: Iterable[Message]) -> list[Message]:
        """The messages of a batch with the computed ones among them."""
        if not self._computables:
            return list(messages)
        out: list[Message] = []
        compute_each(messages, out, self._computables, self._dropped, self._running, self._begin, self._resets)
        return out

    def _begin(self, exchange: str, kind: type[Message], symbol: str) -> tuple[Computation, ...]:
        computations = tuple(computable.begin() for computable in self._computables[kind])
        self._running.setdefault(exchange, {}).setdefault(kind, {})[symbol] = computations
        return computations


def compute_each(
    messages: Iterable[Message],
    out: list[Message],
    computables: Container[type[Message]],
    dropped: Container[type[Message]],
    running: _Running,
    begin: Callable[[str, type[Message], str], tuple[Computation, ...]],
    resets: bool,
) -> None:
    """What `feed` does with each message: `begin` starts what is not running yet."""
    for message in messages:
        kind = type(message)
        if kind not in dropped:
            out.append(message)
        if kind in computables:
            try:
                computations = running[message.exchange][kind][message.symbol]  # type: ignore[union-attr]
            except KeyError:
                computations = begin(message.exchange, kind, message.symbol)  # type: ignore[union-attr]
            for computation in computations:
                computation.update(message, out)
        elif kind is Disconnect and resets:
            running.pop(message.exchange, None)


@overload
def compute(messages: Iterable[Message], data_types: DataTypeNames) -> list[Message]: ...
@overload
def compute(messages: AsyncIterable[Sequence[Message]], data_types: DataTypeNames) -> AsyncIterator[list[Message]]: ...
def compute(
    messages: Iterable[Message] | AsyncIterable[Sequence[Message]], data_types: DataTypeNames
) -> list[Message] | AsyncIterator[list[Message]]:
    """Adds computed messages to normalized ones: to a list, or to batches as `replay_normalized` and `stream_normalized` yield.

    All that comes in comes out, each computed message after the one that caused it. `data_types` names what to compute; names of
    normalized types are allowed, and add nothing.

    >>> from tardis_machine.messages import Trade
    >>> trades = [
    ...     Trade("XBTUSD", "bitmex", "1", 8500, 100, "buy", "2024-01-01T00:00:00.100Z", "2024-01-01T00:00:00.150Z"),
    ...     Trade("XBTUSD", "bitmex", "2", 8501, 50, "sell", "2024-01-01T00:00:00.900Z", "2024-01-01T00:00:00.950Z"),
    ... ]
    >>> bar = compute(trades, ["trade_bar_2ticks"])[-1]
    >>> bar.open, bar.close, bar.volume, bar.buy_volume
    (8500, 8501, 150, 100)

    To batches::

        async for batch in compute(replay_normalized(…, data_types=["book_change"]), ["quote", "book_snapshot_10_1s"]): ...
    """
    computer = Computer(data_types, keep_sources=True)
    if isinstance(messages, AsyncIterable):
        return _compute_batches(messages, computer)
    return computer.feed(messages)


async def _compute_batches(batches: AsyncIterable[Sequence[Message]], computer: Computer) -> AsyncIterator[list[Message]]:
    async for batch in batches:
        yield computer.feed(batch)


# Where it was compiled, the loop runs there.
with suppress(ImportError):
    from .computer_compiled import *  # noqa: F403
