# cython: language_level=3, boundscheck=False, wraparound=False, annotation_typing=False
"""`frame_runs` compiled: cuts what was read into plain frames, without an object for each but its payload."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t

from aiohttp import WSMessage, WSMsgType

__all__ = ["runs_before"]

cdef:
    object _Message = WSMessage
    object _TEXT = WSMsgType.TEXT
    object _BINARY = WSMsgType.BINARY
    object _PING = WSMsgType.PING
    object _PONG = WSMsgType.PONG
    tuple _TAKEN = (False, b"")

cdef enum:
    # Of a whole frame, in its first byte.
    TEXT = 0x81
    BINARY = 0x82
    PING = 0x89
    PONG = 0x8A


cdef class Runs:
    """Takes what was read of a connection as a parser of aiohttp's does."""

    cdef object _parser
    cdef object _put
    cdef uint64_t _limit
    # Of a frame that is not whole yet: what came of it, how much that is, and how much it has to be.
    cdef list _parts
    cdef uint64_t _size
    cdef uint64_t _wanted
    # From here on all is the parser's.
    cdef bint _has_ended

    def __cinit__(self, parser, queue, limit_bytes):
        self._parser = parser
        self._put = queue.feed_data
        self._limit = limit_bytes
        self._parts = []

    def feed_eof(self):
        """See aiohttp's."""
        self._parser.feed_eof()

    def feed_data(self, data):
        """See aiohttp's: whether reading has to end, and what is left."""
        cdef bytes read
        cdef const unsigned char *start
        cdef uint64_t count, at = 0, header, length, place
        cdef unsigned char kind
        cdef list run = []
        cdef object run_kind = None
        cdef uint64_t run_bytes = 0
        if self._has_ended:
            return self._parser.feed_data(data)
        read = data if type(data) is bytes else bytes(data)
        if self._parts:
            self._parts.append(read)
            self._size += PyBytes_GET_SIZE(read)
            if self._size < self._wanted:
                return _TAKEN
            read = b"".join(self._parts)
            self._parts.clear()
        start = <const unsigned char *> PyBytes_AS_STRING(read)
        count = PyBytes_GET_SIZE(read)
        while at < count:
            self._wanted = 2
            if count - at < 2:
                break
            kind, length = start[at], start[at + 1]
            header = 2
            if length == 126 or length == 127:
                header = 4 if length == 126 else 10
                self._wanted = header
                if count - at < header:
                    break
                length = 0
                for place in range(at + 2, at + header):
                    length = length << 8 | start[place]
            elif length > 127:
                # A server that masks.
                length = self._limit + 1
            if (kind != TEXT and kind != BINARY and ((kind != PING and kind != PONG) or header != 2)) or length > self._limit:
                self._has_ended = True
                break
            self._wanted = header + length
            if count - at < self._wanted:
                break
            payload = PyBytes_FromStringAndSize(<const char *> start + at + header, length)
            at += self._wanted
            found = _TEXT if kind == TEXT else _BINARY if kind == BINARY else None
            if found is not run_kind:
                if run:
                    self._put(_Message(run_kind, run, ""), run_bytes)
                run, run_bytes, run_kind = [], 0, found
            if found is None:
                self._put(_Message(_PING if kind == PING else _PONG, payload, ""), length)
            else:
                run.append(payload)
                run_bytes += length
        if run:
            self._put(_Message(run_kind, run, ""), run_bytes)
        if self._has_ended:
            return self._parser.feed_data(read[at:])
        if at < count:
            self._parts.append(read[at:] if at else read)
            self._size = count - at
        return _TAKEN


def runs_before(parser, queue, limit_bytes):
    """See `frame_runs.runs_before`."""
    return Runs(parser, queue, limit_bytes)
