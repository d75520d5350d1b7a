# cython: language_level=3, boundscheck=False, wraparound=False, annotation_typing=False
"""`payloads` compiled: the levels of books, written straight from their messages.

A side with a level that is not usual (null, absent, a number with an exponent) is left to the function of the same name in `payloads`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from tardis_machine._declarations cimport LEVEL_BYTES, PyMemberDef, find_field, get_field, is_number, put_levels

from ..messages import BookLevel, to_json
from .payloads import encode_levels as encode_unusual

__all__ = ["encode_levels"]

cdef:
    object _BookLevel = BookLevel
    object _encode_unusual = encode_unusual
    object _to_json = to_json
    PyMemberDef *_PRICE = find_field(BookLevel, "price")
    PyMemberDef *_AMOUNT = find_field(BookLevel, "amount")


def encode_levels(bytes key, levels, side, list nulls):
    """See `payloads.encode_levels`."""
    cdef list numbers = []
    cdef bytes text, room
    cdef const char *cursor
    cdef char *start
    cdef char *end
    for level in levels:
        if type(level) is not _BookLevel:
            return _encode_unusual(key, levels, side, nulls)
        price, amount = get_field(level, _PRICE), get_field(level, _AMOUNT)
        if not (is_number(price) and is_number(amount)):
            return _encode_unusual(key, levels, side, nulls)
        numbers.append(price)
        numbers.append(amount)
    try:
        text = _to_json(numbers)
    except (TypeError, ValueError, OverflowError):
        return _encode_unusual(key, levels, side, nulls)
    cursor = PyBytes_AS_STRING(text) + 1
    room = PyBytes_FromStringAndSize(NULL, LEVEL_BYTES * (len(numbers) // 2))
    start = PyBytes_AS_STRING(room)
    end = put_levels(start, key, len(numbers) // 2, &cursor)
    return PyBytes_FromStringAndSize(start, end - start) if end != NULL else _encode_unusual(key, levels, side, nulls)
