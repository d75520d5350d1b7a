"""Events that are published together, with what every bus and every ledger wants to know of them by stream.

Encoded in a worker and published in the server, they cross from one process to the other as columns; what there is to count is
counted where they were made.

Invariant: it says nothing of its events that could not be found out from them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from .contract import Event, Stream
from .ledger import Share

__all__ = ["Bundle", "Portion"]


class Portion(NamedTuple):
    """The events of one stream in a bundle."""

    share: Share
    """What they add to a ledger."""
    size_bytes: int
    """Of their values."""
    largest_bytes: int

    @property
    def stream(self) -> Stream:
        return self.share.stream


class Bundle(Sequence[Event]):
    """Events in their order, and the portions of their streams."""

    __slots__ = ("events", "places", "portions")

    def __init__(self, events: list[Event], places: list[int], portions: Sequence[Portion]) -> None:
        self.events = events
        # Of each event, which portion it is in.
        self.places = places
        self.portions = portions

    @classmethod
    def of(cls, events: Sequence[Event]) -> Bundle:
        """The same events as a bundle."""
        if isinstance(events, Bundle):
            return events
        # A stream's object is the same for all events of it.
        streams = [id(event.stream) for event in events]
        numbers = {stream: number for number, stream in enumerate(dict.fromkeys(streams))}
        places = list(map(numbers.__getitem__, streams))
        groups: list[list[Event]] = [[] for _ in numbers]
        add = [group.append for group in groups]
        for place, event in zip(places, events, strict=True):
            add[place](event)
        return cls(list(events), places, list(map(_to_portion, groups)))

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __getitem__(self, place: Any) -> Any:
        return self.events[place]

    def __reduce__(self) -> tuple[Any, ...]:
        last = {place: index for index, place in enumerate(self.places)}
        columns = _Columns(
            [event.event_id for event in self.events],
            [event.value for event in self.events],
            [event.sequence for event in self.events],
            [event.local_ts_us for event in self.events],
            self.places,
            [
                (last[place], share.count, share.digest.to_bytes(16), size_bytes, largest_bytes)
                for place, (share, size_bytes, largest_bytes) in enumerate(self.portions)
            ],
        )
        return _unpack, ([portion.stream for portion in self.portions], _encode(columns))


class _Columns(msgspec.Struct, array_like=True):
    """A bundle but for its streams."""

    event_ids: list[bytes]
    values: list[bytes]
    sequences: list[int]
    local_ts_us: list[int]
    places: list[int]
    portions: list[tuple[int, int, bytes, int, int]]
    """Where its last event is, count, digest, bytes, bytes of the largest."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Columns).decode


def _unpack(streams: list[Stream], packed: bytes) -> Bundle:
    columns = _decode(packed)
    places = columns.places
    of_stream = map(streams.__getitem__, places)
    events = list(map(Event, of_stream, columns.event_ids, columns.values, columns.sequences, columns.local_ts_us))
    portions: list[Portion] = []
    first = 0
    for last, count, digest, size_bytes, largest_bytes in columns.portions:
        first = places.index(len(portions), first)  # they are in the order of their first events
        ends = events[first], events[last]
        portions.append(Portion(Share(ends, count=count, digest=int.from_bytes(digest)), size_bytes, largest_bytes))
    return Bundle(events, places, portions)


def _to_portion(events: list[Event]) -> Portion:
    sizes = [len(event.value) for event in events]
    return Portion(Share(events), sum(sizes), max(sizes))
