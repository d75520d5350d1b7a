"""Replays of one request each, which run side by side, as one answer.

Invariant: what is sent, and in which order, is what one job would make of all requests; it never depends on which of them is faster.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from ..errors import TardisMachineError
from ..pipeline.marks import MARK, MarkedSource, merge_marked
from .jobs.contract import Chunk, Moment
from .started_replay import StartedReplay
from .steering import Steering

__all__ = ["MergedReplay"]


class MergedReplay:
    """The whole answer. Its `parts` have marks; `is_cut` is whether chunks say where they can be cut in time."""

    def __init__(self, parts: Sequence[StartedReplay], is_cut: bool) -> None:
        self._parts = parts
        self._is_cut = is_cut

    @property
    def steering(self) -> Steering:
        """What others may do to all of them."""
        return Steering(self._command, self._fail)

    def _command(self, name: str) -> None:
        # Marks say all that it takes.
        assert name == "cut"
        self._is_cut = True

    def _fail(self, error: TardisMachineError) -> None:
        for part in self._parts:
            part.steering.fail(error)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """All of it."""
        sources = [MarkedSource() for _ in self._parts]
        while any(source.is_open or not source.is_empty for source in sources):
            # All of them run meanwhile.
            for source, part in zip(sources, self._parts, strict=True):
                if source.is_open and source.is_empty:
                    chunk = await anext(part, None)
                    if chunk is None:
                        source.is_open = False
                    else:
                        assert isinstance(chunk, Chunk)
                        source.give(chunk.data, chunk.marks)
            data, marks, messages, reached_us = merge_marked(sources)
            if data:
                yield Chunk(data, messages, reached_us=reached_us, moments=_to_moments(marks) if self._is_cut else ())


def _to_moments(marks: bytes) -> list[Moment]:
    moments: list[Moment] = []
    end = 0
    for instant_us, size, messages in MARK.iter_unpack(marks):
        if messages:
            end += size
            moments.append((instant_us, end, messages, 0))
    return moments
