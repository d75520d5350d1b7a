# cython: language_level=3, boundscheck=False, wraparound=False, annotation_typing=False
"""`_feeding` compiled: the same functions, without a step of Python between the parser and the mappers.

Lines of unusual form (too short, a time that is no ASCII text) are left to the function of the same name in `_feeding`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact
from cpython.tuple cimport PyTuple_CheckExact
from libc.string cimport memcpy

from tardis_machine._declarations cimport PyUnicode_DATA, PyUnicode_New

from ..recorded_line import KEY_LENGTH, MESSAGE_START
from ._feeding import join_lines as join_unusual

__all__ = ["feed_messages", "join_lines"]

cdef object _join_unusual = join_unusual

cdef Py_ssize_t CLOCK = KEY_LENGTH
cdef Py_ssize_t HEAD = MESSAGE_START


def join_lines(lines):
    """See `_feeding.join_lines`."""
    cdef Py_ssize_t size = 1, length
    cdef list given, clocks = []
    cdef bytes array
    cdef char *at
    if not PyList_CheckExact(lines):
        return _join_unusual(lines)
    given = <list> lines
    for line in given:
        if not PyBytes_CheckExact(line) or PyBytes_GET_SIZE(line) <= HEAD:
            return _join_unusual(lines)
        size += PyBytes_GET_SIZE(line) - HEAD + 1
    array = PyBytes_FromStringAndSize(NULL, size if given else 2)
    at = PyBytes_AS_STRING(array)
    at[0] = c"["
    # What follows a message, a comma but for the last, is where the next begins.
    at[1] = c"]"
    for line in given:
        clock = _clock_of(PyBytes_AS_STRING(line))
        if clock is None:
            return _join_unusual(lines)
        clocks.append(clock)
        length = PyBytes_GET_SIZE(line) - HEAD
        memcpy(at + 1, PyBytes_AS_STRING(line) + HEAD, length)
        at += length + 1
        at[0] = c","
    if given:
        at[0] = c"]"
    return clocks, array


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


def feed_messages(calls, clocks, list messages not None, Py_ssize_t start, list out not None):
    """See `_feeding.feed_messages`."""
    cdef Py_ssize_t place = start, count = len(messages)
    cdef list pairs = list(calls)
    cdef tuple pair
    # Not the list's own, which may drop what a generator gave before it raised.
    extend = out.extend
    try:
        while place < count:
            clock = clocks[place]
            if clock is None:
                return place, None
            message = messages[place]
            for pair in pairs:
                if pair[0](message):
                    found = pair[1](message, clock)
                    if PyList_CheckExact(found) or PyTuple_CheckExact(found):
                        out.extend(found)
                    else:
                        extend(found)
            place += 1
    except Exception as error:
        return place, error
    return count, None
