"""Events that are published together, as columns for each stream, with their counts, sizes and digests.

They are encoded in a worker and published in the server. They stay columns on their way from one process to the other, and until
somebody looks at one of them. What there is to count is counted where they are made.

Invariant: all that a bundle says of its events follows from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec

from .event import Event, EventStream, Tally, digest_of

__all__ = ["Bundle", "EventColumns"]


class EventColumns(msgspec.Struct, array_like=True, gc=False):
    """The events of one stream in a bundle, in their order, as columns; the stream itself is in the bundle."""

    event_ids: Sequence[bytes]
    values: Sequence[bytes]
    sequences: Sequence[int]
    local_ts_us: Sequence[int]
    digest: bytes
    """The sum of the ids, as `digest_of` computes it."""
    size_bytes: int
    """All values together."""
    largest_bytes: int
    """The largest value."""

    @classmethod
    def of(
        cls, event_ids: Sequence[bytes], values: Sequence[bytes], sequences: Sequence[int], times: Sequence[int]
    ) -> EventColumns:
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
    """Events in their order, and the columns of each stream."""

    __slots__ = ("_events", "columns", "stream_indexes", "streams")

    def __init__(
        self,
        streams: Sequence[EventStream],
        columns: Sequence[EventColumns],
        stream_indexes: Sequence[int],
        events: list[Event] | None = None,
    ) -> None:
        self.streams = streams
        # One for each stream.
        self.columns = columns
        # For each event, the index of its stream.
        self.stream_indexes = stream_indexes
        self._events = events

    @classmethod
    def of(cls, events: Sequence[Event]) -> Bundle:
        """The same events as a bundle."""
        if isinstance(events, Bundle):
            return events
        # A stream's object is the same for all events of it.
        groups: dict[int, tuple[int, list[Event]]] = {}
        stream_indexes = []
        for event in events:
            index, own = groups.setdefault(id(event.stream), (len(groups), []))
            stream_indexes.append(index)
            own.append(event)
        columns = [
            EventColumns.of(*zip(*((e.event_id, e.value, e.sequence, e.local_ts_us) for e in own), strict=True))
            for _, own in groups.values()
        ]
        return cls([own[0].stream for _, own in groups.values()], columns, stream_indexes, list(events))

    @property
    def events(self) -> list[Event]:
        """Each as an object, made when it is first asked for."""
        if self._events is None:
            own = [columns.events(stream) for stream, columns in zip(self.streams, self.columns, strict=True)]
            self._events = list(own[0]) if len(own) == 1 else list(map(next, map(own.__getitem__, self.stream_indexes)))
        return self._events

    @property
    def tallies(self) -> list[Tally]:
        """What they add to a ledger."""
        return [columns.tally(stream) for stream, columns in zip(self.streams, self.columns, strict=True)]

    def __len__(self) -> int:
        return len(self.stream_indexes)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __getitem__(self, index: Any) -> Any:
        return self.events[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self.streams, _encode((self.columns, self.stream_indexes)))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[EventColumns], list[int]]).decode


def _unpack(streams: list[EventStream], packed: bytes) -> Bundle:
    return Bundle(streams, *_decode(packed))
