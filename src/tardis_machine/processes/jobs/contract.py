"""What a job is asked to do, and what comes of it.

Invariant: all of this is pickled between the server and its workers, and holds no secret but the request's own key.
"""

from __future__ import annotations

from collections.abc import Sequence
from traceback import format_exception
from typing import TYPE_CHECKING, Literal

import msgspec

from ...errors import TardisMachineError, WorkerError
from ...history.slice import Slice
from ...pipeline.compression import Compression
from ...pipeline.replay import NormalizedReplay
from ...pipeline.request import NormalizedRequest, RawRequest

if TYPE_CHECKING:
    from ...bronze.bundle import Bundle
    from ...bronze.encoding import BronzeEncoder
    from ...bronze.event import Event

__all__ = [
    "Chunk",
    "Done",
    "Events",
    "Failed",
    "JobSpec",
    "Output",
    "PublishSpec",
    "SliceDamaged",
    "SliceOpened",
    "TurnDone",
    "to_failed",
]


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


class JobSpec(msgspec.Struct, frozen=True):
    """What a worker is asked to do.

    Several normalized requests are merged into one answer; several raw ones have a connection each, and go on in step.
    """

    requests: Sequence[RawRequest] | Sequence[NormalizedRequest]
    form: Literal["lines", "frames"]
    compression: Compression | None = None
    publish: PublishSpec | None = None
    place: int = 0
    """Of those that take turns with this job, which one this is; 0 begins."""
    places: int = 1
    """How many take turns."""

    @property
    def is_raw(self) -> bool:
        """Whether recorded lines are wanted, as they are."""
        return isinstance(self.requests[0], RawRequest)

    @property
    def takes_turns(self) -> bool:
        """Whether several workers gain by sharing it.

        A compressed answer is one stream from its first byte to its last, and events are counted from the first to the last.
        """
        return (
            self.compression is None
            and self.publish is None
            and all(isinstance(request, NormalizedRequest) and NormalizedReplay(request).can_skim for request in self.requests)
        )


class Chunk(msgspec.Struct, gc=False):
    """Bytes for the client."""

    data: bytes | memoryview
    messages: int
    stream: int = 0
    """Which request's client, where each has its own connection."""


class Events(msgspec.Struct, gc=False):
    """Events for the publisher."""

    events: Sequence[Event]

    def __reduce__(self) -> tuple[type[Events], tuple[Bundle]]:
        # Objects by themselves take three times as long to cross.
        from ...bronze.bundle import Bundle

        return Events, (Bundle.of(self.events),)


class SliceOpened(msgspec.Struct, gc=False):
    """A slice of this request is being used: another may come."""

    stream: int
    segment: int
    piece: Slice
    is_whole: bool
    """False where it is one of several that were fetched instead of one, and more of them follow."""


class SliceDamaged(msgspec.Struct, gc=False):
    """A slice could not be read: the same one is wanted anew, or an error."""

    stream: int
    segment: int
    piece: Slice
    problem: str


class TurnDone(msgspec.Struct, gc=False):
    """What follows comes from whoever is next."""


class Done(msgspec.Struct, gc=False):
    """The request is complete."""


class Failed(msgspec.Struct, gc=False):
    """The request can't go on."""

    error: TardisMachineError
    traceback: str = ""
    """Where it happened, when nobody foresaw it."""


Output = Chunk | Events | SliceOpened | SliceDamaged | TurnDone | Done | Failed


def to_failed(error: Exception) -> Failed:
    """The end of a request; a fault of our own fails it alone, not whoever else the process serves."""
    if isinstance(error, TardisMachineError):
        return Failed(error)
    fault = WorkerError(f"an internal error ended this request: {type(error).__name__}: {error}")
    return Failed(fault, "".join(format_exception(error)))
