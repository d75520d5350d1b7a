"""One request being replayed: slices in, finished bytes and events out, a step at a time.

Invariant: no I/O but reading a slice's file, and no step is long, so that a worker can serve many jobs in turn. The same object
runs in a worker process and, for debugging, inside the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .compression import Compression, compressor
from .errors import SliceError, TardisMachineError, WorkerError
from .frames import to_json_frames, to_json_lines, to_raw_frames, to_raw_lines
from .history.reader import read_lines
from .history.slice import Slice
from .merger import Merger, merge_key
from .messages import Disconnect, Message
from .replays import LINES_IN_BATCH, NormalizedReplay, RawReplay, Segment
from .request import NormalizedRequest, RawRequest

if TYPE_CHECKING:
    from .eventbus.contract import Event
    from .eventbus.encoding import BronzeEncoder

__all__ = ["SLICE_WINDOW", "Job", "JobSpec", "Output", "PublishSpec", "to_failed"]

# Large enough that a chunk's costs vanish, small enough that a slow reader holds little.
CHUNK_BYTES = 256 * 1024
# Chunks that may be on their way to the client before the job pauses.
CHUNK_WINDOW = 4
# Slices that may wait in the worker for each request.
SLICE_WINDOW = 3
# Lines of each connection that are sent before another of its session has its turn.
LINES_IN_STEP = 100


class PublishSpec(msgspec.Struct, frozen=True):
    """How the events of this request are to be encoded."""

    session_id: str
    origin: str
    meta: dict[str, str]
    source: str
    book_changes: str = "message"
    include: frozenset[str] | None = None


class JobSpec(msgspec.Struct, frozen=True):
    """What a worker is asked to do.

    Several normalized requests are merged into one answer; several raw ones have a connection each, and go on in step.
    """

    requests: Sequence[RawRequest] | Sequence[NormalizedRequest]
    form: Literal["lines", "frames"]
    compression: Compression | None = None
    publish: PublishSpec | None = None


class Chunk(msgspec.Struct, gc=False):
    """Bytes for the client."""

    data: bytes | memoryview
    messages: int
    stream: int = 0
    """Which request's client, where each has its own connection."""


class Events(msgspec.Struct, gc=False):
    """Events for the publisher."""

    events: list[Event]


class SliceDone(msgspec.Struct, gc=False):
    """A slice of this request was used up: another may come."""

    stream: int


class SliceDamaged(msgspec.Struct, gc=False):
    """A slice could not be read: the same one is wanted anew, or an error."""

    stream: int
    segment: int
    piece: Slice
    problem: str


class Done(msgspec.Struct, gc=False):
    """The request is complete."""


class Failed(msgspec.Struct, gc=False):
    """The request can't go on."""

    error: TardisMachineError
    traceback: str = ""
    """Where it happened, when nobody foresaw it."""


Output = Chunk | Events | SliceDone | SliceDamaged | Done | Failed


def to_failed(error: Exception) -> Failed:
    """The end of a request; a fault of our own fails it alone, not whoever else the process serves."""
    if isinstance(error, TardisMachineError):
        return Failed(error)
    fault = WorkerError(f"an internal error ended this request: {type(error).__name__}: {error}")
    return Failed(fault, "".join(format_exception(error)))


class _Stream:
    """One request of a job: its slices to come, and its lines not yet used."""

    def __init__(self, steps: RawReplay | NormalizedReplay) -> None:
        self.steps = steps
        self.segments: list[Segment] = steps.segments()
        # Slices to read, each with the index of its segment.
        self.slices: deque[tuple[int, Slice]] = deque()
        # Lines of the slice in use, how many of them are used, and its segment.
        self.lines: list[bytes] = []
        self.position = 0
        self.segment = 0
        # No more slices will come.
        self.ended = False
        # A damaged slice was reported, and its replacement has not come yet.
        self.awaits_replacement = False
        # How many slices at the head are replacements: if one of those is damaged too, there is no point in another.
        self.replacements = 0

    @property
    def has_lines(self) -> bool:
        return self.position < len(self.lines)

    @property
    def ready(self) -> bool:
        """Whether reading it gets on: to lines, to the next slice, or to its end."""
        return self.has_lines or (not self.awaits_replacement and (bool(self.slices) or self.ended))

    @property
    def exhausted(self) -> bool:
        return self.ended and not self.awaits_replacement and not self.slices and not self.has_lines

    def take(self, count: int) -> list[bytes]:
        lines = self.lines[self.position : self.position + count]
        self.position += len(lines)
        if not self.has_lines:
            self.lines, self.position = [], 0
        return lines


class Job:
    """Runs a JobSpec. Driven by `add_slice`, `end_input`, `grant`, and by `step` while it is `runnable`."""

    def __init__(self, spec: JobSpec) -> None:
        publishing = spec.publish is not None
        self._streams = [
            _Stream(RawReplay(request) if isinstance(request, RawRequest) else NormalizedReplay(request, publishing))
            for request in spec.requests
        ]
        self._raw = isinstance(spec.requests[0], RawRequest)
        # Items are messages, or for raw requests (stream, line).
        self._merger: Merger[Any] | None = Merger(len(self._streams)) if len(self._streams) > 1 else None
        # Connections in step should not drift apart by more than a little.
        self._batch_lines = LINES_IN_STEP if self._raw and self._merger is not None else LINES_IN_BATCH
        self._to_bytes = to_json_frames if spec.form == "frames" else to_json_lines
        self._raw_to_bytes = to_raw_frames if spec.form == "frames" else to_raw_lines
        self._encoder = None if spec.publish is None else _make_encoder(spec.publish)
        # Their disconnects are published, but the client did not ask to see them.
        self._discreet = frozenset(
            request.exchange
            for request in spec.requests
            if publishing and isinstance(request, NormalizedRequest) and not request.with_disconnect_messages
        )
        self._compressor = None if spec.compression is None else compressor(spec.compression)
        # Finished bytes that have not left yet.
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._pending_messages = 0
        # Chunks that may still leave before the client has taken some.
        self._window = CHUNK_WINDOW
        # Complete, or failed.
        self._ended = False

    def add_slice(self, stream: int, segment: int, piece: Slice) -> None:
        """The next slice of a request."""
        self._streams[stream].slices.append((segment, piece))

    def replace_slice(self, stream: int, segment: int, pieces: Sequence[Slice]) -> None:
        """What was fetched anew for a slice that was damaged."""
        source = self._streams[stream]
        source.slices.extendleft((segment, piece) for piece in reversed(pieces))
        source.replacements = len(pieces)
        source.awaits_replacement = False

    def end_input(self, stream: int) -> None:
        """A request has no more slices."""
        self._streams[stream].ended = True

    def grant(self, chunks: int) -> None:
        """The client took this many chunks."""
        self._window += chunks

    @property
    def runnable(self) -> bool:
        """Whether `step` can do something now."""
        return not self._ended and self._window > 0 and (self._pending_bytes > 0 or self._can_read())

    def _can_read(self) -> bool:
        return all(self._streams[stream].ready for stream in self._wanted())

    def _wanted(self) -> list[int]:
        """The requests that must be read before anything else can leave."""
        return [0] if self._merger is None else self._merger.hungry

    def step(self) -> list[Output]:
        """A little work, and what came of it."""
        outputs: list[Output] = []
        try:
            self._advance(outputs)
        except Exception as error:
            self._ended = True
            outputs.append(to_failed(error))
        return outputs

    def _advance(self, outputs: list[Output]) -> None:
        if not self._can_read():
            self._flush(outputs)  # while it waits for a slice, what is finished should not wait too
            return
        for stream in self._wanted():
            self._read(stream, outputs)
        if self._merger is not None:
            items = self._merger.pop()
            if self._raw:
                self._emit_in_step(items, outputs)
            else:
                self._emit(items, outputs)
        self._ended = self._merger.finished if self._merger is not None else self._streams[0].exhausted
        if self._ended or self._pending_bytes >= CHUNK_BYTES:
            self._flush(outputs)
        if self._ended:
            outputs.append(Done())

    def _read(self, stream: int, outputs: list[Output]) -> None:
        """One batch of lines of a request, opening its next slice where needed."""
        source = self._streams[stream]
        if not source.has_lines and source.slices:
            segment, piece = source.slices.popleft()
            try:
                source.lines, source.segment = read_lines(piece), segment
            except SliceError as error:
                if source.replacements:
                    raise
                source.awaits_replacement = True
                outputs.append(SliceDamaged(stream, segment, piece, str(error)))
                return
            source.replacements = max(0, source.replacements - 1)
            if not source.replacements:
                outputs.append(SliceDone(stream))
        lines, segment_in_use = source.take(self._batch_lines), source.segments[source.segment]
        if isinstance(source.steps, RawReplay):
            kept = source.steps.feed(segment_in_use, lines)
            if self._merger is not None:
                keys = [str(line[:28], "ascii") for line in kept if line]
                self._merger.push(stream, keys, [(stream, line) for line in kept if line])
            elif kept:
                self._add(self._raw_to_bytes(kept), len(kept))
        else:
            messages = source.steps.feed(segment_in_use, lines)
            if self._merger is not None:
                self._merger.push(stream, [merge_key(message.local_timestamp) for message in messages], messages)
            else:
                self._emit(messages, outputs)
        if self._merger is not None and source.exhausted:
            self._merger.finish(stream)

    def _emit_in_step(self, items: list[tuple[int, bytes]], outputs: list[Output]) -> None:
        lines: dict[int, list[bytes]] = {}
        for stream, line in items:
            lines.setdefault(stream, []).append(line)
        for stream, its_lines in lines.items():
            outputs.append(Chunk(self._raw_to_bytes(its_lines), len(its_lines), stream))
            self._window -= 1

    def _emit(self, messages: list[Message], outputs: list[Output]) -> None:
        if self._encoder is not None and messages:
            outputs.append(Events(self._encoder.encode(messages)))
        if self._discreet:
            messages = [m for m in messages if not (isinstance(m, Disconnect) and m.exchange in self._discreet)]
        if messages:
            self._add(self._to_bytes(messages), len(messages))

    def _add(self, data: bytes, messages: int) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._pending_messages += messages

    def _flush(self, outputs: list[Output]) -> None:
        if not (self._pending or self._ended):
            return
        data = b"".join(self._pending)
        if self._compressor is not None:
            data = self._compressor(data, self._ended)
        if data:
            outputs.append(Chunk(data, self._pending_messages))
            self._window -= 1
        self._pending, self._pending_bytes, self._pending_messages = [], 0, 0


def _make_encoder(publish: PublishSpec) -> BronzeEncoder:
    # Nothing of the buses is loaded where none is on.
    from .eventbus.encoding import BronzeEncoder

    return BronzeEncoder(**msgspec.structs.asdict(publish))
