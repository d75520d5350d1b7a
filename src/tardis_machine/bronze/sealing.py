"""Payloads in their envelopes: what an event's place in its stream and its identity are, and its bytes, fields in order.

`_sealing.pyx` is the same in Cython, four times as fast; where it was compiled, it is used instead. This one is the definition: it
runs everywhere, and the two are compared byte for byte in tests.

Invariant: an event's bytes depend on the messages of its stream alone, never on how they were cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from xxhash import xxh3_128_digest

from ..messages import Message
from .bundle import Portion
from .event import EventStream
from .payloads import LOCAL_BIT, Payload, encode_book_levels
from .wire import Instant, delimited, encode_timestamp, heads, tag, to_instant, varint

__all__ = ["MILLISECOND_FIELDS", "NULL_FIELDS_TAG", "Series", "StreamSealer", "StreamsOfType", "seal_messages"]

Row: TypeAlias = tuple[bytes, bytes, int, int]
"""An event but for its stream: id, value, sequence, local time."""
_SHORT_SEQUENCES = [tag(8, is_varint=True) + bytes((n,)) for n in range(128)]
_SEQUENCE_STARTS = [tag(8, is_varint=True) + bytes((n | 128,)) for n in range(128)]
NULL_FIELDS_TAG = tag(20)
MILLISECOND_FIELDS = [b"", *(tag(21, is_varint=True) + varint(bits) for bits in range(1, 16))]
"""By the bits of the timestamps that print in milliseconds."""


class Series:
    """The events of one exchange, symbol and payload case: their numbers and their identities.

    An id is a hash of the series, local_ts, the ordinal and the payload. The ordinal counts equal events of one local_ts, so that
    two equal trades of one message are two events. It is forgotten when local time moves on, which in a recorded stream it only
    does forwards; should the recorder's clock have stepped back, then the latest time before that is part of the hash too, and
    keeps ids apart from those that the same instant had before.
    """

    __slots__ = ("_counts", "_frame", "_latest_id", "_latest_us", "_sequence_end", "next_sequence")

    def __init__(self, exchange: str, symbol: str, payload_case: str, next_sequence: int = 0) -> None:
        self.next_sequence = next_sequence
        # The sequence's varint but for its first byte: the same for 128 events.
        self._sequence_end = varint(next_sequence >> 7)
        # Lengths in front: no two series have the same frame.
        self._frame = b"".join(delimited(part.encode()) for part in (exchange, symbol, payload_case))
        self._latest_us = -(1 << 63)
        # The first event of the latest local time, and how often each occurred since that was reached, by its id of ordinal 0;
        # nothing is counted until there is a second one.
        self._latest_id = b""
        self._counts: dict[bytes, int] | None = None

    def sequence_field(self, sequence: int) -> bytes:
        """Of `next_sequence`, which it counts up."""
        self.next_sequence = sequence + 1
        low = sequence & 127
        if sequence < 128:
            return _SHORT_SEQUENCES[low]
        if low == 0:
            self._sequence_end = varint(sequence >> 7)
        return _SEQUENCE_STARTS[low] + self._sequence_end

    def event_id(self, local_ts: bytes, local_us: int, body: bytes) -> bytes:
        if local_us > self._latest_us:
            self._latest_us, self._counts = local_us, None
            self._latest_id = event_id = xxh3_128_digest(b"".join((self._frame, local_ts, b"\0\0", body)))
            return event_id
        # A timestamp starts with its length, which is 0 only for the first instant of 1970: no clock steps back from there.
        step = encode_timestamp(self._latest_us) if local_us < self._latest_us else b"\0"
        event_id = xxh3_128_digest(b"".join((self._frame, local_ts, step, b"\0", body)))
        if self._counts is None:
            self._counts = {self._latest_id: 1}
        ordinal = self._counts.get(event_id, 0)
        self._counts[event_id] = ordinal + 1
        if ordinal:
            return xxh3_128_digest(b"".join((self._frame, local_ts, step, varint(ordinal), body)))
        return event_id


class StreamSealer:
    """The envelope of one stream's events, with what is constant in it written once."""

    __slots__ = ("_head", "_meta", "_payload_heads", "_payload_number", "_series", "_tails", "payload_of", "stream")

    def __init__(
        self,
        stream: EventStream,
        series: Series,
        payload_number: int,
        head: bytes,
        meta: bytes,
        payload_of: Callable[[Any], Payload] | None,
    ) -> None:
        self.stream = stream
        # None: book changes, each of which becomes the payloads of its levels.
        self.payload_of = payload_of
        self._series = series
        # Up to the value of local_ts.
        self._head = head
        self._meta = meta
        self._tails = [meta + field for field in MILLISECOND_FIELDS]
        self._payload_number = payload_number
        self._payload_heads = heads(payload_number)

    def seal(self, payload: Payload, local: Instant, middle: bytes) -> Row:
        """The payload in its envelope, fields in the order of their numbers."""
        body, milliseconds, nulls = payload
        local_ts, local_us, in_milliseconds = local
        if in_milliseconds:
            milliseconds |= LOCAL_BIT
        tail = self._tails[milliseconds] if not nulls else self._tail_with(nulls, milliseconds)
        series = self._series
        event_id = series.event_id(local_ts, local_us, body)
        sequence = series.next_sequence
        length = len(body)
        payload_head = self._payload_heads[length] if length < 512 else tag(self._payload_number) + varint(length)
        parts = (self._head, local_ts, middle, event_id, series.sequence_field(sequence), tail, payload_head, body)
        return event_id, b"".join(parts), sequence, local_us

    def _tail_with(self, nulls: Sequence[str], milliseconds: int) -> bytes:
        names = b"".join([NULL_FIELDS_TAG + delimited(name.encode()) for name in nulls])
        return self._meta + names + MILLISECOND_FIELDS[milliseconds]


StreamsOfType: TypeAlias = tuple[Callable[[Any], Any], dict[Any, StreamSealer | None]]
"""What tells the streams of one type of message apart, and what seals them; None where they are left out."""


def seal_messages(
    messages: Iterable[Message],
    streams: Mapping[type[Any], StreamsOfType],
    open_stream: Callable[[Any], StreamSealer | None],
    middle: bytes,
) -> tuple[list[EventStream], list[Portion], list[int]]:
    """Streams in the order of their first events, the portions of their events, and of each event the place of its stream.

    `middle` is what stands between local_ts and the event's id.
    """
    places: list[int] = []
    found: dict[StreamSealer, tuple[int, list[Row]]] = {}
    local_text: str | None = None
    for message in messages:
        key_of, known = streams[message.__class__]
        key = key_of(message)
        try:
            sealer = known[key]
        except KeyError:
            sealer = known[key] = open_stream(message)
        if sealer is None:
            continue
        if local_text is not message.local_timestamp:
            local_text = message.local_timestamp
            local = to_instant(local_text)
        try:
            place, rows = found[sealer]
        except KeyError:
            place, rows = found[sealer] = len(found), []
        if sealer.payload_of is not None:
            rows.append(sealer.seal(sealer.payload_of(message), local, middle))
            places.append(place)
        else:
            levels = [sealer.seal(payload, local, middle) for payload in encode_book_levels(message)]  # type: ignore[arg-type]
            rows += levels
            places += [place] * len(levels)
    portions = [Portion.of(*zip(*rows, strict=True)) for _, rows in found.values()]
    return [sealer.stream for sealer in found], portions, places
