"""An encoded event, and the stream that it is a part of.

Invariant: the same for every bus, and for the lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["DIGEST_MASK", "Event", "EventStream", "Tally", "digest_of"]

DIGEST_MASK = (1 << 128) - 1


class EventStream(msgspec.Struct, frozen=True, gc=False):
    """What all events of one session, exchange, symbol and payload case have in common; routes are computed once for each."""

    session_id: str
    exchange: str
    symbol: str
    payload_case: str
    data_type: str
    source: str
    origin: str
    meta: Mapping[str, str]


class Event(msgspec.Struct, gc=False):
    """One encoded event, the same for every bus."""

    stream: EventStream
    event_id: bytes
    value: bytes
    sequence: int
    """As in the value: dense from 0 for a session, exchange, symbol and payload case."""
    local_ts_us: int
    """As in the value: microseconds since 1970, UTC."""


def digest_of(event_ids: Sequence[bytes]) -> int:
    """The sum of ids as numbers of 128 bits: the same in any order, and changed by one that is missing or there twice."""
    return sum(map(int.from_bytes, event_ids)) & DIGEST_MASK


class Tally:
    """What events of one stream, in their order, come to. Where their digest is known, only the first and the last are needed."""

    __slots__ = ("count", "digest", "first", "last", "stream")

    def __init__(self, events: Sequence[Event], *, count: int | None = None, digest: int | None = None) -> None:
        self.stream: EventStream = events[0].stream
        self.count = len(events) if count is None else count
        self.first = events[0]
        self.last = events[-1]
        self.digest = digest_of([event.event_id for event in events]) if digest is None else digest
