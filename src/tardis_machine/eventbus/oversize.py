"""A book that is too large for a bus's record, spread over several events.

The parts have the sequence, the times and the envelope of the whole, some of its levels each, and in their meta `split` ("2/3")
and `split_of` (the id of the whole, hexadecimal). Their ids follow from that id and the number of the part. Of a book change only
the first part is a snapshot: who applies the parts in order has the same book, whether or not they look at the flag.

Invariant: the parts' levels, in order, are those of the whole; what can't be split is left alone.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128_digest

from .contract import Event

if TYPE_CHECKING:
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent

__all__ = ["split_event"]

_SPLITTABLE = ("book_change", "book_snapshot", "grouped_book_snapshot")


def split_event(event: Event, max_bytes: int) -> list[Event] | None:
    """Events that carry the levels of a larger one, each of at most so many bytes; None where that can't be done."""
    if event.stream.payload_case not in _SPLITTABLE:
        return None
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent

    whole = NormalizedEvent.FromString(event.value)
    payload = getattr(whole, event.stream.payload_case)
    levels = [*(("bids", level) for level in payload.bids), *(("asks", level) for level in payload.asks)]
    if any(name.startswith(("bids.", "asks.")) for name in whole.null_fields):
        return None  # they name levels by their index
    parts = ceil(len(event.value) / max_bytes)
    while parts <= len(levels):
        step = ceil(len(levels) / parts)
        chosen = [levels[start : start + step] for start in range(0, len(levels), step)]
        split = [_part(event, whole, chosen, index) for index in range(len(chosen))]
        if all(len(part.value) <= max_bytes for part in split):
            return split
        parts = max(parts + 1, parts * 5 // 4)
    return None


def _part(event: Event, whole: NormalizedEvent, chosen: list[list[tuple[str, Any]]], index: int) -> Event:
    part = type(whole)()
    part.CopyFrom(whole)
    payload = getattr(part, event.stream.payload_case)
    del payload.bids[:]
    del payload.asks[:]
    for side, level in chosen[index]:
        getattr(payload, side).append(level)
    if index and event.stream.payload_case == "book_change":
        payload.is_snapshot = False
    event_id = xxh3_128_digest(event.event_id + index.to_bytes(4, "little"))
    part.event_id = event_id
    part.meta["split"] = f"{index + 1}/{len(chosen)}"
    part.meta["split_of"] = event.event_id.hex()
    return Event(event.stream, event_id, part.SerializeToString(deterministic=True), event.sequence, event.local_ts_us)
