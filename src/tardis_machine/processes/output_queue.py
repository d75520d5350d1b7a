"""What a job made and nobody has taken yet.

Invariant: outputs are taken in the order in which they were put. News, which are not for the client, wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from .jobs.contract import Chunk, Done, Events, Failed, Greeting, News, Output, PackedEvents

__all__ = ["MAX_WAITING_BYTES", "OutputQueue", "OutputSink", "Pausable"]

# What may wait for the slowest part of the server (a bus that blocks) before whoever puts is paused.
MAX_WAITING_BYTES = 8 * 1024 * 1024
_RESUME_BYTES = 2 * 1024 * 1024


class Pausable(Protocol):
    """Whoever puts, as a whole."""

    def pause(self) -> None:
        """Puts no more, after what is on its way."""

    def resume(self) -> None:
        """Goes on."""


class OutputSink(Protocol):
    """Where the outputs of a job go."""

    def put(self, output: Output) -> None:
        """An output of the job, or how it ended for whoever knows."""


class OutputQueue:
    """The outputs of one job. Where `source` serves it alone, that is paused while too much waits; a replay has a window instead."""

    def __init__(self, source: Pausable | None = None, on_news: Callable[[News], None] | None = None) -> None:
        self._source = source
        self._on_news = on_news
        self._outputs: deque[Chunk | Events | PackedEvents | Done | Failed] = deque()
        self.waiting_bytes = 0
        """What nobody has taken yet."""
        self._is_paused = False
        # Set when there is something to take.
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: Output) -> None:
        """An output of the job, or how it ended for whoever knows."""
        if isinstance(output, News):
            assert self._on_news is not None
            self._on_news(output)
            return
        assert not isinstance(output, Greeting)
        self._outputs.append(output)
        self.waiting_bytes += _size_bytes(output)
        if self._source is not None and self.waiting_bytes > MAX_WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self._source.pause()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Chunk | Events | Done | Failed:
        """The next output; waits for it."""
        while not self._outputs:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output = self._outputs.popleft()
        self.waiting_bytes -= _size_bytes(output)
        if self._source is not None and self._is_paused and self.waiting_bytes <= _RESUME_BYTES:
            self._is_paused = False
            self._source.resume()
        return output.unpack() if isinstance(output, PackedEvents) else output


def _size_bytes(output: Chunk | Events | PackedEvents | Done | Failed) -> int:
    if isinstance(output, Chunk):
        return len(output.data)
    if isinstance(output, PackedEvents):
        return len(output.payload)
    return sum(len(event.value) for event in output.events) if isinstance(output, Events) else 0
