"""How many chunks replays may have under way to clients that read slowly, all of them together.

Invariant: a replay always has one chunk, so that it goes on. More, up to a whole window, it has only while the memory that is set
aside for all of them lasts; what it took it gives back at its end.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from .jobs.contract import CHUNK_BYTES, CHUNK_WINDOW, ReplaySpec

__all__ = ["ChunkWindow", "ChunkWindows"]


class ChunkWindows:
    """The windows of all replays, within so many bytes; None is no bound."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        # What the windows beyond their first chunks may hold.
        self._lent_bytes = 0

    def lend(self, size_bytes: int) -> bool:
        """Sets memory aside, where there is some."""
        if self._max_bytes is not None and self._lent_bytes + size_bytes > self._max_bytes:
            return False
        self._lent_bytes += size_bytes
        return True

    def take_back(self, size_bytes: int) -> None:
        """What was lent."""
        self._lent_bytes -= size_bytes


class ChunkWindow:
    """The window of one replay, from its start to its end: a context."""

    def __init__(self, windows: ChunkWindows, spec: ReplaySpec) -> None:
        self._windows = windows
        # The events of a chunk's messages wait with it, and have about its size.
        self._chunk_bytes = CHUNK_BYTES * (1 if spec.publish is None else 2)
        self.chunks = 1
        """That may be under way."""

    def __enter__(self) -> Self:
        while self.grow():
            pass
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._windows.take_back((self.chunks - 1) * self._chunk_bytes)

    def grow(self) -> int:
        """How many chunks it got beyond those that it had: 1 or 0."""
        if self.chunks == CHUNK_WINDOW or not self._windows.lend(self._chunk_bytes):
            return 0
        self.chunks += 1
        return 1
