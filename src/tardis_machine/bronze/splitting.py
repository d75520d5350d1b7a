"""A book that is too large for a bus's record, spread over several events, and put together again.

The parts have the sequence, the times and the envelope of the whole, some of its levels each, and say in `part` which they are. Their
ids follow from the id of the whole, the number of the part, how many there are, and which levels it has: what one bus split into three
and another into five has eight ids. Of a book change only the first part is a snapshot: who applies the parts in order has the same
book, whether or not they look at `part`.

Invariant: `join_parts` of the parts is the whole, and parts with equal ids are equal; what can't be split is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128_digest

from .event import Event

if TYPE_CHECKING:
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent

__all__ = ["join_parts", "split_event"]

_SPLITTABLE = ("book_change", "book_snapshot", "grouped_book_snapshot")

Place = tuple[str, int]
"""Side and index of a level."""


def split_event(event: Event, max_bytes: int) -> list[Event] | None:
    """Events that carry the levels of a larger one, each of at most so many bytes; None where that can't be done."""
    if event.stream.payload_case not in _SPLITTABLE:
        return None
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent

    whole = NormalizedEvent.FromString(event.value)
    payload = getattr(whole, event.stream.payload_case)
    places = [(side, index) for side in ("bids", "asks") for index in range(len(getattr(payload, side)))]
    parts = ceil(len(event.value) / max_bytes)
    while parts <= len(places):
        step = ceil(len(places) / parts)
        chosen = [places[start : start + step] for start in range(0, len(places), step)]
        split = [_part(event, whole, chosen, index) for index in range(len(chosen))]
        if all(len(part.value) <= max_bytes for part in split):
            return split
        parts = max(parts + 1, parts * 5 // 4)
    return None


def _part(event: Event, whole: NormalizedEvent, chosen: Sequence[Sequence[Place]], index: int) -> Event:
    case = event.stream.payload_case
    part = type(whole)()
    part.CopyFrom(whole)
    payload, levels = getattr(part, case), getattr(whole, case)
    del payload.bids[:]
    del payload.asks[:]
    moved: dict[Place, Place] = {}
    for side, place in chosen[index]:
        taken = getattr(payload, side)
        moved[side, place] = (side, len(taken))
        taken.append(getattr(levels, side)[place])
    part.null_fields[:] = _rename(whole.null_fields, moved)
    if index and case == "book_change":
        payload.is_snapshot = False
    first_level = sum(map(len, chosen[:index]))
    which = (index, len(chosen), first_level, first_level + len(chosen[index]))
    event_id = xxh3_128_digest(event.event_id + b"".join(number.to_bytes(4, "little") for number in which))
    part.event_id = event_id
    payload.part.whole_event_id, payload.part.index, payload.part.count = event.event_id, index, len(chosen)
    return Event(event.stream, event_id, part.SerializeToString(deterministic=True), event.sequence, event.local_ts_us)


def _rename(nulls: Iterable[str], moved: dict[Place, Place]) -> list[str]:
    """Null fields with their levels where they are now; those of levels that are elsewhere are left out."""
    renamed = []
    for name in nulls:
        side, dot, rest = name.partition(".")
        if not dot:
            renamed.append(name)
            continue
        place, _, field = rest.partition(".")
        if (now := moved.get((side, int(place)))) is not None:
            renamed.append(".".join((now[0], str(now[1]), field)) if field else f"{now[0]}.{now[1]}")
    return renamed


def join_parts(parts: Iterable[NormalizedEvent]) -> NormalizedEvent:
    """The whole that these are all the parts of, in any order; ValueError where they are not."""
    ordered = sorted(parts, key=lambda part: _of(part).part.index)
    first = ordered[0]
    payload = _of(first)
    expected = [(payload.part.whole_event_id, index, payload.part.count) for index in range(payload.part.count)]
    found = [(part.whole_event_id, part.index, part.count) for part in (_of(event).part for event in ordered)]
    if found != expected:
        raise ValueError(
            f"{len(found)} events are not all of the {payload.part.count} parts of {payload.part.whole_event_id.hex()}"
        )
    whole = type(first)()
    whole.CopyFrom(first)
    joined = _of(whole)
    for event in ordered[1:]:
        moved = {
            (side, index): (side, len(getattr(joined, side)) + index)
            for side in ("bids", "asks")
            for index in range(len(getattr(_of(event), side)))
        }
        whole.null_fields.extend(name for name in _rename(event.null_fields, moved) if "." in name)
        joined.bids.extend(_of(event).bids)
        joined.asks.extend(_of(event).asks)
    whole.event_id = joined.part.whole_event_id
    joined.ClearField("part")
    return whole


def _of(event: NormalizedEvent) -> Any:
    """The book of an event that is a part of one."""
    case = event.WhichOneof("payload")
    if case not in _SPLITTABLE or not getattr(event, case).HasField("part"):
        raise ValueError(f"an event of {case} is no part of a book")
    return getattr(event, case)
