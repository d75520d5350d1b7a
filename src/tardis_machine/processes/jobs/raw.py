"""Recorded lines as they are: one answer, or a client for each request, all of them in step.

Invariant: clients of one session never drift apart by more than a few lines.
"""

from __future__ import annotations

from ...pipeline.frames import LINES_TO_BYTES
from ...pipeline.merger import Merger
from ...pipeline.replay import RawReplay
from ...pipeline.request import RawRequest
from ...recorded_line import KEY_LENGTH, clock_of
from .answer import instant_us
from .contract import Chunk, Output, ReplaySpec
from .steps import SteppedJob

__all__ = ["RawJob"]

# What is read in a step: short enough that others wait little, long enough that its costs vanish.
STEP_BYTES = 256 * 1024
# What each client is sent before another of its session has its turn.
IN_STEP_BYTES = 16 * 1024


class RawJob(SteppedJob):
    """Runs a ReplaySpec of raw requests."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._replays = [RawReplay(request) for request in spec.requests if isinstance(request, RawRequest)]
        super().__init__(spec, [replay.periods() for replay in self._replays])
        # Items are (request, line).
        self._merger: Merger[tuple[int, bytes]] | None = Merger(len(self._replays)) if len(self._replays) > 1 else None
        self._to_bytes = LINES_TO_BYTES[spec.form]

    def _can_advance(self) -> bool:
        return all(self._queues[request].ready for request in self._wanted())

    def _wanted(self) -> list[int]:
        """The requests that must be read before anything else can leave."""
        return [0] if self._merger is None else self._merger.hungry

    def _advance(self, outputs: list[Output]) -> bool:
        if self._merger is None:
            if lines := self._read(0, STEP_BYTES, outputs):
                self._answer.add(self._to_bytes(lines), len(lines), _reached_us(lines))
            return self._queues[0].exhausted
        for request in self._wanted():
            lines = [line for line in self._read(request, IN_STEP_BYTES, outputs) if line]
            keys = [str(line[:KEY_LENGTH], "ascii") for line in lines]
            self._merger.push(request, keys, [(request, line) for line in lines])
            if self._queues[request].exhausted:
                self._merger.finish(request)
        by_request: dict[int, list[bytes]] = {}
        for request, line in self._merger.pop():
            by_request.setdefault(request, []).append(line)
        for request, lines in by_request.items():
            self._answer.send(Chunk(self._to_bytes(lines), len(lines), request, _reached_us(lines)), outputs)
        return self._merger.finished

    def _read(self, request: int, size_bytes: int, outputs: list[Output]) -> list[bytes]:
        queue = self._queues[request]
        queue.open(outputs)
        if not queue.has_lines:
            return []
        lines = queue.take(size_bytes)
        return self._replays[request].feed(queue.period, lines)


def _reached_us(lines: list[bytes]) -> int:
    """The time of the last line that has one."""
    return next((instant_us(clock_of(line)) for line in reversed(lines) if line), 0)
