"""Replays that go on live, each in a process of its own (ADR 17).

Invariant: a process lives as long as its request, and no longer. `stop` has those that are live end with all that they heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from ..errors import BusyError, WorkerError
from .child import ChildProcess
from .in_process import InProcess
from .jobs import since
from .jobs.contract import Chunk, Events, SinceSpec
from .output_queue import OutputQueue
from .runner import Executor, RunningJob

__all__ = ["SincePool"]

_JOB = 1


class SincePool:
    """At most `most` of them. `in_process` runs them on this event loop."""

    def __init__(self, *, in_process: bool = False, most: int | None = None) -> None:
        self._in_process = in_process
        self._most = most
        # Those that run, and what is done when each of them has ended.
        self._running: dict[RunningJob, asyncio.Event] = {}
        self._executors: set[Executor] = set()

    @property
    def pids(self) -> list[int]:
        """The processes in use."""
        return [executor.pid for executor in self._executors if executor.pid is not None]

    async def run(self, spec: SinceSpec) -> AsyncGenerator[Chunk | Events, None]:
        """What comes of requests, in order, until nobody wants more or the pool is stopped. Whoever takes it may take its time."""
        if self._most is not None and len(self._running) >= self._most:
            raise BusyError(
                f"max-live-requests: {self._most} live requests are running, and no more are allowed; try again later"
            )
        try:
            executor: Executor = InProcess(since.SinceJobs) if self._in_process else ChildProcess(since.__name__)
        except OSError as error:
            raise WorkerError(f"a live process can't be started: {error.strerror}") from error
        self._executors.add(executor)
        ended = asyncio.Event()
        job = RunningJob(executor, _JOB, spec, OutputQueue(executor))
        try:
            await executor.open()
            with job:
                self._running[job] = ended
                async for output in job:
                    yield output
        finally:
            self._running.pop(job, None)
            ended.set()
            executor.close()
            await executor.wait()
            self._executors.discard(executor)

    async def stop(self, timeout_s: float) -> None:
        """Hears no more, and returns when all that was heard is with clients and publisher; after the time-out, the rest is lost."""
        endings = [asyncio.create_task(ended.wait()) for ended in self._running.values()]
        for job in self._running:
            job.command("stop")
        if endings:
            _, late = await asyncio.wait(endings, timeout=timeout_s)
            for task in late:
                task.cancel()
