# cython: language_level=3, cdivision=True, annotation_typing=False
"""`_parsing` compiled: the numbers and times that nearly all messages hold, read without a step of Python between.

Everything else (exponents, signs and spaces, long numbers, unusual dates, what is absent) is left to the functions of the same names in
`_parsing`, which are the definition.
"""

from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.math cimport floor
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from tardis_machine._declarations cimport (
    PyMemberDef,
    PyUnicode_CheckExact,
    PyUnicode_DATA,
    PyUnicode_GET_LENGTH,
    PyUnicode_IS_COMPACT_ASCII,
    PyUnicode_New,
    find_field,
    get_field,
)

from ..messages import UNSET, BookLevel, js_number
from ._parsing import levels_by_side as read_levels_by_side
from ._parsing import optional_number as read_optional_number
from ._parsing import timestamp_from_ms as read_ms
from ._parsing import timestamp_from_text as read_text
from ._parsing import to_number as read_number
from ._parsing import verbatim as read_verbatim
from ._rows import LevelRows, Rows, Unread

__all__ = [
    "levels",
    "levels_as_sent",
    "levels_by_side",
    "nonzero_number",
    "number_if_there",
    "number_unless_null",
    "optional_number",
    "timestamp_from_ms",
    "timestamp_from_text",
    "to_number",
    "verbatim",
]

cdef:
    object _BookLevel = BookLevel
    object _js_number = js_number
    object _read_levels_by_side = read_levels_by_side
    object _read_ms = read_ms
    object _read_number = read_number
    object _read_text = read_text
    object _read_verbatim = read_verbatim
    object _read_optional_number = read_optional_number
    object _Rows = Rows
    object _UNSET = UNSET
    object _LevelRows = LevelRows
    PyMemberDef *_columns = find_field(Rows, "columns")
    PyMemberDef *_numbers = find_field(Rows, "numbers")
    PyMemberDef *_text = find_field(Unread, "text")


# Integers below it, and powers of ten up to 10**22, are doubles exactly, so that one division rounds as the standard asks for.
cdef int64_t _EXACT = <int64_t> 1 << 53
cdef double _POWERS[23]
cdef int _power
for _power in range(23):
    _POWERS[_power] = 10.0**_power


cdef inline object _settled(double number):
    """A double in the type that prints as in JavaScript; see `js_number`."""
    if number != floor(number):
        return number if number > 1e-5 else _js_number(number)
    return <int64_t> number if -_EXACT < number < _EXACT else _js_number(number)


cdef object _number_of_text(object text):
    """Of `8000` and `-0.0125`: digits with at most one point among them, as many as a double holds."""
    cdef const char *at
    cdef const char *end
    cdef int64_t digits = 0
    cdef int decimals = 0, digit
    cdef bint is_negative, has_point = False
    if not PyUnicode_IS_COMPACT_ASCII(text):
        return _read_number(text)
    at = <const char *> PyUnicode_DATA(text)
    end = at + PyUnicode_GET_LENGTH(text)
    is_negative = at != end and at[0] == c"-"
    if is_negative:
        at += 1
    # 15 digits and a point, or 16 digits: never more than an int64 holds.
    if at == end or end - at > 16 or at[0] == c"." or end[-1] == c"." or (at[0] == c"0" and end - at > 1 and at[1] != c"."):
        return _read_number(text)
    while at != end:
        digit = at[0] - c"0"
        if 0 <= digit <= 9:
            digits = 10 * digits + digit
            decimals += has_point
        elif at[0] == c"." and not has_point:
            has_point = True
        else:
            return _read_number(text)
        at += 1
    if digits >= _EXACT or (is_negative and digits == 0):
        return _read_number(text)
    if is_negative:
        digits = -digits
    return _settled(<double> digits / _POWERS[decimals]) if has_point else digits


def to_number(value):
    """See `_parsing.to_number`."""
    return _to_number(value)


cdef inline object _to_number(object value):
    if PyUnicode_CheckExact(value):
        return _number_of_text(value)
    return _plain(value, _read_number)


def verbatim(value):
    """See `_parsing.verbatim`."""
    return _plain(value, _read_verbatim)


cdef inline object _optional_number(object value):
    if value is None or value is _UNSET:
        return _UNSET
    if PyFloat_CheckExact(value) or PyLong_CheckExact(value) or (PyUnicode_CheckExact(value) and PyUnicode_GET_LENGTH(value)):
        number = _to_number(value)
        # What is infinite, or no number, is not 0 less than itself.
        if not PyFloat_CheckExact(number) or PyFloat_AS_DOUBLE(number) - PyFloat_AS_DOUBLE(number) == 0:
            return number
        return _UNSET
    return _read_optional_number(value)


def optional_number(value):
    """See `_parsing.optional_number`."""
    return _optional_number(value)


def nonzero_number(value):
    """See `_parsing.nonzero_number`."""
    number = _optional_number(value)
    return _UNSET if number == 0 else number


def number_if_there(row, name):
    """See `_parsing.number_if_there`."""
    return _to_number(row[name]) if name in row else _UNSET


def number_unless_null(row, name):
    """See `_parsing.number_unless_null`."""
    value = row.get(name)
    return _UNSET if value is None else _to_number(value)


cdef inline object _plain(object value, object otherwise):
    """A number that is what it should be already."""
    cdef int overflow = 0
    cdef int64_t number
    cdef double real
    if PyFloat_CheckExact(value):
        real = PyFloat_AS_DOUBLE(value)
        return value if real > 1e-5 and real != floor(real) else _settled(real)
    if PyLong_CheckExact(value):
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow == 0 and -_EXACT < number < _EXACT:
            return value
    return otherwise(value)


cdef inline bint _may_stay(object rows, int first, int kind):
    """Whether reading the two columns can't go wrong; what is no number must be told of the message that brought it."""
    cdef int wanted = (kind << first) | (kind << (first + 1))
    return first < 3 and get_field(rows, _columns) >= first + 2 and (<int> get_field(rows, _numbers)) & wanted == wanted


def levels(pairs):
    """See `_parsing.levels`. Rows that were left as text stay it."""
    cdef list found = []
    if type(pairs) is _Rows and _may_stay(pairs, 0, 16):
        return _LevelRows(get_field(pairs, _text))
    for pair in pairs:
        if PyList_CheckExact(pair) and PyList_GET_SIZE(pair) >= 2:
            price, amount = <object> PyList_GET_ITEM(pair, 0), <object> PyList_GET_ITEM(pair, 1)
        elif PyTuple_CheckExact(pair) and PyTuple_GET_SIZE(pair) >= 2:
            price, amount = <object> PyTuple_GET_ITEM(pair, 0), <object> PyTuple_GET_ITEM(pair, 1)
        else:
            price, amount = pair[0], pair[1]
        found.append(_BookLevel(_to_number(price), _to_number(amount)))
    return found


def levels_as_sent(rows, int first=0, removed_by=None):
    """See `_parsing.levels_as_sent`, and `levels`."""
    cdef list found = []
    if type(rows) is _Rows and _may_stay(rows, first, 1):
        return _LevelRows(get_field(rows, _text), first, True, removed_by)
    for row in rows:
        price = _plain(row[first], _read_verbatim)
        amount = 0 if removed_by is not None and row[0] == removed_by else _plain(row[first + 1], _read_verbatim)
        found.append(_BookLevel(price, amount))
    return found


def levels_by_side(rows, buy="buy", sell="sell"):
    """See `_parsing.levels_by_side`, and `levels`."""
    if type(rows) is _Rows and _may_stay(rows, 1, 16):
        text = get_field(rows, _text)
        return _of_side(text, buy), _of_side(text, sell)
    return _read_levels_by_side(rows, buy, sell)


cdef dict _openings = {}


cdef object _of_side(bytes text, str side):
    """The levels of a side. Nothing else than a row of it can hold its opening, as text in rows has no quotes."""
    opening = _openings.get(side)
    if opening is None:
        opening = _openings[side] = b'["' + side.encode() + b'"'
    # Not `in`: Python first tries to read bytes as a number, and words an error that nobody sees.
    return _LevelRows(text, 1, False, None, side) if text.find(opening) >= 0 else []


# Seconds that were read before, each in the place that its second of a minute has.
cdef char _texts[100][19]
cdef bint _is_known[100]
cdef int64_t _seconds[64]
cdef char _second_texts[64][19]


cdef inline bint _are_digits(const char *at, int count) noexcept:
    cdef int place
    for place in range(count):
        if at[place] < c"0" or at[place] > c"9":
            return False
    return True


def timestamp_from_text(text, bint micros=False):
    """See `_parsing.timestamp_from_text`."""
    cdef const char *data
    cdef Py_ssize_t length
    cdef int place = -1
    if PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text):
        data = <const char *> PyUnicode_DATA(text)
        length = PyUnicode_GET_LENGTH(text)
        if (length == 24 or length == 27) and data[19] == c"." and data[length - 1] == c"Z" and _are_digits(data + 17, 2):
            place = 10 * (data[17] - c"0") + data[18] - c"0"
            if _is_known[place] and memcmp(data, _texts[place], 19) == 0 and _are_digits(data + 20, <int> length - 21):
                if length == (27 if micros else 24):
                    return text
                if not micros:
                    return _with_milliseconds(data, data + 20)
    found = _read_text(text, micros)
    if place >= 0 and found is not None and memcmp(PyUnicode_DATA(found), data, 19) == 0:
        # It is a second of the calendar.
        memcpy(_texts[place], data, 19)
        _is_known[place] = True
    return found


cdef object _with_milliseconds(const char *second, const char *digits):
    cdef object text = PyUnicode_New(24, 127)
    cdef char *at = <char *> PyUnicode_DATA(text)
    memcpy(at, second, 19)
    at[19] = c"."
    memcpy(at + 20, digits, 3)
    at[23] = c"Z"
    return text


def timestamp_from_ms(value):
    """See `_parsing.timestamp_from_ms`."""
    cdef int overflow = 0
    cdef int64_t number, second
    cdef int place, millisecond
    cdef char digits[3]
    if not PyLong_CheckExact(value):
        return _read_ms(value)
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    # From 2001 to 9999 a timestamp has its usual length.
    if overflow or not 1_000_000_000_000 <= number < 253_000_000_000_000:
        return _read_ms(value)
    second, millisecond = number // 1000, <int> (number % 1000)
    place = <int> (second & 63)
    if _seconds[place] != second:
        found = _read_ms(value)
        memcpy(_second_texts[place], PyUnicode_DATA(found), 19)
        _seconds[place] = second
        return found
    digits[0], digits[1], digits[2] = c"0" + millisecond // 100, c"0" + millisecond // 10 % 10, c"0" + millisecond % 10
    return _with_milliseconds(_second_texts[place], digits)
