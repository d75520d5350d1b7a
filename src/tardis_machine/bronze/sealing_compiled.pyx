# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`sealing` compiled: the same classes and the same bytes, with trades and book changes written straight from their messages.

Everything that is not usual (a number that is null or has an exponent, an id that is no ASCII text, a timestamp of another form, any other
type of message) is left to the functions in `payloads` and `wire`, so that only what is frequent is written a second time here.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_Compare
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from tardis_machine._declarations cimport (
    LEVEL_BYTES,
    Number,
    PyMemberDef,
    PyUnicode_CheckExact,
    PyUnicode_DATA,
    PyUnicode_GET_LENGTH,
    PyUnicode_IS_COMPACT_ASCII,
    find_field,
    get_field,
    is_number,
    next_number,
    put,
    put_bytes,
    put_levels,
    put_number,
    put_varint,
)

from xxhash import xxh3_128_digest

from ..messages import BookChange, BookLevel, Trade, to_json
from .bundle import EventColumns
from .payloads import LOCAL_BIT, SIDES, TIMESTAMP_BIT, encode_book_levels
from .sealing import encode_millisecond_timestamps, encode_null_fields
from .wire import delimited, encode_timestamp, tag, to_instant, varint

__all__ = ["EventNumbering", "StreamSealer", "seal_messages"]

cdef:
    int _LOCAL = LOCAL_BIT
    int _TIMESTAMP = TIMESTAMP_BIT
    # From a trade's side to the start of its timestamp.
    dict _TRADE_SIDES = {name: tag(4, is_varint=True) + varint(value) + tag(10) for name, value in SIDES.items()}
    tuple _SIDES = tuple(SIDES)
    bytes _BID = tag(21)
    bytes _ASK = tag(22)
    object _Trade = Trade
    object _BookChange = BookChange
    object _BookLevel = BookLevel
    object _EventColumns = EventColumns
    object _to_json = to_json
    object _digest = xxh3_128_digest
    object _to_instant = to_instant
    PyMemberDef *_PRICE = find_field(BookLevel, "price")
    PyMemberDef *_AMOUNT = find_field(BookLevel, "amount")
    PyMemberDef *_TRADE_EXCHANGE = find_field(Trade, "exchange")
    PyMemberDef *_TRADE_SYMBOL = find_field(Trade, "symbol")
    PyMemberDef *_TRADE_LOCAL = find_field(Trade, "local_timestamp")
    PyMemberDef *_TRADE_TIME = find_field(Trade, "timestamp")
    PyMemberDef *_TRADE_ID = find_field(Trade, "id")
    PyMemberDef *_TRADE_PRICE = find_field(Trade, "price")
    PyMemberDef *_TRADE_AMOUNT = find_field(Trade, "amount")
    PyMemberDef *_TRADE_SIDE = find_field(Trade, "side")
    PyMemberDef *_CHANGE_EXCHANGE = find_field(BookChange, "exchange")
    PyMemberDef *_CHANGE_SYMBOL = find_field(BookChange, "symbol")
    PyMemberDef *_CHANGE_LOCAL = find_field(BookChange, "local_timestamp")
    PyMemberDef *_CHANGE_TIME = find_field(BookChange, "timestamp")
    PyMemberDef *_CHANGE_BIDS = find_field(BookChange, "bids")
    PyMemberDef *_CHANGE_ASKS = find_field(BookChange, "asks")
    PyMemberDef *_CHANGE_IS_SNAPSHOT = find_field(BookChange, "is_snapshot")


cdef inline uint64_t _number_at(const char *at) noexcept:
    """Eight bytes, the highest first."""
    cdef uint64_t number = 0
    cdef int place
    for place in range(8):
        number = number << 8 | <unsigned char> at[place]
    return number


cdef class _Buffer:
    """Room for one payload, used again for the next."""

    cdef char *data
    cdef Py_ssize_t room

    def __cinit__(self):
        self.room = 4096
        self.data = <char *> PyMem_Malloc(self.room)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int ensure(self, Py_ssize_t size) except -1:
        cdef char *data
        if size > self.room:
            data = <char *> PyMem_Realloc(self.data, 2 * size)
            if data == NULL:
                raise MemoryError
            self.data = data
            self.room = 2 * size
        return 0


cdef struct Instant:
    char wire[32]  # a google.protobuf.Timestamp, length first
    int length
    int64_t us
    bint in_milliseconds


cdef class _Clock:
    """Reads timestamps. Ticks share their second with many others: only the fraction is read each time."""

    cdef char text[19]
    cdef bint knows
    cdef int64_t second_us
    cdef char head[16]
    cdef int head_length

    cdef int read(self, object text, Instant *out) except -1:
        cdef const char *data
        cdef Py_ssize_t length
        cdef int64_t fraction = 0
        cdef int digits, digit, place
        cdef char *end
        if self.knows and PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text):
            data = <const char *> PyUnicode_DATA(text)
            length = PyUnicode_GET_LENGTH(text)
            digits = <int> length - 21
            if (digits == 3 or digits == 6) and memcmp(data, self.text, 19) == 0 and data[19] == c"." and data[length - 1] == c"Z":
                for place in range(20, 20 + digits):
                    digit = data[place] - c"0"
                    if digit < 0 or digit > 9:
                        return self._read_unusual(text, out)
                    fraction = 10 * fraction + digit
                if digits == 3:
                    fraction *= 1000
                end = put(out.wire + 1, self.head, self.head_length)
                if fraction:
                    end[0] = 0x10
                    end = put_varint(end + 1, <uint64_t> fraction * 1000)
                out.length = <int> (end - out.wire)
                out.wire[0] = <char> (out.length - 1)
                out.us = self.second_us + fraction
                out.in_milliseconds = digits == 3
                return 0
        return self._read_unusual(text, out)

    cdef int _read_unusual(self, object text, Instant *out) except -1:
        """By the function that knows all forms; a usual one's second is remembered."""
        wire, us, in_milliseconds = _to_instant(text)
        _set(out, wire, us, in_milliseconds)
        if len(text) in (24, 27) and text.isascii() and PyUnicode_CheckExact(text) and out.us >= 1_000_000:
            memcpy(self.text, PyUnicode_DATA(text), 19)
            self.second_us = out.us - out.us % 1_000_000
            self.head[0] = 0x08
            self.head_length = <int> (put_varint(self.head + 1, <uint64_t> self.second_us // 1_000_000) - self.head)
            self.knows = True
        return 0


cdef int _set(Instant *out, bytes wire, int64_t us, bint in_milliseconds) except -1:
    if PyBytes_GET_SIZE(wire) > <Py_ssize_t> sizeof(out.wire):
        raise ValueError("a timestamp takes at most 31 bytes")
    memcpy(out.wire, PyBytes_AS_STRING(wire), len(wire))
    out.length = <int> len(wire)
    out.us = us
    out.in_milliseconds = in_milliseconds
    return 0



cdef class EventNumbering:
    """See `sealing.EventNumbering`."""

    cdef public uint64_t next_sequence
    cdef bytes frame
    cdef int64_t latest_us
    cdef bytes latest_id
    cdef dict counts

    def __init__(self, exchange, symbol, payload_case, next_sequence=0):
        self.next_sequence = next_sequence
        self.frame = b"".join(delimited(part.encode()) for part in (exchange, symbol, payload_case))
        self.latest_us = -(<int64_t> 1 << 62) * 2
        self.latest_id = b""
        self.counts = None

    cdef bytes event_id(self, Instant *local, const char *body, Py_ssize_t length):
        cdef bytes event_id, step
        cdef object ordinal
        if local.us > self.latest_us:
            self.latest_us = local.us
            self.counts = None
            self.latest_id = event_id = self.hash(local, b"\0\0", body, length)
            return event_id
        step = encode_timestamp(self.latest_us) if local.us < self.latest_us else b"\0"
        event_id = self.hash(local, step + b"\0", body, length)
        if self.counts is None:
            self.counts = {self.latest_id: 1}
        ordinal = self.counts.get(event_id, 0)
        self.counts[event_id] = ordinal + 1
        return self.hash(local, step + varint(ordinal), body, length) if ordinal else event_id

    cdef bytes hash(self, Instant *local, bytes ordinal, const char *body, Py_ssize_t length):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.frame) + local.length + PyBytes_GET_SIZE(ordinal) + length
        cdef bytes hashed = PyBytes_FromStringAndSize(NULL, size)
        cdef char *at = put_bytes(PyBytes_AS_STRING(hashed), self.frame)
        at = put(at, local.wire, local.length)
        at = put_bytes(at, ordinal)
        put(at, body, length)
        return _digest(hashed)


cdef class StreamSealer:
    """See `sealing.StreamSealer`."""

    cdef readonly object stream
    cdef readonly object payload_of
    cdef EventNumbering numbering
    cdef bytes head, meta, payload_tag
    cdef list tails
    # Of the batch at hand: its number, the index of this stream in it, and what is to become its columns.
    cdef uint64_t batch
    cdef object index
    cdef list event_ids, values, sequences, times
    cdef uint64_t digest_high, digest_low
    cdef Py_ssize_t size, largest

    def __init__(self, stream, EventNumbering numbering, payload_number, bytes head, bytes meta, payload_of):
        self.stream = stream
        self.payload_of = payload_of
        self.numbering = numbering
        self.head = head
        self.meta = meta
        self.payload_tag = tag(payload_number)
        self.tails = [meta + encode_millisecond_timestamps(bits) for bits in range(16)]

    def seal(self, payload, local, bytes batch_fields):
        """See `sealing.StreamSealer`."""
        cdef Instant instant
        _set(&instant, local[0], local[1], local[2])
        self.begin(0, 0)
        self.add_payload(payload, &instant, batch_fields)
        return self.event_ids[0], self.values[0], self.sequences[0], self.times[0]

    cdef int begin(self, uint64_t batch, Py_ssize_t index) except -1:
        """The first event of a batch."""
        self.batch = batch
        self.index = index
        self.event_ids, self.values, self.sequences, self.times = [], [], [], []
        self.digest_high = self.digest_low = 0
        self.size = self.largest = 0
        return 0

    cdef object end(self):
        """What the batch has of this stream."""
        cdef bytes digest = PyBytes_FromStringAndSize(NULL, 16)
        cdef char *at = PyBytes_AS_STRING(digest)
        cdef int place
        for place in range(8):
            at[place] = <char> (self.digest_high >> (56 - 8 * place))
            at[8 + place] = <char> (self.digest_low >> (56 - 8 * place))
        return _EventColumns(self.event_ids, self.values, self.sequences, self.times, digest, self.size, self.largest)

    cdef int add_payload(self, tuple payload, Instant *local, bytes batch_fields) except -1:
        cdef bytes body = payload[0]
        cdef int milliseconds = payload[1] | (_LOCAL if local.in_milliseconds else 0)
        cdef bytes tail = self.tails[milliseconds]
        if payload[2]:
            tail = self.meta + encode_null_fields(payload[2]) + encode_millisecond_timestamps(milliseconds)
        return self.add(PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), tail, local, batch_fields)

    cdef int add(self, const char *body, Py_ssize_t length, bytes tail, Instant *local, bytes batch_fields) except -1:
        cdef EventNumbering numbering = self.numbering
        cdef bytes event_id = numbering.event_id(local, body, length)
        cdef uint64_t sequence = numbering.next_sequence
        cdef char sequence_field[16]
        cdef char length_field[16]
        cdef Py_ssize_t sequence_length, length_length
        cdef uint64_t low
        cdef Py_ssize_t size
        cdef bytes value
        cdef char *at
        sequence_field[0] = 8 << 3
        sequence_length = put_varint(sequence_field + 1, sequence) - sequence_field
        length_length = put_varint(length_field, length) - length_field
        size = (
            PyBytes_GET_SIZE(self.head) + local.length + PyBytes_GET_SIZE(batch_fields) + 16 + sequence_length
            + PyBytes_GET_SIZE(tail) + PyBytes_GET_SIZE(self.payload_tag) + length_length + length
        )
        value = PyBytes_FromStringAndSize(NULL, size)
        at = put_bytes(PyBytes_AS_STRING(value), self.head)
        at = put(at, local.wire, local.length)
        at = put_bytes(at, batch_fields)
        at = put(at, PyBytes_AS_STRING(event_id), 16)
        at = put(at, sequence_field, sequence_length)
        at = put_bytes(at, tail)
        at = put_bytes(at, self.payload_tag)
        at = put(at, length_field, length_length)
        put(at, body, length)
        numbering.next_sequence = sequence + 1
        # As `digest_of`: their sum as numbers of 128 bits.
        low = self.digest_low
        self.digest_low += _number_at(PyBytes_AS_STRING(event_id) + 8)
        self.digest_high += _number_at(PyBytes_AS_STRING(event_id)) + (self.digest_low < low)
        self.size += size
        if size > self.largest:
            self.largest = size
        self.event_ids.append(event_id)
        self.values.append(value)
        self.sequences.append(sequence)
        self.times.append(local.us)
        return 0


cdef uint64_t _batches = 0

# How a message is written: by its payload function, or here.
cdef enum:
    BY_FUNCTION, TRADE, BOOK_CHANGE


cdef bint _take_levels(object levels, list numbers) except -1:
    """Whether all are usual; their prices and amounts."""
    for level in levels:
        if type(level) is not _BookLevel:
            return False
        price, amount = get_field(level, _PRICE), get_field(level, _AMOUNT)
        if not (is_number(price) and is_number(amount)):
            return False
        numbers.append(price)
        numbers.append(amount)
    return True


cdef int _take_numbers(object message, object kind, list numbers) except -1:
    """How the message is to be written; its numbers where that is here."""
    cdef Py_ssize_t before = len(numbers)
    if kind is _Trade:
        price, amount = get_field(message, _TRADE_PRICE), get_field(message, _TRADE_AMOUNT)
        if is_number(price) and is_number(amount):
            numbers.append(price)
            numbers.append(amount)
            return TRADE
    elif kind is _BookChange:
        if _take_levels(get_field(message, _CHANGE_BIDS), numbers) and _take_levels(get_field(message, _CHANGE_ASKS), numbers):
            return BOOK_CHANGE
        del numbers[before:]
    return BY_FUNCTION


cdef Py_ssize_t _write_trade(object trade, _Buffer out, const char **numbers, _Clock clock, Instant *instant) except -1:
    """The length of the payload; 0 where it is not usual."""
    cdef Number price, amount
    cdef bint is_usual = next_number(numbers, &price)
    is_usual = next_number(numbers, &amount) and is_usual
    cdef object trade_id = get_field(trade, _TRADE_ID), at_text = get_field(trade, _TRADE_TIME), side = get_field(trade, _TRADE_SIDE)
    cdef Py_ssize_t id_length
    cdef char *at
    if not is_usual or side not in _SIDES or not PyUnicode_CheckExact(at_text):
        return 0
    if not PyUnicode_CheckExact(trade_id) or not PyUnicode_IS_COMPACT_ASCII(trade_id):
        return 0
    id_length = PyUnicode_GET_LENGTH(trade_id)
    clock.read(at_text, instant)
    out.ensure(id_length + 256)
    at = out.data
    at[0] = 1 << 3 | 2
    at = put_varint(at + 1, id_length)
    at = put(at, <const char *> PyUnicode_DATA(trade_id), id_length)
    at = put_number(at, 2 << 3 | 2, &price)
    at = put_number(at, 3 << 3 | 2, &amount)
    at = put_bytes(at, <bytes> _TRADE_SIDES[side])
    at = put(at, instant.wire, instant.length)
    return at - out.data


cdef Py_ssize_t _write_book_change(object change, _Buffer out, const char **numbers, _Clock clock, Instant *instant) except -1:
    """The length of the payload; 0 where it is not usual."""
    cdef Py_ssize_t bids = len(get_field(change, _CHANGE_BIDS)), asks = len(get_field(change, _CHANGE_ASKS))
    cdef object at_text = get_field(change, _CHANGE_TIME), is_snapshot = get_field(change, _CHANGE_IS_SNAPSHOT)
    cdef bint is_usual = PyUnicode_CheckExact(at_text) and (is_snapshot is True or is_snapshot is False)
    cdef char *at
    out.ensure(64 + LEVEL_BYTES * (bids + asks))
    at = out.data
    if is_usual:
        clock.read(at_text, instant)
        at[0] = 10 << 3 | 2
        at = put(at + 1, instant.wire, instant.length)
        at[0] = <char> (20 << 3 & 127 | 128)
        at[1] = 20 >> 4
        at[2] = 1 if is_snapshot is True else 0
        at += 3
    at = put_levels(put_levels(at, _BID, bids, numbers), _ASK, asks, numbers)
    return at - out.data if is_usual and at != NULL else 0


cdef class _Finder:
    """The sealers of messages. Most messages are of the stream that the one before them of their kind was of."""

    cdef dict streams
    cdef object open_stream
    cdef object trade_exchange, trade_symbol, trades
    cdef object change_exchange, change_symbol, changes

    def __cinit__(self, dict streams, open_stream):
        self.streams = streams
        self.open_stream = open_stream

    cdef object find(self, object message, object kind):
        """None where such messages are left out."""
        if kind is _Trade:
            exchange, symbol = get_field(message, _TRADE_EXCHANGE), get_field(message, _TRADE_SYMBOL)
            if not _is_same(exchange, self.trade_exchange) or not _is_same(symbol, self.trade_symbol):
                self.trades = self.look_up(message, kind)
                self.trade_exchange, self.trade_symbol = exchange, symbol
            return self.trades
        if kind is _BookChange:
            exchange, symbol = get_field(message, _CHANGE_EXCHANGE), get_field(message, _CHANGE_SYMBOL)
            if not _is_same(exchange, self.change_exchange) or not _is_same(symbol, self.change_symbol):
                self.changes = self.look_up(message, kind)
                self.change_exchange, self.change_symbol = exchange, symbol
            return self.changes
        return self.look_up(message, kind)

    cdef object look_up(self, object message, object kind):
        cdef dict known
        key_of, known = self.streams[kind]
        key = key_of(message)
        found = known.get(key, NotImplemented)
        if found is NotImplemented:
            found = known[key] = self.open_stream(message)
        return found


cdef inline bint _is_same(object text, object other):
    return text is other or (PyUnicode_CheckExact(text) and PyUnicode_CheckExact(other) and PyUnicode_Compare(text, other) == 0)


def seal_messages(messages, dict streams, open_stream, bytes batch_fields):
    """See `sealing.seal_messages`."""
    global _batches
    _batches += 1
    cdef uint64_t batch = _batches
    cdef list given = list(messages), sealers = [], ways = [], numbers = [], begun = [], stream_indexes = []
    cdef _Finder finder = _Finder(streams, open_stream)
    cdef StreamSealer sealer
    cdef bytes text
    cdef const char *cursor
    cdef Instant local, instant
    cdef _Clock local_clock = _Clock(), clock = _Clock()
    cdef _Buffer buffer = _Buffer()
    cdef Py_ssize_t length
    cdef int way, milliseconds
    cdef object local_text = None, text_of_local

    # All numbers become text at once.
    for message in given:
        kind = type(message)
        found = finder.find(message, kind)
        sealers.append(found)
        way = BY_FUNCTION
        if found is not None and (<StreamSealer?> found).payload_of is not None:
            way = _take_numbers(message, kind, numbers)
        ways.append(way)
    try:
        text = _to_json(numbers)
    except (TypeError, ValueError, OverflowError):
        text = b"[]"
        ways = [BY_FUNCTION] * len(given)
    cursor = PyBytes_AS_STRING(text) + 1

    for message, found, way in zip(given, sealers, ways):
        if found is None:
            continue
        sealer = <StreamSealer> found
        if way == TRADE:
            text_of_local = get_field(message, _TRADE_LOCAL)
        elif way == BOOK_CHANGE:
            text_of_local = get_field(message, _CHANGE_LOCAL)
        else:
            text_of_local = message.local_timestamp
        if local_text is not text_of_local:
            local_text = text_of_local
            local_clock.read(local_text, &local)
        if sealer.batch != batch:
            sealer.begin(batch, len(begun))
            begun.append(sealer)
        length = 0
        if way == TRADE:
            length = _write_trade(message, buffer, &cursor, clock, &instant)
        elif way == BOOK_CHANGE:
            length = _write_book_change(message, buffer, &cursor, clock, &instant)
        if length:
            milliseconds = (_TIMESTAMP if instant.in_milliseconds else 0) | (_LOCAL if local.in_milliseconds else 0)
            sealer.add(buffer.data, length, <bytes> sealer.tails[milliseconds], &local, batch_fields)
            stream_indexes.append(sealer.index)
        elif sealer.payload_of is not None:
            sealer.add_payload(sealer.payload_of(message), &local, batch_fields)
            stream_indexes.append(sealer.index)
        else:
            for payload in encode_book_levels(message):
                sealer.add_payload(payload, &local, batch_fields)
                stream_indexes.append(sealer.index)
    return [(<StreamSealer> found).stream for found in begun], [(<StreamSealer> found).end() for found in begun], stream_indexes
