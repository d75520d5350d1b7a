# What the modules that are written in Cython share: C's view of Python's text, of the fields of messages, and Protobuf's wire format.
#
# A field of a msgspec.Struct is a pointer at a fixed offset, which its class tells (a descriptor of the kind that __slots__ has): where
# a class says something else, importing the module fails with ImportError, and Python does the work.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    void *PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    PyTypeObject PyMemberDescr_Type

cdef extern from "structmember.h":
    int T_OBJECT_EX
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    object PyMember_GetOne(const char *, PyMemberDef *)


cdef inline PyMemberDef *find_field(object kind, str name) except NULL:
    """Where objects of a class have a field: looked up once, not for each of them."""
    cdef PyMemberDef *field
    descriptor = kind.__dict__.get(name)
    if type(descriptor) is <object> <PyObject *> &PyMemberDescr_Type:
        field = (<PyMemberDescrObject *> <PyObject *> descriptor).d_member
        if field.type == T_OBJECT_EX:
            return field
    raise ImportError(f"{kind.__name__}.{name} is not kept at an offset")


cdef inline object get_field(object owner, PyMemberDef *field):
    cdef PyObject *found = (<PyObject **> (<char *> <PyObject *> owner + field.offset))[0]
    # Where there is none, this raises what Python would.
    return <object> found if found != NULL else PyMember_GetOne(<const char *> <PyObject *> owner, field)


cdef inline char *put(char *at, const char *data, Py_ssize_t length) noexcept:
    memcpy(at, data, length)
    return at + length


cdef inline char *put_bytes(char *at, bytes data) noexcept:
    return put(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline char *put_varint(char *at, uint64_t value) noexcept:
    while value >= 128:
        at[0] = <char> (value | 128)
        at += 1
        value >>= 7
    at[0] = <char> value
    return at + 1


cdef inline bint is_number(object value) noexcept:
    return PyFloat_CheckExact(value) or PyLong_CheckExact(value)


cdef struct Number:
    # A number of a JSON array.
    const char *text
    int length


cdef inline bint next_number(const char **cursor, Number *out) noexcept:
    """The next number of a JSON array; whether it is usual: not null, without exponent, not longer than doubles are."""
    cdef const char *at = cursor[0]
    cdef bint is_usual = True
    out.text = at
    while at[0] != c"," and at[0] != c"]":
        if at[0] == c"e" or at[0] == c"n":
            is_usual = False
        at += 1
    out.length = <int> (at - out.text)
    cursor[0] = at + 1
    return is_usual and out.length < 32


cdef inline char *put_number(char *at, char key, Number *number) noexcept:
    """A field of a tag of one byte, which holds a number's text."""
    at[0] = key
    at[1] = <char> number.length
    return put(at + 2, number.text, number.length)


cdef enum:
    # The most that a level takes: a tag of two bytes, its length, and two numbers.
    LEVEL_BYTES = 80


cdef inline char *put_levels(char *at, bytes key, Py_ssize_t count, const char **numbers) noexcept:
    """Levels of a book, each after its tag; NULL where the text of one of their numbers is not usual.

    All their numbers are read in any case, so that the cursor stands behind them; where `at` is NULL, nothing else is done.
    """
    cdef Number price, amount
    cdef bint are_usual = at != NULL
    cdef const char *key_bytes = PyBytes_AS_STRING(key)
    cdef Py_ssize_t key_length = PyBytes_GET_SIZE(key), index
    for index in range(count):
        are_usual = next_number(numbers, &price) and are_usual
        are_usual = next_number(numbers, &amount) and are_usual
        if are_usual:
            # One or two bytes: faster than to copy so many.
            at[0], at[1] = key_bytes[0], key_bytes[1]
            at += key_length
            at[0] = <char> (price.length + amount.length + 4)
            at = put_number(at + 1, 1 << 3 | 2, &price)
            at = put_number(at, 2 << 3 | 2, &amount)
    return at if are_usual else NULL


cdef struct Mark:
    # See `pipeline/marks.py`.
    int64_t instant_us
    uint32_t size
    uint32_t messages
