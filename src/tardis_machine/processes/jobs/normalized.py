"""Normalized requests as one answer, merged by local timestamp.

Invariant: what is sent, and in which order, depends on the slices alone, never on when they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...messages import Disconnect, Message
from ...pipeline.frames import MESSAGES_TO_BYTES, READS_ROWS, to_marked_messages, to_sized_messages
from ...pipeline.marks import MARK, instant_us
from ...pipeline.portions import PLAIN_WEIGHT, in_portions
from ...pipeline.replay import NormalizedReplay
from ...pipeline.request import NormalizedRequest
from ...recorded_line import Lines, clock_of
from .backlog import Backlog
from .contract import Events, Output, ReplaySpec
from .moments import to_moments
from .stage import Scene, Stage, with_instants
from .steps import SteppedJob

if TYPE_CHECKING:
    from .arrow_rows import ArrowRows

__all__ = ["NormalizedJob"]

# What is read in a step: short enough that others wait little, long enough that its costs vanish.
STEP_BYTES = 256 * 1024
# Of several requests, what each is read at least.
LEAST_SHARE_BYTES = 16 * 1024
# At most: what comes of it is written while the processor still has it at hand.
MOST_SHARE_BYTES = 64 * 1024
# Of an answer that is merged with others, after how many steps it says how far it came: those wait for it.
STEPS_UNTOLD = 16


class NormalizedJob(SteppedJob):
    """Runs a ReplaySpec of normalized requests."""

    def __init__(self, spec: ReplaySpec) -> None:
        requests = [request for request in spec.requests if isinstance(request, NormalizedRequest)]
        publishing = spec.publish is not None
        is_staged = spec.faults is not None or spec.opening_us is not None
        # Who encodes events or plays faults looks into messages.
        only_written = READS_ROWS and not publishing and not is_staged and spec.form != "arrow"
        # Events are handed over, and written ahead, as many at a time as come of a step: each hand-over costs as much.
        self._most_share_bytes = STEP_BYTES if publishing else MOST_SHARE_BYTES
        self._replays = [NormalizedReplay(request, publishing, only_written) for request in requests]
        super().__init__(spec, [replay.periods() for replay in self._replays])
        self._backlog = Backlog(self._replays)
        # Of the messages that become bytes together, all may be of the heaviest kind.
        self._heaviest = max(PLAIN_WEIGHT, *(replay.heaviest for replay in self._replays))
        self._form = spec.form
        self._rows: ArrowRows | None = None
        if spec.form == "arrow":
            # Nothing of Arrow is loaded where none is asked for.
            from .arrow_rows import ArrowRows

            self._rows = ArrowRows(requests, self._answer)
        else:
            self._to_bytes = MESSAGES_TO_BYTES[spec.form]
        self._encoder = None if spec.publish is None else spec.publish.make_encoder()
        # Exchanges whose disconnects are published, but which the client did not ask to see; what is to suffer alike is seen alike.
        is_alike = spec.faults is not None and spec.faults.published
        self._hides_disconnects_of = frozenset(
            request.exchange for request in requests if publishing and not request.with_disconnect_messages and not is_alike
        )
        self._is_marked = spec.is_marked
        # Since it was told how far this came.
        self._untold_steps = 0
        # The lines that were read last.
        self._read: Sequence[bytes] = ()
        self._stage = Stage(spec, [request.exchange for request in requests]) if is_staged else None

    def _can_advance(self) -> bool:
        return bool(self._backlog) or all(queue.ready for queue in self._queues)

    def _advance(self, outputs: list[Output]) -> bool:
        if not self._backlog:
            for queue in self._queues:
                queue.open(outputs)
            if all(queue.exhausted for queue in self._queues):
                if self._stage is not None:
                    self._perform(self._stage.finish(), outputs)
                if self._rows is not None:
                    self._rows.end()
                return True
            if all(queue.has_lines or queue.exhausted for queue in self._queues):
                taken = self._take()
                self._backlog.put(
                    [(request, self._replays[request].normalize(self._queues[request].period, lines)) for request, lines in taken]
                )
                self._read = taken[0][1]
        if messages := self._backlog.take():
            self._finish(messages, outputs)
        if self._is_marked and not self._backlog:
            self._tell_progress(outputs)
        return False

    def _take(self) -> list[tuple[int, Lines]]:
        """The next lines of all requests, up to the same microsecond."""
        open_queues = [(request, queue) for request, queue in enumerate(self._queues) if queue.has_lines]
        share_bytes = min(max(STEP_BYTES // len(open_queues), LEAST_SHARE_BYTES), self._most_share_bytes)
        if len(open_queues) == 1 and len(self._queues) == 1:
            return [(0, self._queues[0].take(share_bytes))]
        key, first = min((queue.last_key(share_bytes), request) for request, queue in open_queues)
        taken = [(request, queue.take_to(key)) for request, queue in open_queues]
        if not any(lines for _, lines in taken):  # the recorder's clock stepped back
            return [(first, self._queues[first].take(share_bytes))]
        return [(request, lines) for request, lines in taken if lines]

    def _finish(self, messages: list[Message], outputs: list[Output]) -> None:
        visible = messages
        if self._hides_disconnects_of:
            hidden = self._hides_disconnects_of
            visible = [m for m in messages if not (isinstance(m, Disconnect) and m.exchange in hidden)]
        if self._stage is not None:
            self._perform(self._stage.play(messages, visible), outputs)
            return
        self._publish(messages, outputs)
        if self._rows is not None:
            self._rows.add(visible)
            return
        if self._answer.is_cut:
            self._add_moments(with_instants(visible))
            return
        for part in in_portions(visible, self._heaviest):
            reached_us = instant_us(part[-1].local_timestamp)
            if self._is_marked:
                self._answer.add_marked(*to_marked_messages(part, self._form), len(part), reached_us)
            else:
                self._answer.add(self._to_bytes(part), len(part), reached_us)

    def _tell_progress(self, outputs: list[Output]) -> None:
        """Has the others know that nothing comes any more from before what was read last."""
        self._untold_steps += 1
        if self._untold_steps < STEPS_UNTOLD and self._queues[0].has_lines:
            return
        self._untold_steps = 0
        if line := next((line for line in reversed(self._read) if line), b""):
            self._answer.add_marked(b"", MARK.pack(instant_us(clock_of(line)), 0, 0), 0, 0)
            self._answer.flush(outputs)

    def _perform(self, scene: Scene, outputs: list[Output]) -> None:
        """What a stage made of messages."""
        self._publish(scene.published, outputs)
        self._add_moments(scene.shown)
        if self._stage is not None and self._stage.has_closed:
            self._close_on_purpose(outputs)

    def _publish(self, messages: Sequence[Message], outputs: list[Output]) -> None:
        if self._encoder is not None and messages:
            outputs.append(Events(self._encoder.encode(messages)))

    def _add_moments(self, timed: list[tuple[int, Message]]) -> None:
        if self._rows is not None:
            self._rows.add([message for _, message in timed])
            return
        for part in in_portions(timed, self._heaviest):
            messages = [message for _, message in part]
            if not self._answer.is_cut:
                self._answer.add(self._to_bytes(messages), len(part), part[-1][0])
                continue
            data, sizes = to_sized_messages(messages, self._form)
            moments = to_moments([instant for instant, _ in part], sizes)
            self._answer.add(data, len(part), part[-1][0], moments)
