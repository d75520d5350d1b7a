"""A cache that holds at most so many bytes.

Invariant: the values never exceed the limit together, except for a single value that is larger. The least recently used goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Values by key. The caller says how large each is."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self.total_bytes = 0

    def get(self, key: Hashable) -> V | None:
        """The value, or None if it was dropped or never put."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: V, size_bytes: int) -> None:
        """Adds or replaces a value, then drops others until all fit."""
        if key in self._values:
            self.total_bytes -= self._values.pop(key)[1]
        self._values[key] = (value, size_bytes)
        self.total_bytes += size_bytes
        while self.total_bytes > self._most_bytes and len(self._values) > 1:
            self.total_bytes -= self._values.popitem(last=False)[1][1]
