"""Normalized messages to Bronze events: `lakehouse.bronze.v1.NormalizedEvent`, its identity and its place in the session.

Invariant: `event_id` and `sequence` depend on the stream of messages alone, never on how it was cut into batches. What is the
same in all events of a stream (source, exchange, symbol, origin, meta) is serialized once; `payloads` and `sealing` write the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from .._version import __version__
from ..messages import (
    UNSET,
    Absent,
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
from .bundle import Bundle
from .event import Event, EventStream
from .payload_case import PAYLOAD_CASES, data_type_of, parse_payload_case, payload_case_of
from .payloads import PAYLOAD_ENCODERS, Payload
from .sealing import EventNumbering, StreamSealer, StreamsOfType, encode_null_fields, seal_messages
from .wire import delimited, encode_timestamp, tag, varint

if TYPE_CHECKING:
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import SessionEnd

__all__ = ["PAYLOAD_CASES", "BronzeEncoder", "Origin", "parse_payload_case", "payload_case_of"]

Origin = Literal["realtime", "replay", "archive"]

_ORIGINS: Mapping[Origin, int] = {"realtime": 1, "replay": 2, "archive": 3}
_PAYLOAD_NUMBERS = dict(zip(PAYLOAD_CASES, (*range(100, 110), 150, 151, 152), strict=True))
_EVENT_ID_HEAD = tag(7) + b"\x10"


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


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
        self._numberings: dict[tuple[str, str, str], EventNumbering] = {}
        self._streams: dict[type[Any], StreamsOfType] = {
            message_type: (key_of, {}) for message_type, key_of in _STREAM_KEYS.items()
        }

    def encode(self, messages: Sequence[Message]) -> Bundle:
        """The messages' events, one each; with `book_changes="level"` one for each level of a book change."""
        return Bundle(*seal_messages(messages, self._streams, self._open, self._batch_fields()))

    def encode_session_end(self, session_end: SessionEnd) -> list[Event]:
        """The session's last event; none where `include` leaves it out. Its local time is the end of the session."""
        if self._include is not None and "session_end" not in self._include:
            return []
        body = session_end.SerializeToString(deterministic=True)
        ended_us = session_end.ended_ts.ToMicroseconds()
        sealer = self._sealer("session_end", "session_end", UNSET, UNSET, None)
        local = encode_timestamp(ended_us), ended_us, False
        return [Event(sealer.stream, *sealer.seal((body, 0, ()), local, self._batch_fields()))]

    def _batch_fields(self) -> bytes:
        """The fields from ingest_ts to the start of event_id, the same for all events of a batch."""
        return b"".join(
            (
                tag(5),
                encode_timestamp(self._clock_us()),
                tag(6, is_varint=True),
                varint(_ORIGINS[self._origin]),
                _EVENT_ID_HEAD,
            )
        )

    def _open(self, message: Message) -> StreamSealer | None:
        """What seals messages like this one; None where they are not included."""
        case = payload_case_of(message)
        if self._include is not None and case not in self._include:
            return None
        symbol: str | Absent | None = getattr(message, "symbol", UNSET)
        as_levels = case == "book_change" and self._book_changes == "level"
        payload_of = None if as_levels else PAYLOAD_ENCODERS[case]
        return self._sealer(case, data_type_of(message), message.exchange, symbol, payload_of)

    def _sealer(
        self,
        case: str,
        data_type: str,
        exchange: str | Absent,
        symbol: str | Absent | None,
        payload_of: Callable[[Any], Payload] | None,
    ) -> StreamSealer:
        stream = EventStream(
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
        counted = stream.exchange, stream.symbol, case
        numbering = self._numberings.get(counted)
        if numbering is None:
            numbering = self._numberings[counted] = EventNumbering(*counted)
        head = b"".join(
            tag(number) + delimited(text.encode())
            for number, text in ((1, self._source), (2, exchange), (3, symbol))
            if text is not UNSET and text is not None
        )
        meta = b"".join(
            tag(10) + delimited(tag(1) + delimited(name.encode()) + tag(2) + delimited(value.encode()))
            for name, value in sorted(self._meta.items())
        )
        if symbol is None:
            # What follows the fields of meta in an event are its null fields, of which this is the first.
            meta += encode_null_fields(["symbol"])
        return StreamSealer(stream, numbering, _PAYLOAD_NUMBERS[case], head + tag(4), meta, payload_of)
