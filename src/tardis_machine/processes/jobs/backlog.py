"""Normalized messages that wait to be completed with computed ones: a little at a time, as one of them may cause megabytes.

Invariant: what comes out, and in which order, is what computing all at once would give. What comes out at a time is bounded, but for what
a single message causes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from time import perf_counter

from ...messages import BookSnapshot, Message
from ...pipeline.merger import Merger, merge_batches
from ...pipeline.portions import MAX_LEVELS, in_portions
from ...pipeline.replay import NormalizedReplay

__all__ = ["Backlog"]

# How long others may have to wait for what is completed at a time.
MAX_TURN_S = 0.02


class Backlog:
    """The messages of some requests, merged."""

    def __init__(self, replays: Sequence[NormalizedReplay]) -> None:
        self._replays = replays
        self._computes = any(replay.computing_weight for replay in replays)
        # In order, each with the index of its request.
        self._waiting: deque[tuple[int, list[Message]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, batches: Sequence[tuple[int, list[Message]]]) -> None:
        """The next messages of some requests, up to the same time. Only while nothing waits."""
        for request, messages in batches if len(batches) == 1 else self._merged(batches):
            portions = in_portions(messages, self._replays[request].computing_weight)
            self._waiting.extend((request, portion) for portion in portions)

    def _merged(self, batches: Sequence[tuple[int, list[Message]]]) -> Iterator[tuple[int, list[Message]]]:
        """Runs of messages of one request each."""
        if not self._computes:
            # Whose message it is matters to nobody.
            yield batches[0][0], merge_batches([messages for _, messages in batches])
            return
        merger: Merger[tuple[int, Message]] = Merger(len(batches))
        for place, (request, messages) in enumerate(batches):
            # Recorded times are all of six digits, and so sort as text.
            merger.push(place, [message.local_timestamp for message in messages], [(request, message) for message in messages])
            merger.finish(place)
        for request, run in groupby(merger.pop(), itemgetter(0)):
            yield request, [message for _, message in run]

    def take(self) -> list[Message]:
        """What is next, completed: some thousand levels, or what takes some milliseconds."""
        taken: list[Message] = []
        levels = 0
        deadline_s = perf_counter() + MAX_TURN_S
        while self._waiting and levels < MAX_LEVELS and perf_counter() < deadline_s:
            request, messages = self._waiting.popleft()
            replay = self._replays[request]
            if replay.computing_weight:
                messages = replay.compute(messages)
                levels += sum(message.depth for message in messages if type(message) is BookSnapshot)
            levels += len(messages)
            if taken:
                taken += messages
            else:
                taken = messages
        return taken
