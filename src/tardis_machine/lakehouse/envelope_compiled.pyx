# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`envelope` compiled: the envelopes of usual events, read straight from the wire.

Whatever is not usual (a field that comes twice, is cut off or of another type, text that is not ASCII, a time before 1970, the lack
of what nearly all events have) is left to `to_envelopes`, which is the definition.

Invariant: it gives the columns of all values, each as the definition has it, or None.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ..generated.lakehouse.bronze.v1 import normalized_event_pb2
from .decoding import PAYLOAD_CASES, enum_names

__all__ = ["read_envelopes"]

# The numbers of the fields, which the schema promises to keep.
cdef enum:
    EXCHANGE = 2, SYMBOL = 3, LOCAL_TS = 4, INGEST_TS = 5, ORIGIN = 6, EVENT_ID = 7, SEQUENCE = 8, META = 10
    REQUIRED = 1 << LOCAL_TS | 1 << INGEST_TS | 1 << ORIGIN | 1 << EVENT_ID | 1 << SEQUENCE | 1 << META
    # How many fields have a tag of two bytes at most; the schema has none above.
    FIELDS = 2048
    VARINT = 0, EIGHT_BYTES = 1, DELIMITED = 2, FOUR_BYTES = 5

cdef:
    # Of each field: the wire type that it has to have, -1 where it is passed over.
    signed char _WIRE_TYPES[FIELDS]
    # Of each field: its place among the payload cases, -1 where it is none.
    signed char _CASES[FIELDS]
    list _CASE_NAMES = [*PAYLOAD_CASES]
    list _ORIGIN_NAMES = [*enum_names("NormalizedEvent.origin")]
    uint64_t _ORIGINS = len(_ORIGIN_NAMES)
    # The end of the year 9999.
    uint64_t _LAST_SECOND = 253_402_300_799
    signed char _ERROR = PAYLOAD_CASES.index("error")
    signed char _SESSION_END = PAYLOAD_CASES.index("session_end")

memset(_WIRE_TYPES, -1, FIELDS)
memset(_CASES, -1, FIELDS)
for _field in (EXCHANGE, SYMBOL, LOCAL_TS, INGEST_TS, EVENT_ID, META):
    _WIRE_TYPES[_field] = DELIMITED
for _field in (ORIGIN, SEQUENCE):
    _WIRE_TYPES[_field] = VARINT
for _case, _name in enumerate(PAYLOAD_CASES):
    _field = normalized_event_pb2.NormalizedEvent.DESCRIPTOR.fields_by_name[_name].number
    _WIRE_TYPES[_field] = DELIMITED
    _CASES[_field] = _case

ctypedef const uint8_t *Place

cdef struct Span:
    Place at
    Place end

cdef struct Row:
    Span exchange, symbol, event_id, session
    int64_t local_us, ingest_us, sequence
    int32_t case, origin


cdef inline Place _read_varint(Place at, Place end, uint64_t *number) noexcept:
    """Where it ends; NULL where it is cut off, or longer than 63 bits need: those may be no int64."""
    cdef uint64_t found = 0
    cdef int shift = 0
    while at != end and shift < 63:
        found |= <uint64_t> (at[0] & 127) << shift
        if at[0] < 128:
            number[0] = found
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline Place _read_span(Place at, Place end, Span *span) noexcept:
    """Where it ends; NULL where it is cut off."""
    cdef uint64_t length
    at = _read_varint(at, end, &length)
    if at == NULL or length > <uint64_t> (end - at):
        return NULL
    span.at, span.end = at, at + length
    return span.end


cdef bint _is_ascii(Place at, Place end) noexcept:
    cdef uint8_t all_bits = 0
    while at != end:
        all_bits |= at[0]
        at += 1
    return all_bits < 128


cdef bint _read_instant(Span span, int64_t *instant_us) noexcept:
    """Whether it is usual: seconds and nanoseconds, in their order."""
    cdef uint64_t seconds = 0, nanoseconds = 0
    cdef Place at = span.at
    if at != span.end and at[0] == 1 << 3:
        at = _read_varint(at + 1, span.end, &seconds)
        if at == NULL:
            return False
    if at != span.end and at[0] == 2 << 3:
        at = _read_varint(at + 1, span.end, &nanoseconds)
    instant_us[0] = seconds * 1_000_000 + nanoseconds // 1000
    return at == span.end and seconds <= _LAST_SECOND and nanoseconds < 1_000_000_000


cdef class _Reader:
    """Reads events one after the other. Most have the meta of the one before: then it is compared, and not read again."""

    cdef Row row
    # Entries of meta that follow one another, as they were read last, and the session among them.
    cdef Span known_meta, known_session

    cdef bint read(self, Place at, Place end) noexcept:
        """Whether the event is usual; `row` then has what it holds."""
        cdef Row *row = &self.row
        cdef int seen = 0, tag, field, wire_type
        cdef uint64_t number = 0
        cdef Span span
        cdef Place begin
        row.exchange.at = row.symbol.at = row.session.at = NULL
        row.case = -1
        # The frame of a schema registry, which `decoding` takes off too; in any other value a zero is the tag of no field.
        if end - at > 5 and at[0] == 0 and at[5] == 0:
            at += 6
        while at != end:
            begin = at
            tag = at[0]
            at += 1
            if tag >= 128:
                if at == end or at[0] >= 128:
                    return False
                tag = tag & 127 | at[0] << 7
                at += 1
            field, wire_type = tag >> 3, tag & 7
            if not field or (_WIRE_TYPES[field] >= 0 and _WIRE_TYPES[field] != wire_type):
                return False
            if wire_type == DELIMITED:
                at = _read_span(at, end, &span)
            elif wire_type == VARINT:
                at = _read_varint(at, end, &number)
            elif wire_type == EIGHT_BYTES:
                at = at + 8 if end - at >= 8 else NULL
            elif wire_type == FOUR_BYTES:
                at = at + 4 if end - at >= 4 else NULL
            else:
                return False
            if at == NULL:
                return False
            if _WIRE_TYPES[field] < 0:
                continue
            if _CASES[field] >= 0:
                if row.case >= 0:
                    return False
                # Any bytes will do, as in the definition: a payload is read by the table that it belongs to.
                row.case = _CASES[field]
                continue
            if field == META:
                if not seen >> META & 1 and self.is_known(begin, end):
                    at = begin + (self.known_meta.end - self.known_meta.at)
                    row.session = self.known_session
                elif not self.read_entry(span, begin, seen >> META & 1):
                    return False
            elif seen >> field & 1:
                return False
            elif field == EXCHANGE:
                row.exchange = span
            elif field == SYMBOL:
                row.symbol = span
            elif field == LOCAL_TS:
                if not _read_instant(span, &row.local_us):
                    return False
            elif field == INGEST_TS:
                if not _read_instant(span, &row.ingest_us):
                    return False
            elif field == EVENT_ID:
                row.event_id = span
            elif field == SEQUENCE:
                row.sequence = number
            elif number < _ORIGINS:
                row.origin = number
            else:
                return False
            seen |= 1 << field
        if row.case < 0 or row.session.at == NULL or seen & REQUIRED != REQUIRED:
            return False
        return row.exchange.at != NULL or row.case == _ERROR or row.case == _SESSION_END

    cdef bint is_known(self, Place begin, Place end) noexcept:
        cdef Py_ssize_t length = self.known_meta.end - self.known_meta.at
        return 0 < length <= end - begin and memcmp(begin, self.known_meta.at, length) == 0

    cdef bint read_entry(self, Span entry, Place begin, bint is_begun) noexcept:
        """Whether an entry of meta is usual: a key and a value, in their order, and not a second session."""
        cdef Place at = entry.at
        cdef Span key, value
        if at == entry.end or at[0] != (1 << 3 | DELIMITED):
            return False
        at = _read_span(at + 1, entry.end, &key)
        if at == NULL or at == entry.end or at[0] != (2 << 3 | DELIMITED):
            return False
        if _read_span(at + 1, entry.end, &value) != entry.end or not _is_ascii(entry.at, entry.end):
            return False
        if not is_begun:
            self.known_meta.at = self.known_meta.end = begin
            self.known_session.at = NULL
        if begin == self.known_meta.end:
            self.known_meta.end = entry.end
        if key.end - key.at == 10 and memcmp(key.at, b"session_id", 10) == 0:
            if self.row.session.at != NULL:
                return False
            self.row.session = value
            if self.known_meta.end == entry.end:
                self.known_session = value
        return True


cdef struct Text:
    Span span
    int32_t place


cdef class _Texts:
    """A column of texts that repeat: their places in a dictionary, -1 where there is none."""

    cdef bytearray column
    cdef int32_t *places
    cdef dict known
    # Those that were met last, by what mostly tells them apart: most are found here.
    cdef Text recent[64]

    def __cinit__(self, Py_ssize_t count):
        self.column = bytearray(4 * count)
        self.places = <int32_t *> PyByteArray_AS_STRING(self.column)
        self.known = {}

    cdef bint put(self, Py_ssize_t row, Span text) except -1:
        """Whether it is ASCII."""
        cdef Py_ssize_t length = text.end - text.at
        cdef Text *recent
        cdef bytes key
        if text.at == NULL:
            self.places[row] = -1
            return True
        recent = &self.recent[(length + 5 * text.at[0] + 11 * (text.end - 1)[0] if length else 0) % 64]
        if recent.span.at == NULL or length != recent.span.end - recent.span.at or memcmp(text.at, recent.span.at, length) != 0:
            key = PyBytes_FromStringAndSize(<const char *> text.at, length)
            place = self.known.get(key)
            if place is None:
                if not _is_ascii(text.at, text.end):
                    return False
                place = self.known[key] = len(self.known)
            recent.span, recent.place = text, place
        self.places[row] = recent.place
        return True

    cdef tuple end(self):
        return self.column, [text.decode() for text in self.known]


def read_envelopes(offsets, data, Py_ssize_t first, Py_ssize_t count):
    """The columns of an envelope for values of a binary array, of which these are the buffers; None where one is not usual."""
    cdef Py_buffer offsets_view, data_view
    PyObject_GetBuffer(offsets, &offsets_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(data, &data_view, PyBUF_SIMPLE)
        try:
            return _read_all(<const int32_t *> offsets_view.buf + first, <Place> data_view.buf, count)
        finally:
            PyBuffer_Release(&data_view)
    finally:
        PyBuffer_Release(&offsets_view)


cdef tuple _read_all(const int32_t *offsets, Place data, Py_ssize_t count):
    cdef _Reader reader = _Reader()
    cdef Row *row = &reader.row
    cdef _Texts exchanges = _Texts(count), symbols = _Texts(count), sessions = _Texts(count)
    cdef bytearray cases = bytearray(4 * count), origins = bytearray(4 * count), local_ts = bytearray(8 * count)
    cdef bytearray ingest_ts = bytearray(8 * count), sequences = bytearray(8 * count)
    cdef bytearray id_offsets = bytearray(4 * count + 4), event_ids = bytearray(16 * count)
    cdef Py_ssize_t place, length, used = 0, room = 16 * count
    for place in range(count):
        if not reader.read(data + offsets[place], data + offsets[place + 1]):
            return None
        if not (exchanges.put(place, row.exchange) and symbols.put(place, row.symbol) and sessions.put(place, row.session)):
            return None
        (<int32_t *> PyByteArray_AS_STRING(cases))[place] = row.case
        (<int32_t *> PyByteArray_AS_STRING(origins))[place] = row.origin
        (<int64_t *> PyByteArray_AS_STRING(local_ts))[place] = row.local_us
        (<int64_t *> PyByteArray_AS_STRING(ingest_ts))[place] = row.ingest_us
        (<int64_t *> PyByteArray_AS_STRING(sequences))[place] = row.sequence
        length = row.event_id.end - row.event_id.at
        if used + length > room:
            room = 2 * room + length
            PyByteArray_Resize(event_ids, room)
        memcpy(PyByteArray_AS_STRING(event_ids) + used, row.event_id.at, length)
        used += length
        (<int32_t *> PyByteArray_AS_STRING(id_offsets))[place + 1] = used
    return (
        exchanges.end(),
        symbols.end(),
        (cases, _CASE_NAMES),
        (local_ts,),
        (ingest_ts,),
        (origins, _ORIGIN_NAMES),
        (id_offsets, event_ids),
        sessions.end(),
        (sequences,),
    )
