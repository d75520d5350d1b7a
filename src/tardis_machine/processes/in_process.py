"""Jobs on the server's own event loop: `--workers 0`, for debugging.

Invariant: a job is told the same commands as in a child process, and its outputs take the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .jobs import Jobs, Put
from .jobs.contract import Output
from .output_queue import OutputSink

__all__ = ["InProcess"]


class InProcess:
    """An Executor."""

    pid = None

    def __init__(self, make_jobs: Callable[[Put], Jobs]) -> None:
        self.queues: dict[int, OutputSink] = {}
        self._jobs = make_jobs(self._put)

    async def open(self) -> None:
        """There is nothing to open."""

    def attach(self, job: int, queue: OutputSink) -> None:
        """See Executor."""
        self.queues[job] = queue

    def _put(self, job: int, output: Output) -> None:
        if job in self.queues:
            self.queues[job].put(output)

    def command(self, job: int, name: str, *arguments: Any) -> None:
        """See Executor."""
        self._jobs.obey(job, name, arguments)

    def pause(self) -> None:
        """See Executor."""
        self._jobs.pause()

    def resume(self) -> None:
        """See Executor."""
        self._jobs.resume()

    def close(self) -> None:
        """See Executor: those that still run fail with whoever runs them."""

    async def wait(self) -> int:
        """See Executor."""
        await self._jobs.wait()
        return 0
