"""Events that are published together, with what every bus and every ledger wants to know of them by stream.

They are encoded in a worker and published in the server: until somebody looks at one, and on their way from one process to the
other, they are columns. What there is to count is counted where they were made.

Invariant: it says nothing of its events that could not be found out from them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec

from .event import Event, EventStream, Tally, digest_of

__all__ = ["Bundle", "Portion"]


class Portion(msgspec.Struct, array_like=True, gc=False):
    """The events of one stream in a bundle but for the stream itself, in their order, and what they come to."""

    event_ids: Sequence[bytes]
    values: Sequence[bytes]
    sequences: Sequence[int]
    local_ts_us: Sequence[int]
    digest: bytes
    """Of the ids, as a ledger has it."""
    size_bytes: int
    """Of the values."""
    largest_bytes: int

    @classmethod
    def of(cls, event_ids: Sequence[bytes], values: Sequence[bytes], sequences: Sequence[int], times: Sequence[int]) -> Portion:
        """These events, counted."""
        sizes = [*map(len, values)]
        return cls(event_ids, values, sequences, times, digest_of(event_ids).to_bytes(16), sum(sizes), max(sizes))

    def events(self, stream: EventStream) -> Iterator[Event]:
        """Each as an object."""
        return map(Event, repeat(stream), self.event_ids, self.values, self.sequences, self.local_ts_us)

    def tally(self, stream: EventStream) -> Tally:
        """What they add to a ledger."""
        first, last = (
            Event(stream, self.event_ids[at], self.values[at], self.sequences[at], self.local_ts_us[at]) for at in (0, -1)
        )
        return Tally((first, last), count=len(self.values), digest=int.from_bytes(self.digest))


class Bundle(Sequence[Event]):
    """Events in their order, and the portions of their streams."""

    __slots__ = ("_events", "places", "portions", "streams")

    def __init__(
        self,
        streams: Sequence[EventStream],
        portions: Sequence[Portion],
        places: Sequence[int],
        events: list[Event] | None = None,
    ) -> None:
        self.streams = streams
        self.portions = portions
        # Of each event, which stream it is of.
        self.places = places
        self._events = events

    @classmethod
    def of(cls, events: Sequence[Event]) -> Bundle:
        """The same events as a bundle."""
        if isinstance(events, Bundle):
            return events
        # A stream's object is the same for all events of it.
        groups: dict[int, tuple[int, list[Event]]] = {}
        places = []
        for event in events:
            place, own = groups.setdefault(id(event.stream), (len(groups), []))
            places.append(place)
            own.append(event)
        portions = [
            Portion.of(*zip(*((e.event_id, e.value, e.sequence, e.local_ts_us) for e in own), strict=True))
            for _, own in groups.values()
        ]
        return cls([own[0].stream for _, own in groups.values()], portions, places, list(events))

    @property
    def events(self) -> list[Event]:
        """Each as an object, made when it is first asked for."""
        if self._events is None:
            own = [portion.events(stream) for stream, portion in zip(self.streams, self.portions, strict=True)]
            self._events = list(own[0]) if len(own) == 1 else list(map(next, map(own.__getitem__, self.places)))
        return self._events

    @property
    def tallies(self) -> list[Tally]:
        """What they add to a ledger."""
        return [portion.tally(stream) for stream, portion in zip(self.streams, self.portions, strict=True)]

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __getitem__(self, place: Any) -> Any:
        return self.events[place]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self.streams, _encode((self.portions, self.places)))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[Portion], list[int]]).decode


def _unpack(streams: list[EventStream], packed: bytes) -> Bundle:
    return Bundle(streams, *_decode(packed))
