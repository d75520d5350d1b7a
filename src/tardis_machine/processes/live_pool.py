"""Live requests, each in a process of its own, so that the event loop never maps a message and no request can hurt another.

Invariant: a process serves one request, and ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ..errors import BusyError
from .child import ChildProcess
from .in_process import InProcess
from .jobs import live
from .jobs.contract import Chunk, Events, LiveSpec
from .output_queue import OutputQueue
from .runner import Executor, RunningJob

__all__ = ["LivePool"]

# Of the only job of a process.
_JOB = 1


class LivePool:
    """Live requests that are under way, at most `most` of them. `in_process` runs them on this event loop."""

    def __init__(self, *, in_process: bool = False, most: int | None = None) -> None:
        self._in_process = in_process
        self._most = most
        self._executors: set[Executor] = set()
        # Waits for those on their way out.
        self._endings: set[asyncio.Task[Any]] = set()

    @property
    def pids(self) -> list[int]:
        """The processes in use."""
        return [executor.pid for executor in self._executors if executor.pid is not None]

    async def run(self, spec: LiveSpec, stop: asyncio.Event | None = None) -> AsyncGenerator[Chunk | Events, None]:
        """What comes of live requests, until `stop` is set or nobody takes it any more. Raises where it can't go on."""
        if len(self._executors) == self._most:
            raise BusyError(
                f"max-live-requests: {self._most} live requests are running, and no more are allowed; try again later"
            )
        executor = InProcess(live.LiveJobs) if self._in_process else ChildProcess(live.__name__)
        self._executors.add(executor)
        stopping: asyncio.Task[None] | None = None
        try:
            await executor.open()
            with RunningJob(executor, _JOB, spec, OutputQueue(executor)) as job:
                if stop is not None:
                    stopping = asyncio.create_task(_stop_when(stop, job))
                async for output in job:
                    yield output
        finally:
            if stopping is not None:
                stopping.cancel()
            self._executors.discard(executor)
            executor.close()
            # Nobody waits for its end but `stop`.
            ending = asyncio.create_task(executor.wait())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def stop(self) -> None:
        """Waits for those that are ending."""
        await asyncio.gather(*self._endings, return_exceptions=True)


async def _stop_when(stop: asyncio.Event, job: RunningJob) -> None:
    await stop.wait()
    job.command("stop")
