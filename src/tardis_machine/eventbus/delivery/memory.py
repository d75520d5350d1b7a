"""How much memory records take, and how much they may.

Invariant: one group of records fits into an empty budget, however large it is; else it could never be sent.
"""

from __future__ import annotations

__all__ = ["RECORD_MEMORY_BYTES", "MemoryBudget", "memory_of"]

RECORD_MEMORY_BYTES = 250
"""What a record takes in memory beside its value, key and headers; measured, rounded up."""


def memory_of(count: int, size_bytes: int) -> int:
    """What records take, from their number and their size as limits count it."""
    return size_bytes + count * RECORD_MEMORY_BYTES


class MemoryBudget:
    """A limit, and how much of it is used."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        # How much may be used.
        self.limit_bytes = limit_bytes
        # How much is.
        self.used_bytes = 0

    def fits(self, memory_bytes: int) -> bool:
        """Whether there is room for so much more."""
        return self.used_bytes == 0 or self.used_bytes + memory_bytes <= self.limit_bytes

    def take(self, memory_bytes: int) -> None:
        """So much more is used."""
        self.used_bytes += memory_bytes

    def give_back(self, memory_bytes: int) -> None:
        """So much is used no longer."""
        self.used_bytes -= memory_bytes
