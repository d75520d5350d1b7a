"""What a mapper or a feed remembers by symbol, for as long as a connection lasts.

Invariant: bounded. Exchanges list few thousand symbols at a time, but options expire and markets close, and a connection may last for
weeks: of more than `MAX_REMEMBERED`, the half that was told first is forgotten, as a new connection forgets all.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, TypeVar

__all__ = ["Remembered", "Seen", "bound_levels", "bound_symbols"]

MAX_REMEMBERED = 100_000
MAX_LEVELS = 2_000_000
"""Of the books of all symbols of a connection, where a mapper has to know them."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Remembered(dict[Key, Value]):
    """A dict to which `[key] = value` and `setdefault` add."""

    def __setitem__(self, key: Key, value: Value) -> None:
        if key not in self:
            bound_symbols(self)
        super().__setitem__(key, value)

    def setdefault(self, key: Key, default: Value) -> Value:
        """What there is, or else the default, which is there from here on."""
        if key not in self:
            self[key] = default
        return self[key]


class Seen(Remembered[Key, None]):
    """A set, of what has begun."""

    def add(self, key: Key) -> None:
        """From here on it is among them."""
        self[key] = None

    def discard(self, key: Key) -> None:
        """From here on it is not."""
        self.pop(key, None)


def bound_symbols(known: dict[Any, Any]) -> None:
    """Makes room for one more, where it is known that there is none of it yet: in a plain dict, which is written to faster."""
    if len(known) >= MAX_REMEMBERED:
        _forget(known, MAX_REMEMBERED // 2)


def bound_levels(levels: dict[Any, Any]) -> None:
    """Forgets the older half of too many, to be called where levels came."""
    if len(levels) > MAX_LEVELS:
        _forget(levels, MAX_LEVELS // 2)


def _forget(known: dict[Any, Any], count: int) -> None:
    for oldest in list(islice(known, count)):
        del known[oldest]
