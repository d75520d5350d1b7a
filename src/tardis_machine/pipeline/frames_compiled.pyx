# cython: language_level=3, cdivision=True, annotation_typing=False
"""`frames` compiled: trades, book changes and snapshots are written in one pass, levels from rows that were left as text.

Whatever is not plain is left to the encoder that `frames` uses, which is the definition: a number by itself, a message whole.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.math cimport floor, rint
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from tardis_machine._declarations cimport (
    Mark,
    PyMemberDef,
    PyUnicode_CheckExact,
    PyUnicode_DATA,
    PyUnicode_GET_LENGTH,
    PyUnicode_IS_COMPACT_ASCII,
    find_field,
    get_field,
    is_number,
    put,
)

import orjson
from msgspec import structs

from ..exchanges import LevelRows, Unread, to_number, verbatim
from ..messages import UNSET, BookChange, BookLevel, BookSnapshot, Trade, to_json
from ..recorded_line import MESSAGE_START, TIME_LENGTH
from .frames import to_marked_messages as write_marked_messages
from .frames import to_raw_frames as write_raw_frames
from .frames import to_raw_lines as write_raw_lines
from .marks import instant_us

__all__ = ["READS_ROWS", "to_json_frames", "to_json_lines", "to_marked_messages", "to_raw_frames", "to_raw_lines"]

READS_ROWS = True

cdef:
    object _BookChange = BookChange
    object _BookLevel = BookLevel
    object _BookSnapshot = BookSnapshot
    object _LevelRows = LevelRows
    object _Trade = Trade
    object _UNSET = UNSET
    object _parse = orjson.loads
    object _to_json = to_json
    object _to_number = to_number
    object _verbatim = verbatim
    object _instant_us = instant_us
    object _write_marked_messages = write_marked_messages
    object _write_raw_frames = write_raw_frames
    object _write_raw_lines = write_raw_lines
    Py_ssize_t _TIME_LENGTH = TIME_LENGTH
    Py_ssize_t _MESSAGE_START = MESSAGE_START
    PyMemberDef *_level_price = find_field(BookLevel, "price")
    PyMemberDef *_level_amount = find_field(BookLevel, "amount")
    PyMemberDef *_rows_text = find_field(Unread, "text")
    PyMemberDef *_rows_is_as_sent = find_field(LevelRows, "is_as_sent")
    PyMemberDef *_rows_first = find_field(LevelRows, "first")
    PyMemberDef *_rows_removed_by = find_field(LevelRows, "removed_by")
    PyMemberDef *_rows_side = find_field(LevelRows, "side")
    PyMemberDef *_is_snapshot = find_field(BookChange, "is_snapshot")
    PyMemberDef *_bids = find_field(BookChange, "bids")
    PyMemberDef *_asks = find_field(BookChange, "asks")
    PyMemberDef *_snapshot_bids = find_field(BookSnapshot, "bids")
    PyMemberDef *_snapshot_asks = find_field(BookSnapshot, "asks")

cdef struct Field:
    const char *key
    Py_ssize_t length
    PyMemberDef *place

cdef enum:
    # What a level has at most, whose numbers are no longer than doubles are.
    LEVEL = 80
    # What there is always room for: all of a message but its levels, where no text is longer than that; and a header.
    ROOM = 4096
    TEXT = 256
    # What is kept from call to call.
    KEPT = 4 << 20
    # Of the header of a frame, at most.
    HEADER = 10

cdef uint64_t ONES = 0x0101010101010101

cdef list _keys = []
cdef Field _trade_fields[8]
cdef Field _symbol_fields[2]
cdef Field _time_fields[2]
cdef Field _snapshot_fields[6]
cdef Field _snapshot_time_fields[2]


cdef void _declare(Field *fields, object kind, names):
    for index, name in enumerate(names):
        key = f',"{kind.__struct_encode_fields__[kind.__struct_fields__.index(name)]}":'.encode()
        _keys.append(key)
        fields[<int> index] = Field(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), find_field(kind, name))


_declare(_trade_fields, Trade, ("symbol", "exchange", "id", "price", "amount", "side", "timestamp", "local_timestamp"))
_declare(_symbol_fields, BookChange, ("symbol", "exchange"))
_declare(_time_fields, BookChange, ("timestamp", "local_timestamp"))
_declare(_snapshot_fields, BookSnapshot, ("symbol", "exchange", "name", "depth", "interval", "grouping"))
_declare(_snapshot_time_fields, BookSnapshot, ("timestamp", "local_timestamp"))


class _UnusualError(ValueError):
    """It takes the other encoder."""


# Where messages are written, before it is known how long they are, and how much of it is written.
cdef char *_page = NULL
cdef Py_ssize_t _size = 0
cdef Py_ssize_t _used = 0


cdef int _make_room(Py_ssize_t count) except -1:
    """For so many bytes more."""
    global _page, _size
    cdef char *page
    cdef Py_ssize_t size
    if _used + count > _size:
        size = max(2 * _size, _used + count, 1 << 16)
        page = <char *> realloc(_page, size)
        if page == NULL:
            raise MemoryError
        _page, _size = page, size
    return 0


cdef object _take_page():
    """All that was written."""
    global _page, _size, _used
    cdef object written = PyBytes_FromStringAndSize(_page, _used)
    _used = 0
    if _size > KEPT:
        free(_page)
        _page, _size = NULL, 0
    return written


cdef char *_put_object(char *at, object value) except NULL:
    """As the other encoder writes it; then there is room again."""
    global _used
    cdef bytes written = _to_json(value)
    _used = at - _page
    _make_room(PyBytes_GET_SIZE(written) + ROOM)
    return put(_page + _used, PyBytes_AS_STRING(written), PyBytes_GET_SIZE(written))


def to_json_lines(messages):
    """See `frames.to_json_lines`."""
    global _used
    cdef char *at
    _used = 0
    for message in messages:
        at = _put_message(message)
        at[0] = c"\n"
        _used = at + 1 - _page
    return _take_page()


def to_json_frames(messages):
    """See `frames.to_json_frames`."""
    global _used
    _used = 0
    _make_room(ROOM)
    for message in messages:
        _put_frame(message)
    return _take_page()


cdef inline int _put_frame(object message) except -1:
    global _used
    cdef Py_ssize_t start = _used, size, header
    # Nearly all have a header of four bytes.
    _used += 4
    size = _put_message(message) - _page - start - 4
    header = _header_size(size)
    if header != 4:
        memmove(_page + start + header, _page + start + 4, size)
    _used = start + header + size
    _put_header(_page + start, size)
    return 0


def to_marked_messages(messages, form):
    """See `frames.to_marked_messages`."""
    global _used
    cdef bytes marks
    cdef Mark *mark
    cdef Mark *first
    cdef Py_ssize_t start
    cdef int64_t instant
    cdef char *at
    cdef bint is_framed = form == "frames"
    if not (is_framed or form == "lines"):
        return _write_marked_messages(messages, form)
    marks = PyBytes_FromStringAndSize(NULL, len(messages) * sizeof(Mark))
    first = <Mark *> PyBytes_AS_STRING(marks)
    mark = first - 1
    last_clock = None
    _used = 0
    _make_room(ROOM)
    for message in messages:
        clock = _clock_of(message)
        # Those of a line have the very same text.
        if clock is not last_clock:
            last_clock = clock
            instant = _instant_of(clock)
            if mark < first or instant != mark.instant_us:
                mark += 1
                mark[0] = Mark(instant, 0, 0)
        start = _used
        if is_framed:
            _put_frame(message)
        else:
            at = _put_message(message)
            at[0] = c"\n"
            _used = at + 1 - _page
        mark.size += <uint32_t> (_used - start)
        mark.messages += 1
    return _take_page(), marks[: (<char *> (mark + 1)) - PyBytes_AS_STRING(marks)]


cdef inline object _clock_of(object message):
    if type(message) is _BookChange:
        return get_field(message, _time_fields[1].place)
    if type(message) is _Trade:
        return get_field(message, _trade_fields[7].place)
    return message.local_timestamp


# The second that was read last, and when it began.
cdef char _second[19]
cdef int64_t _second_us = -1


cdef int64_t _instant_of(object clock) except? -1:
    """See `marks.instant_us`: only digits of seconds that were read before are read here."""
    global _second_us
    cdef const char *text
    cdef int64_t micros = 0, instant
    cdef int place
    if not (PyUnicode_CheckExact(clock) and PyUnicode_IS_COMPACT_ASCII(clock) and PyUnicode_GET_LENGTH(clock) == 27):
        return _instant_us(clock)
    text = <const char *> PyUnicode_DATA(clock)
    for place in range(20, 26):
        if not c"0" <= text[place] <= c"9":
            return _instant_us(clock)
        micros = 10 * micros + text[place] - c"0"
    if text[19] != c"." or text[26] != c"Z":
        return _instant_us(clock)
    if _second_us >= 0 and memcmp(text, _second, 19) == 0:
        return _second_us + micros
    instant = _instant_us(clock)
    if instant > micros:
        memcpy(_second, text, 19)
        _second_us = instant - micros
    return instant


cdef inline Py_ssize_t _header_size(Py_ssize_t size) noexcept:
    return 2 if size < 126 else 4 if size < 65_536 else HEADER


cdef inline char *_put_header(char *at, Py_ssize_t size) noexcept:
    """Of a frame as a server sends it, whole and unmasked (RFC 6455, 5.2)."""
    cdef Py_ssize_t length = _header_size(size), place
    at[0] = <char> 0x81
    at[1] = <char> (size if length == 2 else 126 if length == 4 else 127)
    for place in range(length - 1, 1, -1):
        at[place] = <char> size
        size >>= 8
    return at + length


def to_raw_lines(lines):
    """See `frames.to_raw_lines`."""
    cdef Py_ssize_t size = 0
    cdef const char *text
    cdef bytes written
    cdef char *at
    if not PyList_CheckExact(lines):
        return _write_raw_lines(lines)
    for line in <list> lines:
        size += 1
        if not PyBytes_CheckExact(line):
            return _write_raw_lines(lines)
        if PyBytes_GET_SIZE(line):
            text = PyBytes_AS_STRING(line)
            if PyBytes_GET_SIZE(line) < _MESSAGE_START or memchr(text, c" ", _MESSAGE_START) != text + _TIME_LENGTH:
                return _write_raw_lines(lines)
            # The space is gone.
            size += PyBytes_GET_SIZE(line) - 1 + 32
    written = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(written)
    for line in <list> lines:
        if PyBytes_GET_SIZE(line):
            at = put(at, b'{"localTimestamp":"', 19)
            at = put(at, PyBytes_AS_STRING(line), _TIME_LENGTH)
            at = put(at, b'","message":', 12)
            at = put(at, PyBytes_AS_STRING(line) + _MESSAGE_START, PyBytes_GET_SIZE(line) - _MESSAGE_START)
            at[0] = c"}"
            at += 1
        at[0] = c"\n"
        at += 1
    return written


def to_raw_frames(lines):
    """See `frames.to_raw_frames`."""
    cdef Py_ssize_t size = 0, length
    cdef bytes written
    cdef char *at
    if not PyList_CheckExact(lines):
        return _write_raw_frames(lines)
    for line in <list> lines:
        if not PyBytes_CheckExact(line):
            return _write_raw_frames(lines)
        if PyBytes_GET_SIZE(line):
            length = max(PyBytes_GET_SIZE(line) - _MESSAGE_START, 0)
            size += _header_size(length) + length
    written = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(written)
    for line in <list> lines:
        if PyBytes_GET_SIZE(line):
            length = max(PyBytes_GET_SIZE(line) - _MESSAGE_START, 0)
            at = put(_put_header(at, length), PyBytes_AS_STRING(line) + PyBytes_GET_SIZE(line) - length, length)
    return written


cdef char *_put_message(object message) except NULL:
    """Behind what is written; there is room for a little more behind it."""
    global _used
    cdef Py_ssize_t start = _used
    cdef char *at
    _make_room(ROOM)
    try:
        if type(message) is _BookChange:
            return _put_book_change(message)
        if type(message) is _Trade:
            at = put(_page + _used, b'{"type":"trade"', 15)
            at = _put_fields(at, message, _trade_fields, 8)
            at[0] = c"}"
            return at + 1
        if type(message) is _BookSnapshot:
            return _put_book_snapshot(message)
    except _UnusualError:
        _used = start
    if type(message) is _BookChange:
        # The other encoder does not know of rows.
        message = structs.replace(message, bids=list(message.bids), asks=list(message.asks))
    return _put_object(_page + _used, message)


cdef char *_put_book_change(object change) except NULL:
    global _used
    cdef Py_ssize_t start = _used
    cdef char *at = put(_page + _used, b'{"type":"book_change"', 21)
    cdef object is_snapshot = get_field(change, _is_snapshot)
    at = _put_fields(at, change, _symbol_fields, 2)
    if is_snapshot is False:
        at = put(at, b',"isSnapshot":false,"bids":', 27)
    elif is_snapshot is True:
        at = put(at, b',"isSnapshot":true,"bids":', 26)
    else:
        raise _UnusualError
    at = _put_side(at, get_field(change, _bids))
    at = put(at, b',"asks":', 8)
    at = _put_side(at, get_field(change, _asks))
    # Making room has moved it on.
    _used = start
    at = _put_fields(at, change, _time_fields, 2)
    at[0] = c"}"
    return at + 1


cdef char *_put_book_snapshot(object snapshot) except NULL:
    global _used
    cdef Py_ssize_t start = _used
    cdef char *at = put(_page + _used, b'{"type":"book_snapshot"', 23)
    at = _put_fields(at, snapshot, _snapshot_fields, 6)
    at = put(at, b',"bids":', 8)
    at = _put_told_side(at, get_field(snapshot, _snapshot_bids))
    at = put(at, b',"asks":', 8)
    at = _put_told_side(at, get_field(snapshot, _snapshot_asks))
    # Making room has moved it on.
    _used = start
    at = _put_fields(at, snapshot, _snapshot_time_fields, 2)
    at[0] = c"}"
    return at + 1


cdef char *_put_told_side(char *at, object levels) except NULL:
    """Levels that know their JSON, or are written as those of a change are."""
    global _used
    cdef bytes printed
    if PyList_CheckExact(levels):
        return _put_side(at, levels)
    printed = getattr(levels, "printed", None)
    if printed is None:
        raise _UnusualError
    _used = at - _page
    _make_room(PyBytes_GET_SIZE(printed) + ROOM)
    return put(_page + _used, PyBytes_AS_STRING(printed), PyBytes_GET_SIZE(printed))


cdef char *_put_fields(char *at, object message, Field *fields, int count) except NULL:
    cdef int index
    cdef Field *field
    for index in range(count):
        field = &fields[index]
        value = get_field(message, field.place)
        if value is _UNSET:
            continue
        at = put(at, field.key, field.length)
        if PyUnicode_CheckExact(value):
            at = _put_text(at, value)
        elif value is None:
            at = put(at, b"null", 4)
        elif is_number(value):
            at = _put_number(at, value)
        else:
            raise _UnusualError
    return at


cdef inline char *_put_text(char *at, object text) except NULL:
    cdef const char *data
    cdef Py_ssize_t length, index = 0
    cdef uint64_t eight, quotes, backslashes, special = 0
    if not PyUnicode_IS_COMPACT_ASCII(text) or PyUnicode_GET_LENGTH(text) > TEXT:
        raise _UnusualError
    data = <const char *> PyUnicode_DATA(text)
    length = PyUnicode_GET_LENGTH(text)
    at[0] = c'"'
    at += 1
    memcpy(at, data, length)
    while index + 8 <= length:
        memcpy(&eight, data + index, 8)
        quotes = eight ^ (ONES * 0x22)
        backslashes = eight ^ (ONES * 0x5C)
        special |= ((quotes - ONES) & ~quotes) | ((backslashes - ONES) & ~backslashes) | ((eight - ONES * 0x20) & ~eight)
        index += 8
    if special & (ONES * 0x80):
        raise _UnusualError
    while index < length:
        if data[index] < c" " or data[index] == c'"' or data[index] == c"\\":
            raise _UnusualError
        index += 1
    at[length] = c'"'
    return at + length + 1


cdef inline char *_put_number(char *at, object value) except NULL:
    """A number that prints as in JavaScript, as all numbers of messages do."""
    cdef int overflow = 0
    cdef int64_t number
    cdef char *end = NULL
    if PyLong_CheckExact(value):
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            end = _put_digits(at, number)
    else:
        end = _put_real(at, PyFloat_AS_DOUBLE(value))
    return _put_object(at, value) if end == NULL else end


cdef inline char *_put_digits(char *out, int64_t number) noexcept:
    cdef char digits[20]
    cdef int count = 0
    if number < -1_000_000_000_000_000_000:
        return NULL
    if number < 0:
        out[0] = c"-"
        out += 1
        number = -number
    while True:
        digits[count] = c"0" + <char> (number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    while count:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out


cdef char *_put_real(char *out, double number) noexcept:
    """A double that has at most 15 digits, eight of them behind the point; NULL where it may have more.

    Two numbers of 15 digits are never one double: if one of them is this double, it is the shortest that is.
    """
    cdef double digits
    cdef int64_t scaled, whole
    cdef int decimals = 8, place
    if number != number or number == floor(number) or not -1e6 < number < 1e6:
        return NULL
    digits = rint(number * 1e8)
    if digits / 1e8 != number or -1000 < digits < 1000:
        return NULL
    if number < 0:
        out[0] = c"-"
        out += 1
        digits = -digits
    scaled = <int64_t> digits
    while scaled % 10 == 0:
        scaled //= 10
        decimals -= 1
    whole = <int64_t> (digits / 1e8)
    out = _put_digits(out, whole)
    out[0] = c"."
    for place in range(decimals, 0, -1):
        out[place] = c"0" + <char> (scaled % 10)
        scaled //= 10
    return out + decimals + 1


cdef char *_put_side(char *at, object levels) except NULL:
    global _used
    cdef list side
    if type(levels) is _LevelRows:
        return _put_rows(at, levels)
    if not PyList_CheckExact(levels):
        raise _UnusualError
    side = <list> levels
    _used = at - _page
    _make_room(PyList_GET_SIZE(side) * LEVEL + ROOM)
    at = _page + _used
    at[0] = c"["
    at += 1
    for level in side:
        if type(level) is not _BookLevel:
            raise _UnusualError
        price, amount = get_field(level, _level_price), get_field(level, _level_amount)
        if not is_number(price) or not is_number(amount):
            raise _UnusualError
        at = put(at, b'{"price":', 9)
        at = _put_number_of_level(at, price)
        at = put(at, b',"amount":', 10)
        at = _put_number_of_level(at, amount)
        at = put(at, b"},", 2)
    return _closed(at)


cdef inline char *_put_number_of_level(char *at, object value) except NULL:
    """There is room for it, and for what follows."""
    cdef bytes written
    cdef char *end = NULL
    cdef int overflow = 0
    cdef int64_t number
    if PyLong_CheckExact(value):
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            end = _put_digits(at, number)
    else:
        end = _put_real(at, PyFloat_AS_DOUBLE(value))
    if end != NULL:
        return end
    written = _to_json(value)
    if PyBytes_GET_SIZE(written) > LEVEL // 3:
        raise _UnusualError
    return put(at, PyBytes_AS_STRING(written), PyBytes_GET_SIZE(written))


cdef inline char *_closed(char *at) noexcept:
    """Ends an array, whose last item has a comma behind it."""
    if at[-1] == c",":
        at -= 1
    at[0] = c"]"
    return at + 1


cdef char *_put_rows(char *at_page, object rows) except NULL:
    """Levels of rows: at most three columns of each are looked at, and nearly all numbers are copied."""
    cdef bytes text = get_field(rows, _rows_text)
    cdef bytes removed_by = _bytes_of(get_field(rows, _rows_removed_by))
    cdef bytes side = _bytes_of(get_field(rows, _rows_side))
    cdef bint is_as_sent = get_field(rows, _rows_is_as_sent) is True
    cdef int first = get_field(rows, _rows_first), column
    cdef const char *at = PyBytes_AS_STRING(text) + 1
    cdef const char *start
    cdef Py_ssize_t length
    cdef bint is_text, is_removed, is_other
    global _used
    cdef char *out
    _used = at_page - _page
    # The shortest row has five bytes, and a comma behind it.
    _make_room(PyBytes_GET_SIZE(text) // 6 * LEVEL + 2 * PyBytes_GET_SIZE(text) + ROOM)
    out = _page + _used
    out[0] = c"["
    out += 1
    while True:
        column = 0
        is_removed = is_other = False
        # At the bracket that opens a row, then at the comma before each of its next columns.
        while True:
            at += 1
            is_text = at[0] == c'"'
            at += is_text
            start = at
            if is_text:
                while at[0] != c'"':
                    at += 1
                length = at - start
                at += 1
            else:
                while at[0] != c"," and at[0] != c"]":
                    at += 1
                length = at - start
            if column == first and not is_other:
                out = put(out, b'{"price":', 9)
                out = _put_read(out, start, length, is_text, is_as_sent)
            elif column == first + 1 and not is_other:
                out = put(out, b',"amount":', 10)
                if is_removed:
                    out[0] = c"0"
                    out += 1
                else:
                    out = _put_read(out, start, length, is_text, is_as_sent)
                out = put(out, b"},", 2)
            elif column == 0:
                is_removed = removed_by is not None and is_text and _is(start, length, removed_by)
                is_other = side is not None and not (is_text and _is(start, length, side))
            column += 1
            if at[0] == c"]":
                break
        at += 1
        if at[0] == c"]":
            return _closed(out)
        at += 1


cdef inline bytes _bytes_of(object text):
    return None if text is None else (<str> text).encode()


cdef inline bint _is(const char *at, Py_ssize_t length, bytes text) noexcept:
    return length == PyBytes_GET_SIZE(text) and memcmp(at, PyBytes_AS_STRING(text), length) == 0


cdef char *_put_read(char *out, const char *text, Py_ssize_t length, bint is_text, bint is_as_sent) except NULL:
    """A number that was not read yet."""
    cdef bytes written
    cdef char *end = NULL
    if not (is_text and is_as_sent):
        end = _put_plain(out, text, length)
    if end == NULL:
        value = text[:length].decode("ascii") if is_text else _parse(text[:length])
        written = _to_json(_verbatim(value) if is_as_sent else _to_number(value))
        end = put(out, PyBytes_AS_STRING(written), PyBytes_GET_SIZE(written))
    return end


cdef char *_put_plain(char *out, const char *at, Py_ssize_t length) noexcept:
    """A number's text as messages print it, where that is its own but for zeros at its end; NULL where it is not.

    Two numbers of 15 digits are never one double, so that these are the digits that JavaScript prints.
    """
    cdef const char *start = at
    cdef const char *end = at + length
    cdef const char *point
    cdef const char *digit
    if at != end and at[0] == c"-":
        at += 1
    if at == end or not c"0" <= at[0] <= c"9" or (at[0] == c"0" and end - at > 1 and at[1] != c"."):
        return NULL
    point = at
    while point != end and c"0" <= point[0] <= c"9":
        point += 1
    if point != end:
        if point[0] != c"." or end - point == 1:
            return NULL
        digit = point + 1
        while digit != end:
            if not c"0" <= digit[0] <= c"9":
                return NULL
            digit += 1
        while end[-1] == c"0":
            end -= 1
        if end - point == 1:
            end = point
    if end - at > (15 if end == point else 16):
        return NULL
    if at[0] == c"0":
        if end == point:
            # Of -0 JavaScript prints 0.
            out[0] = c"0"
            return out + 1
        # Below a millionth it prints an exponent.
        if end - point > 6 and memcmp(point + 1, b"000000", 6) == 0:
            return NULL
    return put(out, start, end - start)
