"""Recorded lines as they are: one answer, or a connection for each request, all of them in step.

Invariant: connections of one session never drift apart by more than a few lines.
"""

from __future__ import annotations

from ...pipeline.frames import to_raw_frames, to_raw_lines
from ...pipeline.merger import Merger
from ...pipeline.replay import RawReplay
from ...pipeline.request import RawRequest
from .contract import Chunk, JobSpec, Output
from .slices import KEY_BYTES, SliceQueue
from .steps import SteppedJob

__all__ = ["RawJob"]

# Short enough for a step, long enough that its costs vanish.
BATCH_BYTES = 256 * 1024
# What each connection is sent before another of its session has its turn.
IN_STEP_BYTES = 16 * 1024


class RawJob(SteppedJob):
    """Runs a JobSpec of raw requests."""

    def __init__(self, spec: JobSpec) -> None:
        self._steps = [RawReplay(request) for request in spec.requests if isinstance(request, RawRequest)]
        super().__init__(spec, [steps.segments() for steps in self._steps])
        # Items are (stream, line).
        self._merger: Merger[tuple[int, bytes]] | None = Merger(len(self._steps)) if len(self._steps) > 1 else None
        self._to_bytes = to_raw_frames if spec.form == "frames" else to_raw_lines

    def _can_advance(self) -> bool:
        return all(self._queues[stream].ready for stream in self._wanted())

    def _wanted(self) -> list[int]:
        """The requests that must be read before anything else can leave."""
        return [0] if self._merger is None else self._merger.hungry

    def _advance(self, outputs: list[Output]) -> bool:
        if self._merger is None:
            if lines := self._read(0, BATCH_BYTES, outputs):
                self._answer.add(self._to_bytes(lines), len(lines))
            return self._queues[0].exhausted
        for stream in self._wanted():
            lines = [line for line in self._read(stream, IN_STEP_BYTES, outputs) if line]
            self._merger.push(stream, [str(line[:KEY_BYTES], "ascii") for line in lines], [(stream, line) for line in lines])
            if self._queues[stream].exhausted:
                self._merger.finish(stream)
        by_stream: dict[int, list[bytes]] = {}
        for stream, line in self._merger.pop():
            by_stream.setdefault(stream, []).append(line)
        for stream, lines in by_stream.items():
            self._answer.send(Chunk(self._to_bytes(lines), len(lines), stream), outputs)
        return self._merger.finished

    def _read(self, stream: int, size_bytes: int, outputs: list[Output]) -> list[bytes]:
        queue: SliceQueue = self._queues[stream]
        queue.open(outputs)
        if not queue.has_lines:
            return []
        cut = queue.take(size_bytes)
        return self._steps[stream].feed(cut.segment, cut.lines())
