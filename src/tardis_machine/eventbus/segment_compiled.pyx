# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`segment` compiled: frames of events are written in one pass, while other threads run.

The thread that writes to disk shares the interpreter with the one that sends: what is done here without it costs that one nothing.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from tardis_machine._declarations cimport PyMemberDef, find_field, get_field

import sys

from ..bronze.event import Event
from .segment import SYNC
from .segment import encode_events as encode_unusual

__all__ = ["encode_events"]

if sys.byteorder != "little":
    raise ImportError("frames are written as this processor keeps numbers, which is not how they are to be")

cdef:
    object _Event = Event
    object _encode_unusual = encode_unusual
    PyMemberDef *_STREAM = find_field(Event, "stream")
    PyMemberDef *_EVENT_ID = find_field(Event, "event_id")
    PyMemberDef *_VALUE = find_field(Event, "value")
    PyMemberDef *_SEQUENCE = find_field(Event, "sequence")
    PyMemberDef *_LOCAL_TS_US = find_field(Event, "local_ts_us")
    # Of eight bytes at a time: what each of them, with so many zeros behind it, adds to a checksum.
    uint32_t _TABLE[8][256]
    uint32_t _sync = int.from_bytes(SYNC, "little")

cdef enum:
    ID = 16
    HASH = 8
    # Sync mark, length and checksum; then kind, hash, three numbers and id.
    HEAD = 12
    FIXED = 1 + HASH + 3 * 8 + ID
    # What a frame's length may be at most is far above that.
    LONGEST = 1 << 29

cdef struct Frame:
    # The description that stands before it, if one does.
    const char *described
    Py_ssize_t described_size
    const char *stream_hash
    const char *event_id
    const char *value
    uint32_t size
    uint64_t sequence
    int64_t local_ts_us


cdef int _fill_table() except -1:
    cdef uint32_t checksum
    cdef int byte, bit, place
    for byte in range(256):
        checksum = byte
        for bit in range(8):
            checksum = (checksum >> 1) ^ (0xEDB88320 if checksum & 1 else 0)
        _TABLE[0][byte] = checksum
    for byte in range(256):
        for place in range(1, 8):
            checksum = _TABLE[place - 1][byte]
            _TABLE[place][byte] = (checksum >> 8) ^ _TABLE[0][checksum & 0xFF]
    return 0


_fill_table()


cdef uint32_t _checksum_of(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """zlib's crc32."""
    cdef uint32_t checksum = 0xFFFFFFFF
    cdef uint64_t eight
    while size >= 8:
        memcpy(&eight, at, 8)
        eight ^= checksum
        checksum = (
            _TABLE[7][eight & 0xFF]
            ^ _TABLE[6][(eight >> 8) & 0xFF]
            ^ _TABLE[5][(eight >> 16) & 0xFF]
            ^ _TABLE[4][(eight >> 24) & 0xFF]
            ^ _TABLE[3][(eight >> 32) & 0xFF]
            ^ _TABLE[2][(eight >> 40) & 0xFF]
            ^ _TABLE[1][(eight >> 48) & 0xFF]
            ^ _TABLE[0][eight >> 56]
        )
        at += 8
        size -= 8
    while size:
        checksum = (checksum >> 8) ^ _TABLE[0][(checksum ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return ~checksum


cdef char *_put_frame(char *at, const Frame *frame, int64_t accepted_us) noexcept nogil:
    cdef uint32_t length = FIXED + frame.size, checksum
    cdef char *body = at + HEAD
    body[0] = c"E"
    memcpy(body + 1, frame.stream_hash, HASH)
    memcpy(body + 1 + HASH, &frame.sequence, 8)
    memcpy(body + 9 + HASH, &frame.local_ts_us, 8)
    memcpy(body + 17 + HASH, &accepted_us, 8)
    memcpy(body + 25 + HASH, frame.event_id, ID)
    memcpy(body + FIXED, frame.value, frame.size)
    checksum = _checksum_of(<const uint8_t *> body, length)
    memcpy(at, &_sync, 4)
    memcpy(at + 4, &length, 4)
    memcpy(at + 8, &checksum, 4)
    return body + length


cdef bint _read(object event, Frame *frame) except -1:
    """Whether it is an event as they are; its frame but for its stream."""
    cdef int overflow = 0
    cdef int64_t sequence
    if type(event) is not _Event:
        return False
    event_id, value = get_field(event, _EVENT_ID), get_field(event, _VALUE)
    number, local_ts_us = get_field(event, _SEQUENCE), get_field(event, _LOCAL_TS_US)
    if not PyBytes_CheckExact(event_id) or PyBytes_GET_SIZE(event_id) != ID:
        return False
    if not PyBytes_CheckExact(value) or PyBytes_GET_SIZE(value) > LONGEST:
        return False
    if not PyLong_CheckExact(number) or not PyLong_CheckExact(local_ts_us):
        return False
    sequence = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow or sequence < 0:
        return False
    frame.sequence = <uint64_t> sequence
    frame.local_ts_us = PyLong_AsLongLongAndOverflow(local_ts_us, &overflow)
    if overflow:
        return False
    frame.event_id, frame.value = PyBytes_AS_STRING(event_id), PyBytes_AS_STRING(value)
    frame.size = <uint32_t> PyBytes_GET_SIZE(value)
    return True


def encode_events(events, accepted_us, table):
    """See `segment.encode_events`."""
    cdef list given, kept = []
    cdef Py_ssize_t count, place, size = 0
    cdef Frame *frames
    cdef int64_t accepted
    cdef int overflow = 0
    cdef bytes data, stream_hash = None
    cdef dict hashes = {}
    cdef char *at
    if not PyList_CheckExact(events) or not PyLong_CheckExact(accepted_us):
        return _encode_unusual(events, accepted_us, table)
    accepted = PyLong_AsLongLongAndOverflow(accepted_us, &overflow)
    given = events
    count = len(given)
    frames = <Frame *> malloc(count * sizeof(Frame) + 1)
    if frames == NULL:
        raise MemoryError
    try:
        # All of them before the first stream is described, as each is described once.
        for place in range(count):
            if overflow or not _read(given[place], &frames[place]):
                return _encode_unusual(events, accepted_us, table)
            size += HEAD + FIXED + frames[place].size
        before = None
        for place in range(count):
            stream = get_field(given[place], _STREAM)
            frames[place].described = NULL
            if stream is not before:
                before = stream
                stream_hash = hashes.get(id(stream))
                if stream_hash is None:
                    parts = []
                    stream_hash = hashes[id(stream)] = table.describe(stream, parts)
                    kept.append(stream_hash)
                    if parts:
                        described = b"".join(parts)
                        kept.append(described)
                        frames[place].described = PyBytes_AS_STRING(described)
                        frames[place].described_size = PyBytes_GET_SIZE(described)
                        size += PyBytes_GET_SIZE(described)
            frames[place].stream_hash = PyBytes_AS_STRING(stream_hash)
        data = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(data)
        with nogil:
            for place in range(count):
                if frames[place].described != NULL:
                    memcpy(at, frames[place].described, frames[place].described_size)
                    at += frames[place].described_size
                at = _put_frame(at, &frames[place], accepted)
    finally:
        free(frames)
    table.wrote(size)
    return data
