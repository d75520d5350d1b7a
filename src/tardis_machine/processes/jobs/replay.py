"""Replays in one process: slices in, finished bytes and events out, a step of each replay in turn.

Invariant: no I/O but reading a slice's file, and no step is long. A replay whose client is slow has no chunks left to send and costs
nothing.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any, Protocol

from ...history.slice import Slice
from ..worker import serve
from . import Put
from .contract import Done, Failed, Output, ReplaySpec, to_failed
from .normalized import NormalizedJob
from .raw import RawJob

__all__ = ["ReplayJob", "ReplayJobs", "main", "make_job"]


class ReplayJob(Protocol):
    """Runs a ReplaySpec: told by its methods what has come, and to `step` while it is `runnable`."""

    def add_slice(self, request: int, period: int, item: Slice) -> None:
        """The next slice of a request."""

    def replace_slice(self, request: int, period: int, items: Sequence[Slice]) -> None:
        """What was fetched anew for a slice that was damaged."""

    def end_input(self, request: int) -> None:
        """A request has no more slices."""

    def grant(self, chunks: int) -> None:
        """The client took this many chunks."""

    @property
    def runnable(self) -> bool:
        """Whether `step` can do something now."""

    def step(self) -> list[Output]:
        """A little work, and what came of it."""


def make_job(spec: ReplaySpec) -> ReplayJob:
    """The job that does what is asked for."""
    return RawJob(spec) if spec.is_raw else NormalizedJob(spec)


class ReplayJobs:
    """See Jobs. Steps run on the event loop, between which commands are heard."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._jobs: dict[int, ReplayJob] = {}
        self._is_paused = False
        # Whether `_step` is about to be called.
        self._is_scheduled = False

    def obey(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        """See Jobs."""
        if name == "start":
            [spec] = arguments
            try:
                self._jobs[number] = make_job(spec)
            except Exception as error:
                self._put(number, to_failed(error))
        elif name == "cancel":
            self._forget(number)
        elif number in self._jobs:
            getattr(self._jobs[number], name)(*arguments)
        self._schedule()

    def pause(self) -> None:
        """See Jobs."""
        self._is_paused = True

    def resume(self) -> None:
        """See Jobs."""
        self._is_paused = False
        self._schedule()

    async def wait(self) -> None:
        """See Jobs: nothing goes on after it was cancelled."""

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_paused and any(job.runnable for job in self._jobs.values()):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._is_scheduled = False
        for number, job in list(self._jobs.items()):
            if job.runnable and not self._is_paused:
                for output in job.step():
                    self._put(number, output)
                    if isinstance(output, (Done, Failed)):
                        self._forget(number)
        self._schedule()

    def _forget(self, number: int) -> None:
        if self._jobs.pop(number, None) is not None:
            gc.collect()  # in a worker, nothing else does


def main() -> None:
    """A child process that runs replays."""
    serve(ReplayJobs)
