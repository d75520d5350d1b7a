# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`_decoding` compiled: a parser of the JSON that exchanges send, which makes no objects of rows that are left as text.

Texts that come again, as names of fields and symbols do, are made once. Whatever is not plain (exponents, escapes, letters beyond ASCII,
long numbers) is given to the parser that `_decoding` uses, which is the definition: a number or text by itself, a message whole.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.list cimport PyList_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from tardis_machine._declarations cimport PyUnicode_DATA, PyUnicode_New

from sys import intern

import orjson

from ..recorded_line import KEY_LENGTH, MESSAGE_START, Lines
from ._decoding import decode_lines as decode_unusual
from ._decoding import decode_messages as decode_unusual_messages
from ._rows import Rows

__all__ = ["decode_lines", "decode_messages"]

cdef extern from "Python.h":
    ctypedef struct PyDictObject:
        void *ma_keys

cdef extern from *:
    """
    #define IS_LITTLE_ENDIAN (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
    """
    bint IS_LITTLE_ENDIAN
    int __builtin_ctzll(unsigned long long)

cdef:
    object _decode_unusual = decode_unusual
    object _decode_unusual_messages = decode_unusual_messages
    object _intern = intern
    object _parse_unusual = orjson.loads
    object _Lines = Lines
    object _Rows = Rows
    Py_ssize_t CLOCK = KEY_LENGTH
    Py_ssize_t HEAD = MESSAGE_START
    double _POWERS[23]
    int _power
for _power in range(23):
    _POWERS[_power] = 10.0**_power

cdef enum:
    # Arrays and objects within each other, which a process has the stack for many times over.
    DEPTH = 64
    # Texts that are known, and how long they are at most.
    KNOWN = 1024
    KNOWN_LENGTH = 24
    # Of those, words: sides, actions, kinds. What is longer may be an id.
    WORD_LENGTH = 12
    # Fields of an object whose shape is known, at most; and how many of other shapes make room for another.
    FIELDS = 32
    MISSES = 8

cdef struct Known:
    # The text, which is held on to, and its characters.
    PyObject *text
    const char *characters
    uint64_t first
    uint64_t middle
    uint64_t last
    Py_ssize_t length
    # Where the name is that came after it, the last time.
    size_t next
cdef Known _heads[KNOWN]
# Where the name is that came first in an object, the last time, by depth; and where the text is that was read last.
cdef size_t _firsts[DEPTH]
cdef size_t _place = 0
cdef uint64_t ONES = 0x0101010101010101


cdef struct Shape:
    # The names of the fields of an object, in their order, and a dict of these and None, which holds on to them.
    PyObject *names[FIELDS]
    int count
    PyObject *template
    # Where its first name is in what `ma_keys` points to; a value follows, then the next name.
    Py_ssize_t offset
    # How many objects had other names since.
    int misses
cdef Shape _shapes[256]


class _UnusualError(ValueError):
    """It takes the other parser."""



def decode_lines(lines, bint with_rows=False):
    """See `_decoding.decode_lines`."""
    cdef list clocks = [], messages = []
    cdef const char *at
    cdef const char *end
    cdef const char *newline
    cdef bytes data
    cdef tuple unread
    if type(lines) is _Lines:
        data, unread = lines.data, lines.unread
        at = PyBytes_AS_STRING(data) + <Py_ssize_t> lines.start
        end = PyBytes_AS_STRING(data) + <Py_ssize_t> lines.end
        while at < end:
            newline = <const char *> memchr(at, c"\n", end - at)
            if newline == NULL:
                newline = end
            if not (unread and _begins(at, newline, unread)) and not _add_line(at, newline, with_rows, clocks, messages):
                return _decode_unusual(lines)
            at = newline + 1
        return clocks, messages, None
    if not PyList_CheckExact(lines):
        return _decode_unusual(lines)
    for line in <list> lines:
        if not PyBytes_CheckExact(line):
            return _decode_unusual(lines)
        at = PyBytes_AS_STRING(line)
        if not _add_line(at, at + PyBytes_GET_SIZE(line), with_rows, clocks, messages):
            return _decode_unusual(lines)
    return clocks, messages, None


cdef inline bint _begins(const char *at, const char *end, tuple unread):
    """Whether the message of a line begins with one of these."""
    for text in unread:
        if end - at - HEAD >= PyBytes_GET_SIZE(text) and memcmp(at + HEAD, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)) == 0:
            return True
    return False


cdef inline bint _add_line(const char *at, const char *end, bint with_rows, list clocks, list messages):
    """The clock and the message of a line; whether there are such. To say what is wrong, and of which line, is left to the other."""
    if at == end:
        clocks.append(None)
        messages.append(None)
        return True
    clock = _clock_of(at) if end - at > HEAD else None
    if clock is None:
        return False
    try:
        messages.append(_message(at + HEAD, end, with_rows))
    except Exception:
        return False
    clocks.append(clock)
    return True


def decode_messages(texts):
    """See `_decoding.decode_messages`."""
    cdef list messages = []
    cdef const char *at
    for text in texts:
        if not PyBytes_CheckExact(text):
            return _decode_unusual_messages(texts)
        try:
            at = PyBytes_AS_STRING(text)
            messages.append(_message(at, at + PyBytes_GET_SIZE(text), False))
        except Exception as error:
            return messages, error
    return messages, None


cdef inline object _message(const char *start, const char *end, bint with_rows):
    """What is written there. It ends in a newline or a 0, which no value begins with or goes on with."""
    cdef const char *at = start
    cdef object message
    try:
        message = _value(&at, end, with_rows, 0)
        _skip_spaces(&at)
        if at == end:
            return message
    except Exception:
        pass
    return _parse_unusual(PyBytes_FromStringAndSize(start, end - start))


cdef object _clock_of(const char *line):
    """None where it is no ASCII text."""
    cdef unsigned char seen = 0
    cdef Py_ssize_t place
    cdef object text
    cdef char *at
    for place in range(CLOCK):
        seen |= <unsigned char> line[place]
    if seen >= 128:
        return None
    text = PyUnicode_New(CLOCK + 1, 127)
    at = <char *> PyUnicode_DATA(text)
    memcpy(at, line, CLOCK)
    at[CLOCK] = c"Z"
    return text


cdef inline void _skip_spaces(const char **cursor) noexcept:
    if cursor[0][0] > c" ":
        return
    while cursor[0][0] == c" " or cursor[0][0] == c"\t" or cursor[0][0] == c"\r":
        cursor[0] += 1


cdef object _value(const char **cursor, const char *end, bint with_rows, int depth):
    """The value at the cursor, which is left behind it."""
    cdef char first
    cdef list items
    _skip_spaces(cursor)
    first = cursor[0][0]
    if first == c'"':
        return _text(cursor, end, False)
    if first == c"-" or c"0" <= first <= c"9":
        return _number(cursor)
    if depth >= DEPTH:
        raise _UnusualError
    if first == c"{":
        return _object(cursor, end, with_rows, depth)
    if first == c"[":
        if with_rows and depth and cursor[0][1] == c"[":
            rows = _rows(cursor, end)
            if rows is not None:
                return rows
        items = []
        cursor[0] += 1
        _skip_spaces(cursor)
        if cursor[0][0] == c"]":
            cursor[0] += 1
            return items
        while True:
            items.append(_value(cursor, end, with_rows, depth + 1))
            _skip_spaces(cursor)
            first = cursor[0][0]
            cursor[0] += 1
            if first == c"]":
                return items
            if first != c",":
                raise _UnusualError
    if first == c"t" and end - cursor[0] >= 4 and memcmp(cursor[0], b"true", 4) == 0:
        cursor[0] += 4
        return True
    if first == c"n" and end - cursor[0] >= 4 and memcmp(cursor[0], b"null", 4) == 0:
        cursor[0] += 4
        return None
    if first == c"f" and end - cursor[0] >= 5 and memcmp(cursor[0], b"false", 5) == 0:
        cursor[0] += 5
        return False
    raise _UnusualError


cdef object _object(const char **cursor, const char *end, bint with_rows, int depth):
    """The object at the cursor."""
    cdef PyObject *names[FIELDS]
    cdef PyObject *values[FIELDS]
    cdef int count = 0, place
    cdef size_t *next_name = &_firsts[depth]
    cdef dict fields = None
    cdef char last
    cursor[0] += 1
    _skip_spaces(cursor)
    if cursor[0][0] == c"}":
        cursor[0] += 1
        return {}
    try:
        while True:
            _skip_spaces(cursor)
            if cursor[0][0] != c'"':
                raise _UnusualError
            name = _name(cursor, end, &next_name)
            _skip_spaces(cursor)
            if cursor[0][0] != c":":
                raise _UnusualError
            cursor[0] += 1
            value = _value(cursor, end, with_rows, depth + 1)
            if fields is not None or count == FIELDS:
                # Too many for a shape.
                if fields is None:
                    fields = _plain_dict(names, values, count)
                PyDict_SetItem(fields, name, value)
            else:
                Py_INCREF(name)
                Py_INCREF(value)
                names[count], values[count] = <PyObject *> name, <PyObject *> value
                count += 1
            _skip_spaces(cursor)
            last = cursor[0][0]
            cursor[0] += 1
            if last == c"}":
                return _dict_of(names, values, count) if fields is None else fields
            if last != c",":
                raise _UnusualError
    finally:
        for place in range(count):
            Py_XDECREF(names[place])
            Py_XDECREF(values[place])


cdef dict _plain_dict(PyObject **names, PyObject **values, int count):
    cdef dict made = {}
    cdef int place
    for place in range(count):
        PyDict_SetItem(made, <object> names[place], <object> values[place])
    return made


cdef dict _dict_of(PyObject **names, PyObject **values, int count):
    """A dict of these. Of one with names that were seen before, in this order, all but the values is copied; these are taken."""
    cdef uint64_t mixed = <uint64_t> count
    cdef Shape *shape
    cdef PyObject **entries
    cdef dict made
    cdef int place
    for place in range(count):
        mixed = mixed * 0x9E3779B97F4A7C15ULL ^ <uint64_t> <size_t> names[place]
    shape = &_shapes[(mixed * 0x9E3779B97F4A7C15ULL) >> 56]
    if shape.count != count or memcmp(shape.names, names, count * sizeof(PyObject *)) != 0:
        shape.misses += 1
        if shape.misses >= MISSES:
            _learn(shape, names, count)
        return _plain_dict(names, values, count)
    made = PyDict_Copy(<object> shape.template)
    entries = _entries_of(made, shape.offset)
    for place in range(count):
        Py_XDECREF(entries[2 * place + 1])
        entries[2 * place + 1], values[place] = values[place], NULL
    return made


cdef inline PyObject **_entries_of(dict fields, Py_ssize_t offset):
    return <PyObject **> (<char *> (<PyDictObject *> <PyObject *> fields).ma_keys + offset)


cdef int _learn(Shape *shape, PyObject **names, int count) except -1:
    """A shape for this place, where dicts are made as they always were: a name and a value after the other."""
    cdef dict template = {}, again
    cdef Py_ssize_t offset, size
    cdef int place
    shape.misses = shape.count = 0
    for place in range(count):
        template[<object> names[place]] = None
    if len(template) != count:
        return 0
    again = PyDict_Copy(template)
    size = template.__sizeof__() - dict.__basicsize__
    if again.__sizeof__() - dict.__basicsize__ != size or _entries_of(again, 0) == _entries_of(template, 0):
        return 0
    for offset in range(0, size - 2 * count * <Py_ssize_t> sizeof(PyObject *) + 1, sizeof(PyObject *)):
        if _has_entries(template, offset, names, count) and _has_entries(again, offset, names, count):
            Py_XDECREF(shape.template)
            Py_INCREF(template)
            shape.template, shape.offset, shape.count = <PyObject *> template, offset, count
            memcpy(shape.names, names, count * sizeof(PyObject *))
            return 0
    return 0


cdef bint _has_entries(dict fields, Py_ssize_t offset, PyObject **names, int count):
    cdef PyObject **entries = _entries_of(fields, offset)
    cdef int place
    for place in range(count):
        if entries[2 * place] != names[place] or entries[2 * place + 1] != <PyObject *> None:
            return False
    return True


cdef inline const char *_plain_end(const char *at, const char *end) noexcept:
    """Where plain text ends: at a quote, or at what is not plain."""
    cdef uint64_t eight, quotes, backslashes, special
    # Eight at a time. The first one of them that is special has the lowest bit; those above it may have one for no reason.
    while end - at >= 8:
        memcpy(&eight, at, 8)
        quotes = eight ^ (ONES * 0x22)
        backslashes = eight ^ (ONES * 0x5C)
        special = (
            ((quotes - ONES) & ~quotes)
            | ((backslashes - ONES) & ~backslashes)
            | ((eight - ONES * 0x20) & ~eight)
            | eight
        ) & (ONES * 0x80)
        if special:
            if IS_LITTLE_ENDIAN:
                return at + (__builtin_ctzll(special) >> 3)
            break
        at += 8
    while c" " <= at[0] <= 126 and at[0] != c'"' and at[0] != c"\\":
        at += 1
    return at


cdef inline object _name(const char **cursor, const char *end, size_t **next_name):
    """The name of a field: nearly always that which followed the one before it the last time, which is only compared."""
    cdef const char *start = cursor[0] + 1
    cdef size_t place = next_name[0][0]
    cdef Py_ssize_t length = _heads[place].length
    cdef object name
    if 0 < length < end - start and start[length] == c'"' and memcmp(start, _heads[place].characters, length) == 0:
        cursor[0] += length + 2
        next_name[0] = &_heads[place].next
        return <object> _heads[place].text
    name = _text(cursor, end, True)
    next_name[0][0] = _place
    next_name[0] = &_heads[_place].next
    return name


cdef object _text(const char **cursor, const char *end, bint is_name):
    global _place
    cdef const char *start = cursor[0] + 1
    cdef const char *at = _plain_end(start, end)
    cdef Py_ssize_t length = at - start
    cdef uint64_t first = 0, middle = 0, last = 0
    cdef Known *head
    cdef size_t place
    cdef object text
    if at[0] != c'"':
        return _unusual_text(cursor, end)
    cursor[0] = at + 1
    # Names, symbols and sides begin with a letter; times, ids and numbers, which hardly come again, do not.
    if 0 < length <= KNOWN_LENGTH and start[0] >= c"A":
        # All of it is in these three, and overlaps in them where it is short; its length tells the rest.
        if length >= 8:
            memcpy(&first, start, 8)
            memcpy(&last, at - 8, 8)
            if length > 16:
                memcpy(&middle, start + 8, 8)
        elif length >= 4:
            memcpy(&first, start, 4)
            memcpy(&last, at - 4, 4)
        else:
            first = <unsigned char> start[0]
            middle = <unsigned char> start[length >> 1]
            last = <unsigned char> (at - 1)[0]
        place = (((first * 0x9E3779B97F4A7C15ULL ^ last) * 0xC2B2AE3D27D4EB4FULL ^ middle ^ <uint64_t> length) * 0x9E3779B97F4A7C15ULL) >> 54
        head = &_heads[place]
        _place = place
        if head.length == length and head.first == first and head.last == last and head.middle == middle:
            return <object> head.text
        text = PyUnicode_New(length, 127)
        memcpy(PyUnicode_DATA(text), start, length)
        if is_name or length <= WORD_LENGTH:
            # Then it is the very text that a mapper asks for or compares it with, and is told without a look into it.
            text = _intern(text)
        head.first, head.middle, head.last, head.length = first, middle, last, length
        Py_INCREF(text)
        Py_XDECREF(head.text)
        head.text, head.characters = <PyObject *> text, <const char *> PyUnicode_DATA(text)
        return text
    if length == 0:
        return ""
    text = PyUnicode_New(length, 127)
    memcpy(PyUnicode_DATA(text), start, length)
    return text


cdef object _unusual_text(const char **cursor, const char *end):
    cdef const char *start = cursor[0]
    cdef const char *at = start + 1
    while at < end and at[0] != c'"':
        at += 2 if at[0] == c"\\" else 1
    if at >= end:
        raise _UnusualError
    cursor[0] = at + 1
    return _parse_unusual(PyBytes_FromStringAndSize(start, at + 1 - start))


cdef object _number(const char **cursor):
    """As the other parser reads it: digits without a point are an integer."""
    cdef const char *start = cursor[0]
    cdef const char *at = start
    cdef const char *point = NULL
    cdef int64_t digits = 0
    cdef bint is_negative = at[0] == c"-"
    cdef const char *first
    if is_negative:
        at += 1
    first = at
    while True:
        if c"0" <= at[0] <= c"9":
            # What is too long is thrown away.
            digits = <int64_t> (<uint64_t> digits * 10 + <uint64_t> (at[0] - c"0"))
        elif at[0] == c"." and point == NULL:
            point = at
        else:
            break
        at += 1
    cursor[0] = at
    if (
        at == first
        or at[0] == c"e"
        or at[0] == c"E"
        or at[0] == c"."
        or (first[0] == c"0" and at - first > 1 and first[1] != c".")
        or (is_negative and digits == 0)
    ):
        return _unusual_number(cursor, start)
    if point == NULL:
        if at - first > 18:
            return _unusual_number(cursor, start)
        return -digits if is_negative else digits
    if point == first or point == at - 1 or at - first > 16:
        return _unusual_number(cursor, start)
    # 15 digits: a double holds them exactly, and one division rounds as the standard asks for.
    return <double> (-digits if is_negative else digits) / _POWERS[at - point - 1]


cdef object _unusual_number(const char **cursor, const char *start):
    cdef const char *at = start
    while c"0" <= at[0] <= c"9" or at[0] == c"." or at[0] == c"-" or at[0] == c"+" or at[0] == c"e" or at[0] == c"E":
        at += 1
    cursor[0] = at
    return _parse_unusual(PyBytes_FromStringAndSize(start, at - start))


cdef object _rows(const char **cursor, const char *end):
    """Rows as text; None, and the cursor where it was, where they hold something else than plain numbers and plain text."""
    cdef const char *at = cursor[0] + 1
    cdef const char *start
    cdef int columns, least = 1 << 30, numbers = 0xFF
    while True:
        if at[0] != c"[":
            return None
        at += 1
        columns = 0
        while True:
            columns += 1
            if at[0] == c'"':
                start = at + 1
                at = _plain_end(start, end)
                if at[0] != c'"':
                    return None
                if columns <= 4:
                    # Text is no number; and it may read as one, or not.
                    numbers &= ~(1 << (columns - 1))
                    if _number_end(start) != at:
                        numbers &= ~(16 << (columns - 1))
                at += 1
            else:
                at = _number_end(at)
                if at == NULL:
                    return None
            if at[0] != c",":
                break
            at += 1
        if at[0] != c"]":
            return None
        at += 1
        least = min(least, columns)
        if at[0] != c",":
            break
        at += 1
    if at[0] != c"]":
        return None
    at += 1
    rows = _Rows(PyBytes_FromStringAndSize(cursor[0], at - cursor[0]), least, numbers)
    cursor[0] = at
    return rows


cdef inline const char *_number_end(const char *at) noexcept:
    """Behind a number without exponent; NULL where there is none."""
    if at[0] == c"-":
        at += 1
    if at[0] == c"0":
        at += 1
    elif c"1" <= at[0] <= c"9":
        while c"0" <= at[0] <= c"9":
            at += 1
    else:
        return NULL
    if at[0] == c".":
        at += 1
        if not c"0" <= at[0] <= c"9":
            return NULL
        while c"0" <= at[0] <= c"9":
            at += 1
    return at
