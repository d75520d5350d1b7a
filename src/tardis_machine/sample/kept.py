"""What was made and may be asked for again, within a bound of bytes.

Invariant: the bytes kept never exceed the bound, but for a single value that alone does; what was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Kept"]

V = TypeVar("V")


class Kept(Generic[V]):
    """Values by key, each with its size."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self.total_bytes = 0

    def get(self, key: Hashable) -> V | None:
        """The value, if it is still there."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: V, size_bytes: int) -> None:
        """Keeps a value, and drops what no longer fits."""
        if key in self._values:
            self.total_bytes -= self._values.pop(key)[1]
        self._values[key] = (value, size_bytes)
        self.total_bytes += size_bytes
        while self.total_bytes > self._most_bytes and len(self._values) > 1:
            self.total_bytes -= self._values.popitem(last=False)[1][1]
