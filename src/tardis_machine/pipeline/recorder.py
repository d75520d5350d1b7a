"""Live messages kept as the cache of a later replay: a file for each minute, in the layout that all clients of the history API share.

Invariant: a file under its final name holds all that was heard of its minute by the process that wrote it. A minute in which nothing
was heard, between two in which something was, has a file too, so that a replay asks nobody for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import zstandard

from ..computed.data_types import parse_data_types
from ..filters import optimize_filters
from ..history.cache import FeedCache
from ..history.slice import MINUTE_US
from ..messages import parse_timestamp_us
from ..telemetry import get_logger
from .normalizer import Normalizer
from .request import StreamRequest
from .stream import plan_connections

__all__ = ["CacheRecorder"]

log = get_logger("recorder")


class CacheRecorder:
    """A Recorder (see `streams`) for some requests; the connections of a request are recorded together, as history has them."""

    def __init__(self, folder: Path | str, requests: Sequence[StreamRequest]) -> None:
        tapes = [_Tape(_cache_of(Path(folder), request)) for request in requests]
        # By the number of a connection.
        self._tapes = [tape for request, tape in zip(requests, tapes, strict=True) for _ in plan_connections(request)]

    def __call__(self, _exchange: str, connection: int, lines: Sequence[bytes]) -> None:
        self._tapes[connection].add(lines)

    def close(self) -> None:
        """Writes the minutes that are not over yet."""
        for tape in dict.fromkeys(self._tapes):
            tape.close()


def _cache_of(folder: Path, request: StreamRequest) -> FeedCache:
    normalizer = Normalizer(request.exchange, parse_data_types(request.data_types).normalizers, realtime=True)
    return FeedCache(folder, request.exchange, tuple(optimize_filters(normalizer.filters(request.symbols or None))))


class _Tape:
    """What is heard for one request."""

    def __init__(self, cache: FeedCache) -> None:
        self._cache = cache
        # The minute at hand as its lines write it, when it began, and what was heard in it.
        self._minute = b""
        self._start_us = 0
        self._lines: list[bytes] = []

    def add(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            # A lost connection has no time of its own; before the first message there was nothing to lose.
            if line and line[:16] != self._minute:
                self._turn_to(line)
            if self._minute:
                self._lines.append(line)

    def _turn_to(self, line: bytes) -> None:
        start_us = parse_timestamp_us(f"{line[:16].decode()}:00.000Z")
        if self._minute:
            lines, self._lines = self._lines, []
            asyncio.get_running_loop().run_in_executor(None, self._store, self._start_us, lines)
            for silent_us in range(self._start_us + MINUTE_US, start_us, MINUTE_US):
                self._store(silent_us, [])
        self._minute, self._start_us = line[:16], start_us

    def close(self) -> None:
        if self._minute:
            self._store(self._start_us, self._lines)
            self._minute, self._lines = b"", []

    def _store(self, start_us: int, lines: Sequence[bytes]) -> None:
        try:
            self._cache.store(start_us, 1, "zst", zstandard.compress(b"".join([line + b"\n" for line in lines])))
        except OSError as error:
            log.error("a recorded minute can't be written", folder=self._cache.folder, error=error.strerror)
