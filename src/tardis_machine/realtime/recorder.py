"""What is heard live, kept as the cache of a later replay: a file for each minute, as the history API would have it.

Invariant: a file under its final name holds all that was heard of its minute by the process that wrote it. A minute in which nothing
was heard, between two in which something was, has a file too, so that a replay asks nobody for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import zstandard

from ..messages import parse_timestamp_us
from ..recorded_line import MINUTE_LENGTH
from ..telemetry import get_logger

__all__ = ["CacheRecorder", "MinuteCache"]

log = get_logger("recorder")

_MINUTE_US = 60_000_000


class MinuteCache(Protocol):
    """Where minutes are kept."""

    @property
    def folder(self) -> Path:
        """Names it in the log."""

    def store(self, start_us: int, minutes: int, encoding: Literal["zst"], data: bytes) -> str:
        """Keeps the compressed lines of some minutes."""


class CacheRecorder:
    """Hears the lines of connections, each of which has a number: `caches` says where those of each are kept.

    Connections with the same cache are recorded together, as history has them.
    """

    def __init__(self, caches: Sequence[MinuteCache]) -> None:
        tapes = {cache: _Tape(cache) for cache in caches}
        # By the number of a connection.
        self._tapes = [tapes[cache] for cache in caches]

    def __call__(self, _exchange: str, connection: int, lines: Sequence[bytes]) -> None:
        self._tapes[connection].add(lines)

    def close(self) -> None:
        """Writes the minutes that are not over yet."""
        for tape in dict.fromkeys(self._tapes):
            tape.close()


class _Tape:
    """What is heard for one cache."""

    def __init__(self, cache: MinuteCache) -> None:
        self._cache = cache
        # The minute at hand as its lines write it, when it began, and what was heard in it.
        self._minute = b""
        self._start_us = 0
        self._lines: list[bytes] = []

    def add(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            # A lost connection has no time of its own; before the first message there was nothing to lose.
            if line and line[:MINUTE_LENGTH] != self._minute:
                self._begin(line[:MINUTE_LENGTH])
            if self._minute:
                self._lines.append(line)

    def _begin(self, minute: bytes) -> None:
        start_us = parse_timestamp_us(f"{minute.decode()}:00.000Z")
        if self._minute:
            lines, self._lines = self._lines, []
            asyncio.get_running_loop().run_in_executor(None, self._store, self._start_us, lines)
            for silent_us in range(self._start_us + _MINUTE_US, start_us, _MINUTE_US):
                self._store(silent_us, [])
        self._minute, self._start_us = minute, start_us

    def close(self) -> None:
        if self._minute:
            self._store(self._start_us, self._lines)
            self._minute, self._lines = b"", []

    def _store(self, start_us: int, lines: Sequence[bytes]) -> None:
        try:
            self._cache.store(start_us, 1, "zst", zstandard.compress(b"".join([line + b"\n" for line in lines])))
        except OSError as error:
            log.error("a recorded minute can't be written", folder=self._cache.folder, error=error.strerror)
