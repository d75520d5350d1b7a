"""Payloads in their envelopes: an event's number, its identity, and its bytes, fields in the order of their numbers.

This is the definition. Where `sealing_compiled.pyx` was compiled, that is used instead; tests compare the two byte for byte.

Invariant: an event's bytes depend on the messages of its stream alone, never on how they were cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from xxhash import xxh3_128_digest

from ..messages import Message
from .bundle import EventColumns
from .event import EventStream
from .payloads import LOCAL_BIT, Payload, encode_book_levels
from .wire import Instant, delimited, encode_timestamp, tag, to_instant, varint

__all__ = [
    "EventNumbering",
    "StreamSealer",
    "StreamsOfType",
    "encode_millisecond_timestamps",
    "encode_null_fields",
    "seal_messages",
]

Row: TypeAlias = tuple[bytes, bytes, int, int]
"""An event without its stream: id, value, sequence, local time."""

_SEQUENCE, _NULL_FIELD, _MILLISECOND_TIMESTAMPS = tag(8, is_varint=True), tag(20), tag(21, is_varint=True)


def encode_null_fields(names: Sequence[str]) -> bytes:
    """The field `null_fields`, with its tags."""
    return b"".join([_NULL_FIELD + delimited(name.encode()) for name in names])


def encode_millisecond_timestamps(bits: int) -> bytes:
    """The field `millisecond_timestamps`, with its tag; nothing where no timestamp prints in milliseconds."""
    return _MILLISECOND_TIMESTAMPS + varint(bits) if bits else b""


class EventNumbering:
    """Gives the events of one exchange, symbol and payload case their sequence numbers and their ids.

    An id is a hash of exchange, symbol, payload case, local_ts, an ordinal and the payload. The ordinal counts equal events of one
    local_ts, so that two equal trades of one message are two events. It starts anew when local time moves on. Where the recorder's clock
    stepped back, the latest time before the step is part of the hash too, so that ids differ from those that the same instant had before.
    """

    __slots__ = ("_counts", "_frame", "_latest_id", "_latest_us", "next_sequence")

    def __init__(self, exchange: str, symbol: str, payload_case: str, next_sequence: int = 0) -> None:
        self.next_sequence = next_sequence
        # Lengths in front: no two have the same frame.
        self._frame = b"".join(delimited(part.encode()) for part in (exchange, symbol, payload_case))
        self._latest_us = -(1 << 63)
        # The first event of the latest local time, and how often each occurred since that was reached, by its id of ordinal 0;
        # nothing is counted until there is a second one.
        self._latest_id = b""
        self._counts: dict[bytes, int] | None = None

    def event_id(self, local_ts: bytes, local_us: int, body: bytes) -> bytes:
        """The id of the next event; `local_ts` is the encoded timestamp, `body` the payload."""
        if local_us > self._latest_us:
            self._latest_us, self._counts = local_us, None
            self._latest_id = event_id = self._hash(local_ts, b"\0\0", body)
            return event_id
        # A timestamp starts with its length, which is 0 only for the first instant of 1970: no clock steps back from there.
        step = encode_timestamp(self._latest_us) if local_us < self._latest_us else b"\0"
        event_id = self._hash(local_ts, step + b"\0", body)
        if self._counts is None:
            self._counts = {self._latest_id: 1}
        ordinal = self._counts.get(event_id, 0)
        self._counts[event_id] = ordinal + 1
        return self._hash(local_ts, step + varint(ordinal), body) if ordinal else event_id

    def _hash(self, local_ts: bytes, ordinal: bytes, body: bytes) -> bytes:
        return xxh3_128_digest(b"".join((self._frame, local_ts, ordinal, body)))


class StreamSealer:
    """Puts the payloads of one stream into envelopes. What is the same in all of them is encoded once."""

    __slots__ = ("_head", "_meta", "_numbering", "_payload_tag", "payload_of", "stream")

    def __init__(
        self,
        stream: EventStream,
        numbering: EventNumbering,
        payload_number: int,
        head: bytes,
        meta: bytes,
        payload_of: Callable[[Any], Payload] | None,
    ) -> None:
        self.stream = stream
        # None: book changes, each of which becomes the payloads of its levels.
        self.payload_of = payload_of
        self._numbering = numbering
        # All fields up to the value of local_ts.
        self._head = head
        self._meta = meta
        self._payload_tag = tag(payload_number)

    def seal(self, payload: Payload, local: Instant, batch_fields: bytes) -> Row:
        """The next event. `batch_fields` stand between local_ts and the value of event_id, and are the same for a batch."""
        body, milliseconds, nulls = payload
        local_ts, local_us, in_milliseconds = local
        sequence = self._numbering.next_sequence
        event_id = self._numbering.event_id(local_ts, local_us, body)
        self._numbering.next_sequence = sequence + 1
        fields = (
            self._head,
            local_ts,
            batch_fields,
            event_id,
            _SEQUENCE,
            varint(sequence),
            self._meta,
            encode_null_fields(nulls),
            encode_millisecond_timestamps(milliseconds | LOCAL_BIT if in_milliseconds else milliseconds),
            self._payload_tag,
            delimited(body),
        )
        return event_id, b"".join(fields), sequence, local_us


StreamsOfType: TypeAlias = tuple[Callable[[Any], Any], dict[Any, StreamSealer | None]]
"""What tells the streams of one type of message apart, and what seals them; None where they are left out."""


def seal_messages(
    messages: Iterable[Message],
    streams: Mapping[type[Any], StreamsOfType],
    open_stream: Callable[[Any], StreamSealer | None],
    batch_fields: bytes,
) -> tuple[list[EventStream], list[EventColumns], list[int]]:
    """Streams in the order of their first events, the events of each, and for each event the index of its stream."""
    stream_indexes: list[int] = []
    found: dict[StreamSealer, tuple[int, list[Row]]] = {}
    for message in messages:
        key_of, known = streams[type(message)]
        key = key_of(message)
        if key not in known:
            known[key] = open_stream(message)
        sealer = known[key]
        if sealer is None:
            continue
        local = to_instant(message.local_timestamp)
        index, rows = found.setdefault(sealer, (len(found), []))
        payloads = encode_book_levels(message) if sealer.payload_of is None else (sealer.payload_of(message),)  # type: ignore[arg-type]
        for payload in payloads:
            rows.append(sealer.seal(payload, local, batch_fields))
            stream_indexes.append(index)
    columns = [EventColumns.of(*zip(*rows, strict=True)) for _, rows in found.values()]
    return [sealer.stream for sealer in found], columns, stream_indexes


# Where it was compiled, this is done there; what is not usual is left to the functions that are used here.
with suppress(ImportError):
    from .sealing_compiled import *  # noqa: F403
