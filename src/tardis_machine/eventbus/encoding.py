"""Normalized messages to Bronze events: `lakehouse.bronze.v1.NormalizedEvent`, its identity and its place in the session.

Invariant: `event_id` and `sequence` depend on the stream of messages alone, never on how it was cut into batches. What is the
same in all events of a stream (source, exchange, symbol, origin, meta) is serialized once; `wire` and `payloads` write the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from xxhash import xxh3_128_digest

from .._version import __version__
from ..messages import (
    BookChange,
    BookSnapshot,
    BookTicker,
    DerivativeTicker,
    Disconnect,
    ErrorMessage,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
    TradeBar,
)
from .contract import Event, Stream
from .payload_case import PAYLOAD_CASES, data_type_of, parse_payload_case, payload_case_of
from .payloads import LOCAL_BIT, PAYLOAD_ENCODERS, Payload, encode_book_levels
from .wire import Instant, delimited, encode_timestamp, heads, tag, to_instant, varint

if TYPE_CHECKING:
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import SessionEnd

__all__ = ["PAYLOAD_CASES", "BronzeEncoder", "Origin", "parse_payload_case", "payload_case_of"]

Origin = Literal["realtime", "replay", "archive"]

_ORIGINS: Mapping[Origin, int] = {"realtime": 1, "replay": 2, "archive": 3}
_PAYLOAD_NUMBERS = dict(zip(PAYLOAD_CASES, (*range(100, 110), 150, 151, 152), strict=True))
_EVENT_ID_HEAD = tag(7) + b"\x10"
_SHORT_SEQUENCES = [tag(8, is_varint=True) + bytes((n,)) for n in range(128)]
_SEQUENCE_STARTS = [tag(8, is_varint=True) + bytes((n | 128,)) for n in range(128)]
_NULL_FIELDS_TAG = tag(20)
_MILLISECOND_FIELDS = [b"", *(tag(21, is_varint=True) + varint(bits) for bits in range(1, 16))]


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


class _Series:
    """The events of one exchange, symbol and payload case: their numbers and their identities.

    An id is a hash of the series, local_ts, the ordinal and the payload. The ordinal counts equal events of one local_ts, so that
    two equal trades of one message are two events. It is forgotten when local time moves on, which in a recorded stream it only
    does forwards; should the recorder's clock have stepped back, then the latest time before that is part of the hash too, and
    keeps ids apart from those that the same instant had before.
    """

    __slots__ = ("_counts", "_frame", "_latest_id", "_latest_us", "_sequence_end", "next_sequence")

    def __init__(self, exchange: str, symbol: str, payload_case: str, *, next_sequence: int = 0) -> None:
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


class _StreamEncoder:
    """The events of one stream, with what is constant in them written once."""

    __slots__ = ("_head", "_meta", "_payload_heads", "_payload_number", "_series", "_stream", "_tails", "payload_of")

    def __init__(
        self, stream: Stream, series: _Series, head: bytes, meta: bytes, payload_of: Callable[[Any], Payload] | None
    ) -> None:
        # None: book changes, each of which becomes the payloads of its levels.
        self.payload_of = payload_of
        self._stream = stream
        self._series = series
        self._head = head
        self._meta = meta
        self._tails = [meta + field for field in _MILLISECOND_FIELDS]
        self._payload_number = _PAYLOAD_NUMBERS[stream.payload_case]
        self._payload_heads = heads(self._payload_number)

    def seal(self, payload: Payload, local: Instant, middle: bytes) -> Event:
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
        value = b"".join(
            (
                self._head,
                local_ts,
                middle,
                event_id,
                series.sequence_field(sequence),
                tail,
                payload_head,
                body,
            )
        )
        return Event(self._stream, event_id, value, sequence, local_us)

    def _tail_with(self, nulls: Sequence[str], milliseconds: int) -> bytes:
        names = b"".join([_NULL_FIELDS_TAG + delimited(name.encode()) for name in nulls])
        return self._meta + names + _MILLISECOND_FIELDS[milliseconds]


def _snapshot_key(message: BookSnapshot) -> tuple[str, str, str, str]:
    return message.exchange, message.symbol, message.name, payload_case_of(message)


_STREAM_KEYS: Mapping[type[Any], Callable[[Any], Any]] = {
    **dict.fromkeys(
        (Trade, BookChange, DerivativeTicker, Liquidation, OptionSummary, BookTicker), attrgetter("exchange", "symbol")
    ),
    TradeBar: attrgetter("exchange", "symbol", "name"),
    BookSnapshot: _snapshot_key,
    **dict.fromkeys((Disconnect, ErrorMessage), attrgetter("exchange")),
}
"""What tells the streams of one type of message apart."""


class BronzeEncoder:
    """Encodes the messages of one session, in their order.

    It counts for the session: a stream's messages all pass through one encoder. `include` drops other payload cases before they
    cost anything; what is dropped takes no number of the sequence.
    """

    def __init__(
        self,
        *,
        session_id: str,
        origin: Origin,
        meta: Mapping[str, str] | None = None,
        source: str = f"tardis-machine/{__version__}",
        book_changes: Literal["message", "level"] = "message",
        include: frozenset[str] | None = None,
        clock_us: Callable[[], int] = _wall_clock_us,
    ) -> None:
        self._session_id = session_id
        self._origin: Origin = origin
        self._meta = {**(meta or {}), "session_id": session_id}
        self._source = source
        self._book_changes = book_changes
        self._include = include
        self._clock_us = clock_us
        self._series: dict[tuple[str, str, str], _Series] = {}
        self._streams: dict[type[Any], tuple[Callable[[Any], Any], dict[Any, _StreamEncoder | None]]] = {
            message_type: (key_of, {}) for message_type, key_of in _STREAM_KEYS.items()
        }

    def encode(self, messages: Iterable[Message]) -> list[Event]:
        """The messages' events, one each; with `book_changes="level"` one for each level of a book change."""
        events: list[Event] = []
        middle = self._middle()
        local_text: str | None = None
        for message in messages:
            key_of, streams = self._streams[message.__class__]
            key = key_of(message)
            try:
                stream = streams[key]
            except KeyError:
                stream = streams[key] = self._open(message)
            if stream is None:
                continue
            if local_text is not message.local_timestamp:
                local_text = message.local_timestamp
                local = to_instant(local_text)
            if stream.payload_of is not None:
                events.append(stream.seal(stream.payload_of(message), local, middle))
            elif isinstance(message, BookChange):
                events += [stream.seal(payload, local, middle) for payload in encode_book_levels(message)]
        return events

    def encode_session_end(self, session_end: SessionEnd) -> list[Event]:
        """The session's last event; none where `include` leaves it out. Its local time is the end of the session."""
        if self._include is not None and "session_end" not in self._include:
            return []
        body = session_end.SerializeToString(deterministic=True)
        ended_us = session_end.ended_ts.ToMicroseconds()
        stream = self._stream_encoder("session_end", "session_end", None, None, None)
        return [stream.seal((body, 0, ()), (encode_timestamp(ended_us), ended_us, False), self._middle())]

    def _middle(self) -> bytes:
        """From ingest_ts, one for a batch, to the start of event_id."""
        return b"".join(
            (
                tag(5),
                encode_timestamp(self._clock_us()),
                tag(6, is_varint=True),
                varint(_ORIGINS[self._origin]),
                _EVENT_ID_HEAD,
            )
        )

    def _open(self, message: Message) -> _StreamEncoder | None:
        """What encodes messages like this one; None where they are not included."""
        case = payload_case_of(message)
        if self._include is not None and case not in self._include:
            return None
        symbol: str | None = getattr(message, "symbol", None)
        as_levels = case == "book_change" and self._book_changes == "level"
        payload_of = None if as_levels else PAYLOAD_ENCODERS[case]
        return self._stream_encoder(case, data_type_of(message), message.exchange, symbol, payload_of)

    def _stream_encoder(
        self,
        case: str,
        data_type: str,
        exchange: str | None,
        symbol: str | None,
        payload_of: Callable[[Any], Payload] | None,
    ) -> _StreamEncoder:
        stream = Stream(
            session_id=self._session_id,
            exchange=exchange or "",
            symbol=symbol or "",
            payload_case=case,
            data_type=data_type,
            source=self._source,
            origin=self._origin,
            meta=self._meta,
        )
        # Requests of several intervals have several data types in one payload case, and one sequence.
        place = stream.exchange, stream.symbol, case
        series = self._series.get(place)
        if series is None:
            series = self._series[place] = _Series(*place)
        head = b"".join(
            tag(number) + delimited(text.encode())
            for number, text in ((1, self._source), (2, exchange), (3, symbol))
            if text is not None
        )
        meta = b"".join(
            tag(10) + delimited(tag(1) + delimited(name.encode()) + tag(2) + delimited(value.encode()))
            for name, value in sorted(self._meta.items())
        )
        return _StreamEncoder(stream, series, head + tag(4), meta, payload_of)
