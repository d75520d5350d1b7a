"""A replay that runs in a worker: its slices are fetched, and its outputs taken, as many at a time as its window allows.

Invariant: a replay that has begun to run is cancelled when whoever started it leaves, and nothing of it is left running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from msgspec.structs import replace

from ..history.client import HistoryClient
from ..pipeline.request import NormalizedRequest, RawRequest
from .chunk_windows import ChunkWindow, ChunkWindows
from .jobs.contract import Chunk, Events, Failed, Hearing, News, ReplaySpec
from .output_queue import OutputQueue
from .runner import Executor, RunningJob
from .slice_sender import SliceSender
from .steering import Steering

__all__ = ["StartedReplay", "started_replay"]


class StartedReplay:
    """Iterates over the outputs of a replay; the job may send another chunk for each that was taken and is done with."""

    def __init__(self, job: RunningJob, queue: OutputQueue, window: ChunkWindow) -> None:
        self._job = job
        self._queue = queue
        self._window = window
        # Whether the output that was taken last is a chunk.
        self._has_chunk = False

    @property
    def steering(self) -> Steering:
        """What others may do to it."""
        return Steering(self._job.command, lambda error: self._queue.put(Failed(error)))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk | Events:
        if self._has_chunk:
            self._job.command("grant", 1 + self._window.grow())
            self._has_chunk = False
        output = await anext(self._job)
        self._has_chunk = isinstance(output, Chunk)
        return output


@asynccontextmanager
async def started_replay(
    worker: Executor, number: int, client: HistoryClient, spec: ReplaySpec, windows: ChunkWindows, asker: Hashable
) -> AsyncGenerator[tuple[StartedReplay, OutputQueue], None]:
    """Runs a replay as a job of this number. `asker` is the same for all that one client has asked for at once."""
    senders: list[SliceSender] = []

    def take(news: News) -> None:
        assert not isinstance(news, Hearing)
        senders[news.request].take(news)

    queue = OutputQueue(on_news=take)
    try:
        with (
            ChunkWindow(windows, spec) as window,
            RunningJob(worker, number, replace(spec, window=window.chunks), queue) as job,
        ):
            requests: Sequence[RawRequest | NormalizedRequest] = spec.requests
            for place, request in enumerate(requests):
                senders.append(SliceSender(client, request, place, job.command, queue.put, asker))
            yield StartedReplay(job, queue, window), queue
    finally:
        # All are cancelled before anything is waited for: this task itself may be cancelled while it waits.
        fetching = [task for sender in senders for task in sender.cancel()]
        await asyncio.gather(*fetching, return_exceptions=True)
