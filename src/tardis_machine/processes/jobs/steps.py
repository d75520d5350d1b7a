"""What every replay does alike: takes its slices, sends its answer, and ends once.

Invariant: whatever goes wrong in a step ends this job with its reason, and no other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn

from ...errors import FaultError
from ...history.slice import Slice
from ...pipeline.replay import Period
from .answer import Answer
from .contract import Done, Output, ReplaySpec, to_failed
from .slices import SliceQueue

__all__ = ["SteppedJob"]


class SteppedJob(ABC):
    """A ReplayJob but for how lines become an answer. `periods` are those of each request."""

    def __init__(self, spec: ReplaySpec, periods: Sequence[list[Period]]) -> None:
        self._queues = [SliceQueue(request, its_periods) for request, its_periods in enumerate(periods)]
        self._answer = Answer(spec)
        # Complete, or failed.
        self._ended = False

    def add_slice(self, request: int, period: int, item: Slice) -> None:
        """The next slice of a request."""
        self._queues[request].add(period, item)

    def replace_slice(self, request: int, period: int, items: Sequence[Slice]) -> None:
        """What was fetched anew for a slice that was damaged."""
        self._queues[request].replace(period, items)

    def end_input(self, request: int) -> None:
        """A request has no more slices."""
        self._queues[request].end()

    def grant(self, chunks: int) -> None:
        """The client took this many chunks."""
        self._answer.grant(chunks)

    def cut(self) -> None:
        """From now on chunks say where they can be cut in time."""
        self._answer.is_cut = True

    @property
    def runnable(self) -> bool:
        """Whether `step` can do something now."""
        return not self._ended and self._answer.may_send and (self._answer.is_pending or self._can_advance())

    @abstractmethod
    def _can_advance(self) -> bool:
        """Whether there is something to read or to map."""

    @abstractmethod
    def _advance(self, outputs: list[Output]) -> bool:
        """Reads and maps a little; whether that was the last of this job's answer."""

    def _close_on_purpose(self, outputs: list[Output]) -> NoReturn:
        """Ends the client's connection, after all that came before, as its request asked for."""
        self._answer.flush(outputs)
        raise FaultError("faults.disconnect: this connection is closed on purpose, as its request asked for")

    def step(self) -> list[Output]:
        """A little work, and what came of it."""
        outputs: list[Output] = []
        try:
            if self._answer.is_full:
                self._answer.flush_full(outputs)  # before more is made
            elif not self._can_advance():
                self._answer.flush(outputs)  # while it waits for a slice, what is finished should not wait too
            elif self._advance(outputs):
                self._ended = True
                self._answer.flush(outputs, is_last=True)
                outputs.append(Done())
            else:
                self._answer.flush_full(outputs)
        except Exception as error:
            self._ended = True
            outputs.append(to_failed(error))
        return outputs
