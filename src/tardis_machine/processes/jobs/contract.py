"""What a job is asked to do, and what comes of it.

Invariant: all of this is pickled between the server and its children, and holds no secret but the key that history is asked with and the
credentials of exchanges.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import TardisMachineError, WorkerError
from ...exchanges import Credentials
from ...history.slice import Slice
from ...pipeline.compression import Compression
from ...pipeline.faults import BadDay
from ...pipeline.frames import Form
from ...pipeline.request import NormalizedRequest, RawRequest, SinceRequest, StreamRequest
from ...realtime.backoff import Timings

if TYPE_CHECKING:
    from ...bronze.bundle import Bundle
    from ...bronze.encoding import BronzeEncoder
    from ...bronze.event import Event

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_WINDOW",
    "MOST_PARTS",
    "Chunk",
    "Done",
    "Events",
    "Failed",
    "Greeting",
    "Hearing",
    "LiveSpec",
    "Moment",
    "News",
    "Output",
    "PackedEvents",
    "PublishSpec",
    "ReplaySpec",
    "SinceSpec",
    "SliceDamaged",
    "SliceOpened",
    "ViewSpec",
    "to_failed",
]


CHUNK_BYTES = 256 * 1024
"""What a chunk has, about: large enough that its costs vanish, small enough that a slow reader holds little."""
CHUNK_WINDOW = 4
"""Chunks that may be on their way to a client before its job pauses, so that neither waits for the other."""
MOST_PARTS = 16
"""Jobs that make one answer: each has a chunk of its own at least."""


Moment = tuple[int, int, int, int]
"""What a chunk has of one instant: the local time in microseconds, where its bytes end, how many messages they are, and whose."""


class PublishSpec(msgspec.Struct, frozen=True):
    """How the events of this request are to be encoded."""

    session_id: str
    origin: str
    meta: dict[str, str]
    source: str
    book_changes: str = "message"
    include: frozenset[str] | None = None

    def make_encoder(self) -> BronzeEncoder:
        """One for all of the session's messages."""
        # Nothing of the buses is loaded where none is on.
        from ...bronze.encoding import BronzeEncoder

        return BronzeEncoder(**msgspec.structs.asdict(self))


class ReplaySpec(msgspec.Struct, frozen=True):
    """A replay to be run.

    Several normalized requests are merged into one answer; several raw ones have a client each, and go on in step.
    """

    requests: Sequence[RawRequest] | Sequence[NormalizedRequest]
    form: Form
    compression: Compression | None = None
    publish: PublishSpec | None = None
    window: int = CHUNK_WINDOW
    """Chunks that may be on their way at first; `grant` adds to them."""
    is_cut: bool = False
    """Whether chunks say where they can be cut in time; so they do, too, after the command `cut`."""
    is_marked: bool = False
    """Whether the chunks of its one request have marks, to be merged with those of others."""
    opening_us: int | None = None
    """The answer begins at this local time, with all that holds then; what is read before it only leads up to it."""
    faults: BadDay | None = None

    @property
    def is_raw(self) -> bool:
        """Whether recorded lines are wanted, as they are."""
        return isinstance(self.requests[0], RawRequest)

    @property
    def is_divisible(self) -> bool:
        """Whether each request may be a job of its own, of which the bytes are merged: one stream of events or of compressed bytes, and
        what happens to all requests alike, can't be made by several."""
        is_plain = self.publish is None and self.compression is None and self.faults is None and self.opening_us is None
        return is_plain and 1 < len(self.requests) <= MOST_PARTS and not self.is_raw and self.form in ("lines", "frames")


class LiveSpec(msgspec.Struct, frozen=True):
    """A live stream to be kept up until it is stopped, for all clients that ask for the same."""

    request: StreamRequest
    """What is heard: its exchange, its symbols, and what its data types are made of. What clients see is in their views."""
    publish: PublishSpec | None = None
    urls: Mapping[str, str] = {}
    timings: Timings = Timings()
    record_dir: str | None = None
    """Where raw messages are kept, as the cache of a later replay."""
    credentials: Credentials = Credentials()
    """Of the exchange's account, where one was given."""


class SinceSpec(msgspec.Struct, frozen=True):
    """Replays to be run, merged, that go on live until they are stopped."""

    requests: Sequence[SinceRequest]
    form: Form
    api_url: str
    api_key: str | None
    cache_dir: str | None
    record_dir: str | None = None
    """Where live data is kept as heard, and looked for before upstream is asked."""
    history: Mapping[str, Any] = {}
    """What else HistoryClient takes."""
    publish: PublishSpec | None = None
    """What history tells."""
    publish_live: PublishSpec | None = None
    urls: Mapping[str, str] = {}
    timings: Timings = Timings()
    credentials: Mapping[str, str] = {}
    """Of the accounts of all exchanges that are asked for."""


class ViewSpec(msgspec.Struct, frozen=True):
    """What some clients of a stream see, and how it is written."""

    request: StreamRequest
    form: Form

    @property
    def key(self) -> tuple[tuple[str, ...], bool, bool, Form]:
        """The same for all clients of a stream that get the same bytes."""
        asked = self.request
        return tuple(asked.data_types), asked.with_disconnect_messages, asked.with_error_messages, self.form


class Chunk(msgspec.Struct, gc=False):
    """Bytes for a client; none where the form is "none"."""

    data: bytes | memoryview
    messages: int
    """How many messages the bytes are, or would be."""
    request: int = 0
    """Which of the job's requests it belongs to, where each has a client of its own."""
    reached_us: int = 0
    """In a replay, the local time of its last message; 0 where that has none."""
    moments: Sequence[Moment] = ()
    """In a replay that is cut, its instants in the order in which they are to be sent."""
    marks: bytes | memoryview = b""
    """Of one that is to be merged with others, the marks of its bytes."""


class Events(msgspec.Struct, gc=False):
    """Events for the publisher."""

    events: Sequence[Event]

    def __reduce__(self) -> tuple[type[Events], tuple[Bundle]]:
        # Objects by themselves take three times as long to cross.
        from ...bronze.bundle import Bundle

        return Events, (Bundle.of(self.events),)


class Greeting(msgspec.Struct, gc=False):
    """What a client has to know that joined a view which others already have; from here on it gets their chunks."""

    client: int
    data: bytes
    messages: int


class Hearing(msgspec.Struct, gc=False):
    """Whether a live stream has all its connections, and each of them brings data."""

    is_complete: bool


class PackedEvents(msgspec.Struct, gc=False):
    """Events as they came: they may wait long for their turn, and take several times the memory once they are objects."""

    payload: bytearray

    def unpack(self) -> Events:
        """The events."""
        events: Events = pickle.loads(self.payload)  # noqa: S301 - from our own child process
        return events


class SliceOpened(msgspec.Struct, gc=False):
    """A slice is being read: the job may be given another."""

    request: int


class SliceDamaged(msgspec.Struct, gc=False):
    """A slice can't be read: the job waits for what is fetched anew instead."""

    request: int
    period: int
    item: Slice
    problem: str


class Done(msgspec.Struct, gc=False):
    """The job is complete."""


class Failed(msgspec.Struct, gc=False):
    """The job can't go on."""

    error: TardisMachineError
    traceback: str = ""
    """Where it happened, when nobody foresaw it."""


News = SliceOpened | SliceDamaged | Hearing
"""What a job tells whoever runs it; it concerns no client."""
Output = Chunk | Events | PackedEvents | Greeting | News | Done | Failed


def to_failed(error: Exception) -> Failed:
    """The end of a job; a fault of our own fails it alone, not whoever else the process serves."""
    if isinstance(error, TardisMachineError):
        return Failed(error)
    fault = WorkerError(f"an internal error ended this request: {type(error).__name__}: {error}")
    return Failed(fault, "".join(format_exception(error)))
