"""Runs one job where it is told to, and yields what it makes.

Invariant: a job that was started ends: by itself, or cancelled by whoever leaves early.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

from ..telemetry import get_logger
from .jobs.contract import Chunk, Events, Failed, LiveSpec, ReplaySpec, SinceSpec
from .output_queue import OutputQueue, OutputSink

__all__ = ["Executor", "RunningJob"]

log = get_logger("processes")


class Executor(Protocol):
    """Where jobs run: a child process, or this one."""

    queues: dict[int, OutputSink]
    """Of the jobs that it runs, where their outputs go."""

    def attach(self, job: int, queue: OutputSink) -> None:
        """From now on the outputs of a job go to a queue; where nothing will come any more, that is said there."""

    async def open(self) -> None:
        """Before anything else."""

    @property
    def pid(self) -> int | None:
        """Of the child process."""

    def command(self, job: int, name: str, *arguments: Any) -> None:
        """Tells a job something; see Jobs.obey."""

    def pause(self) -> None:
        """All of its jobs wait."""

    def resume(self) -> None:
        """They go on."""

    def close(self) -> None:
        """Ends it; what is on its way either way is lost."""

    async def wait(self) -> int:
        """Waits until it has ended, which takes seconds at most; the exit code."""


class RunningJob:
    """A job from its start to its end: a context, and within it an iterator over what the job makes, in order.

    The iterator raises what the job failed with. Leaving the context early cancels the job.
    """

    def __init__(self, executor: Executor, number: int, spec: ReplaySpec | LiveSpec | SinceSpec, queue: OutputQueue) -> None:
        self._executor = executor
        self._number = number
        self._spec = spec
        self._queue = queue

    def __enter__(self) -> Self:
        self._executor.attach(self._number, self._queue)
        self.command("start", self._spec)
        return self

    def __exit__(self, *_: object) -> None:
        del self._executor.queues[self._number]
        self.command("cancel")

    def command(self, name: str, *arguments: Any) -> None:
        """Tells the job something."""
        self._executor.command(self._number, name, *arguments)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk | Events:
        output = await self._queue.get()
        if isinstance(output, (Chunk, Events)):
            return output
        if isinstance(output, Failed):
            if output.traceback:
                log.error("a request met an internal error", error=str(output.error), traceback=output.traceback)
            raise output.error
        raise StopAsyncIteration
