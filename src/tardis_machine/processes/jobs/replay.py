"""Replays in one process: slices in, finished bytes and events out, a step of each replay in turn.

Invariant: no I/O but reading a slice's file, and no step is long. A replay whose client is slow has no chunks left to send and costs
nothing.
"""

from __future__ import annotations

import asyncio
import gc
from collections import OrderedDict
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

    def cut(self) -> None:
        """From now on chunks say where they can be cut in time."""

    @property
    def runnable(self) -> bool:
        """Whether `step` can do something now."""

    def step(self) -> list[Output]:
        """A little work, and what came of it."""


def make_job(spec: ReplaySpec) -> ReplayJob:
    """The job that does what is asked for."""
    return RawJob(spec) if spec.is_raw else NormalizedJob(spec)


class ReplayJobs:
    """See Jobs. Steps run on the event loop. Between two of them commands are heard, and whoever waits longest has the next."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._jobs: dict[int, ReplayJob] = {}
        # The jobs that can do something now, in the order of their turns.
        self._turns: OrderedDict[int, None] = OrderedDict()
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
        self._queue(number)

    def pause(self) -> None:
        """See Jobs."""
        self._is_paused = True

    def resume(self) -> None:
        """See Jobs."""
        self._is_paused = False
        self._schedule()

    async def wait(self) -> None:
        """See Jobs: nothing goes on after it was cancelled."""

    def _queue(self, number: int) -> None:
        """Puts a job last in the order of turns, where it can do something; one that has a place keeps it."""
        if number in self._jobs and self._jobs[number].runnable:
            self._turns.setdefault(number)
            self._schedule()

    def _schedule(self) -> None:
        if self._turns and not self._is_scheduled and not self._is_paused:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._is_scheduled = False
        if self._is_paused or not self._turns:
            return
        number, _ = self._turns.popitem(last=False)
        for output in self._jobs[number].step():
            self._put(number, output)
            if isinstance(output, (Done, Failed)):
                self._forget(number)
        self._queue(number)
        self._schedule()

    def _forget(self, number: int) -> None:
        self._turns.pop(number, None)
        if self._jobs.pop(number, None) is not None:
            gc.collect()  # in a worker, nothing else does


def main() -> None:
    """A child process that runs replays."""
    serve(ReplayJobs)
