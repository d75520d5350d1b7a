"""One request being replayed: slices in, finished bytes and events out, a step at a time.

Invariant: no I/O but reading a slice's file, and no step is long, so that a worker can serve many jobs in turn. The same object
runs in a worker process and, for debugging, inside the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...history.slice import Slice
from .contract import JobSpec, Output

__all__ = ["Job", "make_job"]


class Job(Protocol):
    """Runs a JobSpec: told by its methods what has come, and to `step` while it is `runnable`."""

    def add_slice(self, stream: int, segment: int, piece: Slice) -> None:
        """The next slice of a request."""

    def replace_slice(self, stream: int, segment: int, pieces: Sequence[Slice]) -> None:
        """What was fetched anew for a slice that was damaged."""

    def end_input(self, stream: int) -> None:
        """A request has no more slices."""

    def grant(self, chunks: int) -> None:
        """The client took this many chunks."""

    @property
    def runnable(self) -> bool:
        """Whether `step` can do something now."""

    def step(self) -> list[Output]:
        """A little work, and what came of it."""


def make_job(spec: JobSpec) -> Job:
    """The job that does what is asked for."""
    from .normalized import NormalizedJob
    from .raw import RawJob

    return RawJob(spec) if spec.is_raw else NormalizedJob(spec)
