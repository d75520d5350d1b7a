# cython: language_level=3, cdivision=True, annotation_typing=False
"""`wire` compiled: what nearly every field takes. Numbers of more than 64 bits are left to the functions of the same names in `wire`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport int64_t, uint64_t

from tardis_machine._declarations cimport put_bytes, put_varint

from .wire import encode_timestamp as encode_long_timestamp
from .wire import varint as long_varint

__all__ = ["delimited", "encode_timestamp", "varint"]

cdef:
    object _encode_long_timestamp = encode_long_timestamp
    object _long_varint = long_varint


def varint(value):
    """See `wire.varint`."""
    cdef char encoded[10]
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(value):
        return _long_varint(value)
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return _long_varint(value)
    return PyBytes_FromStringAndSize(encoded, put_varint(encoded, <uint64_t> number) - encoded)


def delimited(bytes data not None):
    """See `wire.delimited`."""
    cdef char length[10]
    cdef Py_ssize_t length_bytes = put_varint(length, PyBytes_GET_SIZE(data)) - length
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, length_bytes + PyBytes_GET_SIZE(data))
    cdef char *at = PyBytes_AS_STRING(encoded)
    put_bytes(put_varint(at, PyBytes_GET_SIZE(data)), data)
    return encoded


def encode_timestamp(us):
    """See `wire.encode_timestamp`."""
    cdef char encoded[24]
    cdef char *at = encoded + 1
    cdef int overflow = 0
    cdef int64_t number, seconds, fraction
    if not PyLong_CheckExact(us):
        return _encode_long_timestamp(us)
    number = PyLong_AsLongLongAndOverflow(us, &overflow)
    if overflow:
        return _encode_long_timestamp(us)
    seconds, fraction = number // 1_000_000, number % 1_000_000
    if fraction < 0:
        seconds, fraction = seconds - 1, fraction + 1_000_000
    if seconds:
        at[0] = 1 << 3
        at = put_varint(at + 1, <uint64_t> seconds)
    if fraction:
        at[0] = 2 << 3
        at = put_varint(at + 1, <uint64_t> fraction * 1000)
    encoded[0] = <char> (at - encoded - 1)
    return PyBytes_FromStringAndSize(encoded, at - encoded)
