"""The bytes of a spool segment: frames, each with a sync mark, its length and a checksum.

A frame holds one event, or the description of a stream, which events name by its hash. A segment has all the descriptions that it
needs, each written again every now and then.

Invariant: whatever happens to some of the bytes, every frame that is whole can be found and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec
from xxhash import xxh3_64_digest

from ..bronze.event import Event, EventStream

__all__ = [
    "SpoolFrame",
    "StoredEvent",
    "StreamTable",
    "count_events",
    "encode_events",
    "frames_of",
    "is_torn",
    "parse_event",
    "read_run",
]

# Not to be found in text, nor likely in Protobuf.
SYNC = b"\xf5TM\x00"
_HEAD = Struct("<4sII")
_EVENT = Struct("<c8sQqq16s")
_EVENT_KIND, _STREAM_KIND = b"E", b"S"
_MAX_BODY_BYTES = 1 << 30
# A description that is lost takes no more than this much with it.
_DESCRIBE_EVERY_BYTES = 64 * 1024
# What is forgotten can be read again from its segment.
_STREAMS_KEPT = 20_000

_stream_encoder = msgspec.msgpack.Encoder()
_stream_decoder = msgspec.msgpack.Decoder(EventStream)


class StreamTable:
    """Streams by hash: those that were read, and those that the segment being written has described."""

    def __init__(self) -> None:
        self._streams: dict[bytes, EventStream] = {}
        self._hashes: dict[tuple[str, str, str, str, str], bytes] = {}
        self._described: set[bytes] = set()
        self._bytes_since = 0

    def learn(self, body: bytes | memoryview) -> None:
        """Takes in a description."""
        encoded = bytes(body[1:])
        self._streams[xxh3_64_digest(encoded)] = _stream_decoder.decode(encoded)

    def get(self, stream_hash: bytes) -> EventStream | None:
        """The stream of a hash."""
        return self._streams.get(stream_hash)

    def start_segment(self) -> None:
        """Nothing is described in a new segment."""
        if len(self._streams) > _STREAMS_KEPT:
            self._streams.clear()
            self._hashes.clear()
        self._described.clear()
        self._bytes_since = 0

    def describe(self, stream: EventStream, parts: list[bytes]) -> bytes:
        """The stream's hash; adds the frame that describes it, where it is due."""
        identity = (stream.session_id, stream.exchange, stream.symbol, stream.payload_case, stream.data_type)
        stream_hash = self._hashes.get(identity)
        if stream_hash is None or stream_hash not in self._described:
            encoded = _stream_encoder.encode(stream)
            stream_hash = self._hashes[identity] = xxh3_64_digest(encoded)
            self._streams[stream_hash] = stream
            self._described.add(stream_hash)
            body = _STREAM_KIND + encoded
            parts.append(_HEAD.pack(SYNC, len(body), crc32(body)))
            parts.append(body)
        return stream_hash

    def wrote(self, size_bytes: int) -> None:
        """So many bytes went to the segment; past a measure everything is described anew."""
        self._bytes_since += size_bytes
        if self._bytes_since >= _DESCRIBE_EVERY_BYTES:
            self.start_segment()


def encode_events(events: Sequence[Event], accepted_us: int, table: StreamTable) -> bytes:
    """Frames of events, with the descriptions of their streams where those are due."""
    parts: list[bytes] = []
    hashes: dict[int, bytes] = {}
    pack_head, pack_event = _HEAD.pack, _EVENT.pack
    for event in events:
        stream = event.stream
        stream_hash = hashes.get(id(stream))
        if stream_hash is None:
            stream_hash = hashes[id(stream)] = table.describe(stream, parts)
        body = pack_event(_EVENT_KIND, stream_hash, event.sequence, event.local_ts_us, accepted_us, event.event_id) + event.value
        parts.append(pack_head(SYNC, len(body), crc32(body)))
        parts.append(body)
    data = b"".join(parts)
    table.wrote(len(data))
    return data


class SpoolFrame(NamedTuple):
    """A stretch of a segment: a whole frame, or bytes that are none (`body` is None)."""

    start: int
    stop: int
    body: memoryview | None

    @property
    def is_event(self) -> bool:
        return self.body is not None and self.body[0] == _EVENT_KIND[0]


def frames_of(data: memoryview, start: int = 0) -> Iterator[SpoolFrame]:
    """All frames, and what lies between them where something is damaged; together they cover the data."""
    while start < len(data):
        frame = _frame_at(data, start)
        if frame is None:
            resume = _next_whole(data, start + 1)
            yield SpoolFrame(start, resume, None)
            start = resume
        else:
            yield frame
            start = frame.stop


def _frame_at(data: memoryview, start: int) -> SpoolFrame | None:
    if len(data) - start < _HEAD.size:
        return None
    sync, length, checksum = _HEAD.unpack_from(data, start)
    stop = start + _HEAD.size + length
    if sync != SYNC or length > _MAX_BODY_BYTES or stop > len(data):
        return None
    body = data[start + _HEAD.size : stop]
    return SpoolFrame(start, stop, body) if crc32(body) == checksum else None


def is_torn(data: memoryview) -> bool:
    """Whether these bytes, the last of a file, are the beginning of a frame whose end was never written."""
    if len(data) < _HEAD.size:
        return bytes(data[: len(SYNC)]) == SYNC[: len(data)]
    sync, length, _ = _HEAD.unpack_from(data)
    return bool(sync == SYNC) and length <= _MAX_BODY_BYTES and _HEAD.size + length > len(data)


def _next_whole(data: memoryview, start: int) -> int:
    """Where the next whole frame begins, or the end."""
    window = 1 << 20
    while start < len(data):
        found = bytes(data[start : start + window]).find(SYNC)
        if found < 0:
            start += max(1, min(window, len(data) - start) - len(SYNC) + 1)
        elif _frame_at(data, start + found) is not None:
            return start + found
        else:
            start += found + 1
    return len(data)


def read_run(data: bytes, start: int, table: StreamTable, max_events: int) -> tuple[list[Event], int, int]:
    """The events from `start` on, where they end, and when the first was accepted: as far as all is as it mostly is.

    Stops before a session's end, a stream that is not known, and bytes that are no whole frame; `frames_of` sees what they are.
    """
    events: list[Event] = []
    accepted_us = 0
    head_bytes, event_bytes, event_kind, size_bytes = _HEAD.size, _EVENT.size, _EVENT_KIND[0], len(data)
    unpack_head, unpack_event, stream_of = _HEAD.unpack_from, _EVENT.unpack_from, table.get
    while len(events) < max_events and start + head_bytes < size_bytes:
        sync, length, checksum = unpack_head(data, start)
        stop = start + head_bytes + length
        if sync != SYNC or stop > size_bytes:
            break
        body = data[start + head_bytes : stop]
        if crc32(body) != checksum:
            break
        if body[0] == event_kind:
            _, stream_hash, sequence, local_ts_us, event_accepted_us, event_id = unpack_event(body)
            stream = stream_of(stream_hash)
            if stream is None or stream.payload_case == "session_end":
                break
            if not events:
                accepted_us = event_accepted_us
            events.append(Event(stream, event_id, body[event_bytes:], sequence, local_ts_us))
        else:
            table.learn(body)
        start = stop
    return events, start, accepted_us


def count_events(data: memoryview, start: int, table: StreamTable) -> tuple[int, int]:
    """Counts events from `start` on, up to where a frame is not whole, and takes in what streams are described there."""
    count = 0
    head_bytes, event_kind, size_bytes, unpack_head = _HEAD.size, _EVENT_KIND[0], len(data), _HEAD.unpack_from
    while start + head_bytes < size_bytes:
        sync, length, checksum = unpack_head(data, start)
        stop = start + head_bytes + length
        if sync != SYNC or stop > size_bytes:
            break
        body = data[start + head_bytes : stop]
        if crc32(body) != checksum:
            break
        if body[0] == event_kind:
            count += 1
        else:
            table.learn(body)
        start = stop
    return count, start


class StoredEvent(NamedTuple):
    """An event's frame, its stream still a hash."""

    stream_hash: bytes
    sequence: int
    local_ts_us: int
    accepted_us: int
    event_id: bytes
    value: bytes


def parse_event(body: memoryview) -> StoredEvent:
    """The body of an event's frame."""
    _, stream_hash, sequence, local_ts_us, accepted_us, event_id = _EVENT.unpack_from(body)
    return StoredEvent(stream_hash, sequence, local_ts_us, accepted_us, event_id, bytes(body[_EVENT.size :]))


# Where it was compiled, frames are written there.
with suppress(ImportError):
    from .segment_compiled import *  # noqa: F403
