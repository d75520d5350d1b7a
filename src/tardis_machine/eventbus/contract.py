"""What an event bus is, and what passes through it.

Invariant: an event bus never batches, encodes, orders, retries or spools. It sends a batch and says for each record what became
of it; the publisher does the rest, once, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol, overload

import msgspec

from ..bronze.event import Event
from ..errors import DeliveryError

__all__ = ["Danger", "EventBus", "Failure", "Limits", "Record", "Records", "Route"]


class Route(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Where one bus sends the events of one stream, and with what around them.

    Compared by identity, and the same object for thousands of records: a bus may keep what it derives from a route (a packed
    command, a subject's bytes) in a `weakref.WeakKeyDictionary`.
    """

    destination: str
    key: str
    payload_case: str
    session_id: str
    headers_before: Sequence[tuple[str, bytes]]
    """payloadCase and dataType; eventId comes after these, and then `also_id_header`. Empty where headers are off."""
    headers_after: Sequence[tuple[str, bytes]]
    """Static and meta headers."""
    has_headers: bool
    value_suffix: bytes
    """Where the bus carries no headers: the static ones as meta entries, to be appended to the value (Protobuf merges them)."""
    overhead_bytes: int
    """What a record is larger than its event's value: key, headers, suffix."""
    lane: tuple[str, str]
    """Destination and key: records of one lane arrive in order."""
    traceparent: str = ""
    """The trace of the stream's session, as its meta has it; empty where there is none."""
    also_id_header: str = ""
    """A second header that holds the event's id, as CloudEvents want it; empty where there is none."""


class Record(msgspec.Struct, gc=False):
    """One event as one bus is to carry it."""

    route: Route
    event: Event

    @property
    def destination(self) -> str:
        """Topic, stream, subject, queue: the bus's own word."""
        return self.route.destination

    @property
    def key(self) -> str:
        """Records of one key, within a destination, stay in order."""
        return self.route.key

    @property
    def value(self) -> bytes:
        """The encoded NormalizedEvent."""
        return self.event.value + self.route.value_suffix if self.route.value_suffix else self.event.value

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """payloadCase, dataType and eventId first, then static and meta headers; empty where headers are off."""
        route = self.route
        if not route.has_headers:
            return []
        event_id = self.event.event_id.hex().encode()
        also = [(route.also_id_header, event_id)] if route.also_id_header else []
        return [*route.headers_before, ("eventId", event_id), *also, *route.headers_after]

    @property
    def deduplication_id(self) -> str:
        """Session and event id: the same for a resend, another for a second replay of the same data."""
        return f"{self.route.session_id}-{self.event.event_id.hex()}"

    @property
    def size_bytes(self) -> int:
        """What limits count: value, key, headers."""
        return len(self.event.value) + self.route.overhead_bytes


class Records(Sequence[Record]):
    """Records in two columns, so that millions of them cost no object each; a `Record` is made for whoever looks at one.

    A bus may take them for a plain sequence, or use the columns where that is faster.
    """

    __slots__ = ("events", "routes")

    def __init__(self, routes: list[Route], events: list[Event]) -> None:
        self.routes = routes
        self.events = events

    @classmethod
    def of(cls, records: Iterable[Record]) -> Records:
        """The same records in this form."""
        if isinstance(records, Records):
            return records
        listed = list(records)
        return cls([record.route for record in listed], [record.event for record in listed])

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """One after another."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            list(chain.from_iterable([part.routes for part in parts])), list(chain.from_iterable([part.events for part in parts]))
        )

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, self.routes, self.events)

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> Records: ...

    def __getitem__(self, place: int | slice) -> Record | Records:
        if isinstance(place, slice):
            return Records(self.routes[place], self.events[place])
        return Record(self.routes[place], self.events[place])

    @property
    def sizes(self) -> list[int]:
        """What limits count, of each."""
        return [len(event.value) + route.overhead_bytes for route, event in zip(self.routes, self.events, strict=True)]


class Failure(msgspec.Struct, gc=False):
    """A record of a batch that was not confirmed; `error` is Transient or Terminal."""

    index: int
    error: DeliveryError
    is_local: bool = False
    """The bus works, and only this record's lane has to wait (a throttled shard, one destination of several). Other failures that
    strike every record of a batch are taken for a failure of the bus as a whole."""


class Danger(NamedTuple):
    """Something that works today and may lose events another day."""

    says: str
    to_do: str


class Limits(msgspec.Struct, frozen=True):
    """What the service takes, and what it promises."""

    batch_records: int
    batch_bytes: int
    record_bytes: int
    ordered: bool = True
    """Order for a key is promised. Where not, a lane may be in several sends at once, and a record that fails is overtaken."""
    keeps_order_in_batch: bool = True
    """A record that fails takes the later ones of its lane in the same batch with it: none of them is stored before it, or they are
    stored once more behind it. Where not, the publisher puts at most one record of a lane in a batch."""
    concurrent_sends: int = 1
    """How many `send` may run at once."""
    keeps_order_across_sends: bool = False
    """The same promise for sends that run at once, in the order they were started. Where not, no lane is in two of them."""
    send_timeout_s: float = 30.0
    """A `send` that takes longer is cancelled and counts as a Transient error."""
    carries_headers: bool = True
    """Where not, static headers are put into the event's meta."""
    gives_up: str = ""
    """What the chosen options give up, for the log at the start: a sentence without its first capital and its point."""


class EventBus(Protocol):
    """One destination system.

    Lifecycle, driven by the publisher alone and on one event loop: `connect` until it succeeds, then any number of `send`, at
    most `limits.concurrent_sends` at once, then `close` once, also when `connect` never succeeded. After a `send` that raised a
    Transient error or timed out, and once no other is running, `connect` is called again before the next `send`. `check` is
    called by `doctor` on a connected bus.

    Errors: a Transient one is tried again, with growing pauses, for as long as it takes. A Terminal one from the first `connect`
    stops the start; from a later `connect` it is tried again like a Transient one, as events are already waiting. A Terminal one
    from `send` sends the records it concerns to the dead letters. Any other exception counts as Transient: it may pass. Messages
    are shown to users and must not hold secrets.
    """

    name: str
    """As its options begin: `kafka`."""
    limits: Limits
    """Constant from the first `connect` that succeeds; what the service says of itself may be known only then."""

    async def connect(self) -> None:
        """Opens what `send` needs and verifies destinations; safe to call again, and cheap when all is well."""

    async def check(self) -> Sequence[str | Danger]:
        """Verifies that destinations exist, may be written and are large enough; one sentence for each thing verified."""

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        """Sends, and returns when every record is confirmed or has failed; an index in no Failure is confirmed.

        Raises only what concerns the whole batch: a Transient error means that any record may or may not have arrived, a Terminal
        one that none of them ever will. May be cancelled (hung, shut down): whatever has not left by then must never leave.
        """

    async def close(self) -> None:
        """Releases connections; nothing is in flight."""
