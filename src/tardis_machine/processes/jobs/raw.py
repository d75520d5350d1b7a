"""Recorded lines as they are: one answer, or a client for each request, all of them in step.

Invariant: clients of one session never drift apart by more than a few lines.
"""

from __future__ import annotations

from ...pipeline.faults import FaultInjector
from ...pipeline.frames import LINES_TO_BYTES, to_sized_lines
from ...pipeline.marks import instant_us
from ...pipeline.merger import Merger
from ...pipeline.replay import RawReplay
from ...pipeline.request import RawRequest
from ...recorded_line import KEY_LENGTH, clock_of
from .contract import Chunk, Output, ReplaySpec
from .moments import to_moments
from .steps import SteppedJob

__all__ = ["RawJob"]

Recorded = tuple[int, bytes]
"""A line, and the place of the request that it is for."""

# What is read in a step: short enough that others wait little, long enough that its costs vanish.
STEP_BYTES = 256 * 1024
# What each client is sent before another of its session has its turn.
IN_STEP_BYTES = 16 * 1024


class RawJob(SteppedJob):
    """Runs a ReplaySpec of raw requests."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._replays = [RawReplay(request) for request in spec.requests if isinstance(request, RawRequest)]
        super().__init__(spec, [replay.periods() for replay in self._replays])
        self._merger: Merger[Recorded] | None = Merger(len(self._replays)) if len(self._replays) > 1 else None
        self._form = spec.form
        self._to_bytes = LINES_TO_BYTES[spec.form]
        self._opening_us = spec.opening_us or 0
        self._injector: FaultInjector[Recorded] | None = None
        if spec.faults is not None:
            self._injector = FaultInjector(
                spec.faults,
                disconnected=lambda _: [(request, b"") for request in range(len(self._replays))],
                closes_from_us=self._opening_us,
            )
            # Of several clients each line has its own place anyway.
            self._answer.is_cut = spec.is_cut or self._merger is not None
        # Of the last line: one that has no time goes with it.
        self._instant_us = 0

    def _can_advance(self) -> bool:
        return all(self._queues[request].ready for request in self._wanted())

    def _wanted(self) -> list[int]:
        """The requests that must be read before anything else can leave."""
        return [0] if self._merger is None else self._merger.hungry

    def _advance(self, outputs: list[Output]) -> bool:
        if self._merger is None:
            if lines := self._read(0, STEP_BYTES, outputs):
                self._finish([(0, line) for line in lines], outputs) if self._is_timed else self._add(lines)
            is_over = self._queues[0].exhausted
        else:
            self._read_in_step(self._merger, outputs)
            self._finish(self._merger.pop(), outputs)
            is_over = self._merger.finished
        if is_over and self._injector is not None:
            self._add_moments(self._injector.finish())
        return is_over

    @property
    def _is_timed(self) -> bool:
        """Whether something is done with the lines of each instant."""
        return self._answer.is_cut or self._injector is not None

    def _add(self, lines: list[bytes]) -> None:
        self._answer.add(self._to_bytes(lines), len(lines), _reached_us(lines))

    def _finish(self, recorded: list[Recorded], outputs: list[Output]) -> None:
        if not self._is_timed:
            by_request: dict[int, list[bytes]] = {}
            for request, line in recorded:
                by_request.setdefault(request, []).append(line)
            for request, lines in by_request.items():
                self._answer.send(Chunk(self._to_bytes(lines), len(lines), request, _reached_us(lines)), outputs)
            return
        timed = self._with_instants(recorded)
        if self._injector is not None:
            timed = self._injector.apply(timed)
        self._add_moments(timed)
        if self._injector is not None and self._injector.has_closed:
            self._close_on_purpose(outputs)

    def _with_instants(self, recorded: list[Recorded]) -> list[tuple[int, Recorded]]:
        timed: list[tuple[int, Recorded]] = []
        for item in recorded:
            if item[1]:
                self._instant_us = instant_us(clock_of(item[1])) or self._instant_us
            timed.append((self._instant_us, item))
        return timed

    def _add_moments(self, timed: list[tuple[int, Recorded]]) -> None:
        if timed and self._opening_us:
            timed = [item for item in timed if item[0] >= self._opening_us]
        if not timed:
            return
        lines = [line for _, (_, line) in timed]
        if not self._answer.is_cut:
            self._answer.add(self._to_bytes(lines), len(lines), timed[-1][0])
            return
        data, sizes = to_sized_lines(lines, self._form)
        owners = None if self._merger is None else [request for _, (request, _) in timed]
        self._answer.add(data, len(lines), timed[-1][0], to_moments([instant for instant, _ in timed], sizes, owners))

    def _read_in_step(self, merger: Merger[Recorded], outputs: list[Output]) -> None:
        for request in self._wanted():
            lines = [line for line in self._read(request, IN_STEP_BYTES, outputs) if line]
            keys = [str(line[:KEY_LENGTH], "ascii") for line in lines]
            merger.push(request, keys, [(request, line) for line in lines])
            if self._queues[request].exhausted:
                merger.finish(request)

    def _read(self, request: int, size_bytes: int, outputs: list[Output]) -> list[bytes]:
        queue = self._queues[request]
        queue.open(outputs)
        if not queue.has_lines:
            return []
        return self._replays[request].feed(queue.period, queue.take(size_bytes).cut())


def _reached_us(lines: list[bytes]) -> int:
    """The time of the last line that has one."""
    return next((instant_us(clock_of(line)) for line in reversed(lines) if line), 0)
