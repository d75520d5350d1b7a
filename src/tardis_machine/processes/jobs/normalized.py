"""Normalized requests as one answer, by one worker or by several that take turns.

All who take turns are given the same slices and cut them alike into pieces; each maps its own pieces, and only skims those of the
others for what later messages depend on.

Invariant: the answer is the same however many take turns, as pieces are cut by the slices alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...messages import Disconnect, Message
from ...pipeline.frames import to_json_frames, to_json_lines
from ...pipeline.merger import Merger
from ...pipeline.replay import NormalizedReplay
from ...pipeline.request import NormalizedRequest
from .contract import Events, JobSpec, Output, TurnDone
from .slices import Cut
from .steps import SteppedJob

__all__ = ["NormalizedJob"]

# Short enough for a step, long enough that its costs vanish.
PIECE_BYTES = 256 * 1024
LEAST_SHARE_BYTES = 16 * 1024


class NormalizedJob(SteppedJob):
    """Runs a JobSpec of normalized requests."""

    def __init__(self, spec: JobSpec) -> None:
        requests = [request for request in spec.requests if isinstance(request, NormalizedRequest)]
        publishing = spec.publish is not None
        self._steps = [NormalizedReplay(request, publishing) for request in requests]
        super().__init__(spec, [steps.segments() for steps in self._steps])
        self._to_bytes = to_json_frames if spec.form == "frames" else to_json_lines
        self._encoder = None if spec.publish is None else spec.publish.make_encoder()
        # Their disconnects are published, but the client did not ask to see them.
        self._discreet = frozenset(
            request.exchange for request in requests if publishing and not request.with_disconnect_messages
        )
        self._place, self._places = spec.place, spec.places
        # Whose turn it is, and how much was cut for it.
        self._turn_of = 0
        self._turn_bytes = 0

    def _can_advance(self) -> bool:
        return all(queue.ready for queue in self._queues)

    def _advance(self, outputs: list[Output]) -> bool:
        for queue in self._queues:
            queue.open(outputs)
        is_own = self._turn_of == self._place
        if all(queue.exhausted for queue in self._queues):
            self._ended = True
            return is_own  # else another one tells
        if not all(queue.has_lines or queue.exhausted for queue in self._queues):
            return False
        parts = self._cut()
        if is_own:
            self._perform(parts, outputs)
        else:
            for stream, cut in parts:
                self._steps[stream].skim(cut.segment, cut.lines())
        if self._places > 1 and self._turn_bytes >= PIECE_BYTES:
            self._turn_of, self._turn_bytes = (self._turn_of + 1) % self._places, 0
            if is_own:
                self._answer.flush(outputs)
                outputs.append(TurnDone())
        return False

    def _cut(self) -> list[tuple[int, Cut]]:
        """The next lines of all requests, up to the same microsecond."""
        open_queues = [(stream, queue) for stream, queue in enumerate(self._queues) if queue.has_lines]
        share_bytes = max(PIECE_BYTES // len(open_queues), LEAST_SHARE_BYTES)
        key, first = min((queue.last_key(share_bytes), stream) for stream, queue in open_queues)
        parts = [(stream, queue.take_to(key)) for stream, queue in open_queues]
        parts = [(stream, cut) for stream, cut in parts if cut.size_bytes]
        if not parts:  # the recorder's clock stepped back
            parts = [(first, self._queues[first].take(share_bytes))]
        self._turn_bytes += sum(cut.size_bytes for _, cut in parts)
        return parts

    def _perform(self, parts: Sequence[tuple[int, Cut]], outputs: list[Output]) -> None:
        batches = [self._steps[stream].feed(cut.segment, cut.lines()) for stream, cut in parts]
        messages = batches[0] if len(batches) == 1 else _merged(batches)
        if self._encoder is not None and messages:
            outputs.append(Events(self._encoder.encode(messages)))
        if self._discreet:
            messages = [m for m in messages if not (isinstance(m, Disconnect) and m.exchange in self._discreet)]
        if messages:
            self._answer.add(self._to_bytes(messages), len(messages))


def _merged(batches: Sequence[list[Message]]) -> list[Message]:
    merger: Merger[Message] = Merger(len(batches))
    for stream, messages in enumerate(batches):
        # Recorded times are all of six digits, and so sort as text.
        merger.push(stream, [message.local_timestamp for message in messages], messages)
        merger.finish(stream)
    return merger.pop()
