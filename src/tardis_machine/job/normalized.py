"""Normalized requests as one answer, by one worker or by two that take turns.

Parsing and encoding need no state, mapping does. So two workers are given the same slices and cut them alike into pieces; each
parses its own pieces ahead, waits for the state that the other's last piece left, maps, hands the state on, and encodes.

Invariant: the answer is the same however many take turns, as pieces are cut by the slices alone and the state is all that mapping
depends on.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..frames import to_json_frames, to_json_lines
from ..merger import Merger
from ..messages import Disconnect, Message
from ..normalizer import Decoded
from ..replays import NormalizedReplay
from ..request import NormalizedRequest
from .contract import Baton, Events, JobSpec, Output, PublishSpec, TurnDone
from .slices import Cut
from .steps import SteppedJob

if TYPE_CHECKING:
    from ..eventbus.encoding import BronzeEncoder

__all__ = ["NormalizedJob"]

# What is parsed before it is mapped should stay in the processor's cache; handing over should cost little beside it.
PIECE_BYTES = 256 * 1024
LEAST_SHARE_BYTES = 16 * 1024


class Piece(NamedTuple):
    """Lines of the same span of time of all requests that have some."""

    parts: list[tuple[int, Cut, Decoded | None]]
    """The request, its lines, and what they hold where that was parsed ahead."""
    ends_turn: bool


class NormalizedJob(SteppedJob):
    """Runs a JobSpec of normalized requests."""

    def __init__(self, spec: JobSpec) -> None:
        requests = [request for request in spec.requests if isinstance(request, NormalizedRequest)]
        publishing = spec.publish is not None
        self._steps = [NormalizedReplay(request, publishing) for request in requests]
        super().__init__(spec, [steps.segments() for steps in self._steps])
        self._to_bytes = to_json_frames if spec.form == "frames" else to_json_lines
        self._encoder = None if spec.publish is None else _make_encoder(spec.publish)
        # Their disconnects are published, but the client did not ask to see them.
        self._discreet = frozenset(
            request.exchange for request in requests if publishing and not request.with_disconnect_messages
        )
        self._place, self._places = spec.place, spec.places
        # Whose turn the next piece to be cut is of, and how much was cut for that turn.
        self._turn_of = 0
        self._turn_bytes = 0
        # Of this one's pieces, the next; None where it is not cut yet.
        self._piece: Piece | None = None
        # What was mapped and is still to be encoded: only after the state is on its way.
        self._mapped: list[Message] | None = None
        # Whether the state is here: nothing can be mapped without it.
        self._has_state = spec.place == 0

    def take_baton(self, state: bytes) -> None:
        """It is this one's turn, from this state on."""
        self._steps, self._encoder = pickle.loads(state)  # noqa: S301 - from our own worker
        self._has_state = True

    def _can_advance(self) -> bool:
        if self._mapped is not None:
            return True
        return self._has_state if self._piece is not None else all(queue.ready for queue in self._queues)

    def _advance(self, outputs: list[Output]) -> bool:
        if self._mapped is not None:
            self._end_turn(self._mapped, outputs)
        elif self._piece is not None:
            self._perform(self._piece, outputs)
        else:
            return self._prepare(outputs)
        return False

    def _prepare(self, outputs: list[Output]) -> bool:
        """Cuts the next piece of this one's own, past those of others; whether there is none and the end is this one's to tell."""
        for queue in self._queues:
            queue.open(outputs)
        if all(queue.exhausted for queue in self._queues):
            if self._turn_of != self._place:
                self._ended = True  # the other one tells
            return self._turn_of == self._place
        if not all(queue.has_lines or queue.exhausted for queue in self._queues):
            return False
        is_own = self._turn_of == self._place
        parts = self._cut()
        ends_turn = self._places > 1 and self._turn_bytes >= PIECE_BYTES
        if ends_turn:
            self._turn_of, self._turn_bytes = (self._turn_of + 1) % self._places, 0
        if is_own:
            # What can be mapped at once is parsed a little at a time then, which is faster.
            ahead = not self._has_state
            self._piece = Piece(
                [(stream, cut, self._steps[stream].decode(cut.segment, cut.lines()) if ahead else None) for stream, cut in parts],
                ends_turn,
            )
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

    def _perform(self, piece: Piece, outputs: list[Output]) -> None:
        batches = [
            self._steps[stream].feed(cut.segment, cut.lines())
            if decoded is None
            else self._steps[stream].feed_decoded(cut.segment, decoded)
            for stream, cut, decoded in piece.parts
        ]
        messages = batches[0] if len(batches) == 1 else _merged(batches)
        if self._encoder is not None and messages:
            outputs.append(Events(self._encoder.encode(messages)))
        self._piece = None
        if piece.ends_turn:
            outputs.append(Baton(pickle.dumps((self._steps, self._encoder), pickle.HIGHEST_PROTOCOL)))
            self._has_state = False
            self._mapped = messages
        else:
            self._add(messages)

    def _end_turn(self, messages: list[Message], outputs: list[Output]) -> None:
        self._add(messages)
        self._mapped = None
        self._answer.flush(outputs)
        outputs.append(TurnDone())

    def _add(self, messages: list[Message]) -> None:
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


def _make_encoder(publish: PublishSpec) -> BronzeEncoder:
    # Nothing of the buses is loaded where none is on.
    from ..eventbus.encoding import BronzeEncoder

    return BronzeEncoder(**msgspec.structs.asdict(publish))
