# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`order_book` compiled: levels are two doubles each, in arrays of C, and become objects when somebody asks for them.

Numbers are taken and given as messages hold them (see `messages.js_number`). An amount that is no number (null, absent, text as an
exchange sent it) is a NaN that tells which.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsDouble, PyLong_Check
from libc.math cimport NAN, floor
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from tardis_machine._book cimport (
    Book,
    Level,
    Side,
    add_level,
    begin_book,
    double_of,
    forget_levels,
    free_book,
    is_crossed,
    remove_crossed,
    settle_levels,
    take_level,
    whole_of,
)
from tardis_machine._declarations cimport PyMemberDef, find_field, get_field

from ..messages import UNSET, BookChange, BookLevel, js_number

__all__ = ["OrderBook"]

cdef:
    object _BookLevel = BookLevel
    object _js_number = js_number
    object _BookChange = BookChange
    PyMemberDef *_PRICE = find_field(BookLevel, "price")
    PyMemberDef *_AMOUNT = find_field(BookLevel, "amount")
    PyMemberDef *_IS_SNAPSHOT = find_field(BookChange, "is_snapshot")
    PyMemberDef *_BIDS = find_field(BookChange, "bids")
    PyMemberDef *_ASKS = find_field(BookChange, "asks")
    double _EXACT = 2.0**53
    # Amounts that are no numbers, and the place of each: a NaN holds it, counted from 1. Later ones count as null: they come of no exchange
    # that is in its senses, and there may be any number of them.
    list _ODD = [None, UNSET]
    dict _PLACES = {(type(None), None): 1, (type(UNSET), UNSET): 2}
    Py_ssize_t _MOST_ODD = 1000
    uint64_t _NAN_BITS = 0x7FF8_0000_0000_0000
    uint64_t _NULL = 1, _ABSENT = 2


cdef inline uint64_t _place_of(double number) noexcept:
    """Of an amount that is no number; 0 where it is one, or just no number."""
    cdef uint64_t bits
    memcpy(&bits, &number, sizeof(double))
    return bits - _NAN_BITS if number != number and _NAN_BITS < bits <= _NAN_BITS + <uint64_t> _MOST_ODD else 0


cdef bint is_absent(double amount) noexcept:
    return _place_of(amount) == _ABSENT


cdef bint is_missing(double amount) noexcept:
    return _place_of(amount) != 0


cdef double _amount_of(object amount) except? -1:
    cdef uint64_t bits
    cdef double number
    if PyFloat_Check(amount):
        number = PyFloat_AS_DOUBLE(amount)
        return number if number == number else NAN
    if PyLong_Check(amount):
        return PyLong_AsDouble(amount)
    bits = _NAN_BITS + _place_of_odd(amount)
    memcpy(&number, &bits, sizeof(double))
    return number


cdef uint64_t _place_of_odd(object amount) except 0:
    try:
        place = _PLACES.get((type(amount), amount))
    except TypeError:
        return _NULL
    if place is None:
        if len(_ODD) == _MOST_ODD:
            return _NULL
        _ODD.append(amount)
        place = _PLACES[type(amount), amount] = len(_ODD)
    return place


cdef object number_of(double number):
    """A double as messages hold it; see `js_number`."""
    if number != floor(number):
        if _place_of(number):
            return _ODD[_place_of(number) - 1]
        return number if number > 1e-5 else _js_number(number)
    return <int64_t> number if -_EXACT < number < _EXACT else _js_number(number)


cdef inline object _level_of(const Level *level, double sign):
    return _BookLevel(number_of(sign * double_of(level.key)), number_of(double_of(level.amount)))


cdef inline int _take(Side *side, object level, double sign, bint is_snapshot) except -1:
    cdef double price
    if type(level) is _BookLevel:
        given, amount = get_field(level, _PRICE), get_field(level, _AMOUNT)
    else:
        given, amount = level.price, level.amount
    if PyFloat_Check(given):
        price = PyFloat_AS_DOUBLE(given)
        if price != price:
            return 0
    elif PyLong_Check(given):
        price = PyLong_AsDouble(given)
    else:
        return 0
    if is_snapshot:
        return add_level(side, whole_of(sign * price), whole_of(_amount_of(amount)))
    return take_level(side, whole_of(sign * price), whole_of(_amount_of(amount)))


cdef int _take_side(Side *side, object levels, double sign, bint is_snapshot) except -1:
    cdef Py_ssize_t place
    if is_snapshot:
        forget_levels(side)
    if PyList_CheckExact(levels):
        for place in range(PyList_GET_SIZE(levels)):
            _take(side, <object> PyList_GET_ITEM(levels, place), sign, is_snapshot)
    else:
        for level in levels:
            _take(side, level, sign, is_snapshot)
    if is_snapshot:
        settle_levels(side)
    return 0


cdef object _best(const Side *side, double sign):
    return _level_of(&side.levels[side.count - 1], sign) if side.count else None


cdef list _top(const Side *side, Py_ssize_t depth, double sign):
    cdef Py_ssize_t place
    return [_level_of(&side.levels[side.count - 1 - place], sign) for place in range(min(depth, side.count))]


cdef class OrderBook:
    """See `order_book.OrderBook`."""

    def __cinit__(self, remove_crossed=True, on_removed=None):
        begin_book(&self.book)
        self._removes_crossed = remove_crossed
        self._on_removed = on_removed

    def __dealloc__(self):
        free_book(&self.book)

    @property
    def best_bid(self):
        """See `order_book.OrderBook.best_bid`."""
        return _best(&self.book.bids, 1)

    @property
    def best_ask(self):
        """See `order_book.OrderBook.best_ask`."""
        return _best(&self.book.asks, -1)

    def bids(self):
        """See `order_book.OrderBook.bids`."""
        return iter(_top(&self.book.bids, self.book.bids.count, 1))

    def asks(self):
        """See `order_book.OrderBook.asks`."""
        return iter(_top(&self.book.asks, self.book.asks.count, -1))

    def top_bids(self, Py_ssize_t depth):
        """See `order_book.OrderBook.top_bids`."""
        return _top(&self.book.bids, depth, 1)

    def top_asks(self, Py_ssize_t depth):
        """See `order_book.OrderBook.top_asks`."""
        return _top(&self.book.asks, depth, -1)

    @property
    def bids_touched(self):
        """See `order_book.OrderBook.watch`."""
        return self.book.bids.is_touched

    @bids_touched.setter
    def bids_touched(self, bint is_touched):
        self.book.bids.is_touched = is_touched

    @property
    def asks_touched(self):
        """See `order_book.OrderBook.watch`."""
        return self.book.asks.is_touched

    @asks_touched.setter
    def asks_touched(self, bint is_touched):
        self.book.asks.is_touched = is_touched

    def watch(self, double lowest_bid, double highest_ask):
        """See `order_book.OrderBook.watch`."""
        self.book.bids.floor, self.book.asks.floor = whole_of(lowest_bid), whole_of(-highest_ask)
        self.book.bids.is_touched = self.book.asks.is_touched = False

    def update(self, change):
        """See `order_book.OrderBook.update`."""
        self.take(change)

    cdef int take(self, change) except -1:
        cdef Book *book = &self.book
        cdef bint is_snapshot
        if type(change) is _BookChange:
            is_snapshot = get_field(change, _IS_SNAPSHOT)
            bids, asks = get_field(change, _BIDS), get_field(change, _ASKS)
        else:
            is_snapshot, bids, asks = change.is_snapshot, change.bids, change.asks
        if is_snapshot:
            book.is_known = True
        elif not book.is_known:
            return 0
        _take_side(&book.asks, asks, -1, is_snapshot)
        _take_side(&book.bids, bids, 1, is_snapshot)
        if self._removes_crossed and is_crossed(book):
            self._uncross(asks)
        return 0

    cdef int _uncross(self, asks) except -1:
        cdef Book *book = &self.book
        cdef double best_ask = -double_of(book.asks.levels[book.asks.count - 1].key)
        cdef bint ask_is_new = False
        for level in asks:
            if level.price == best_ask:
                ask_is_new = True
                break
        while is_crossed(book):
            bid, ask = self.best_bid, self.best_ask
            remove_crossed(book, ask_is_new)
            if self._on_removed is not None:
                self._on_removed(bid, self.best_bid, ask, self.best_ask)
        return 0

    def __reduce__(self):
        cdef Book *book = &self.book
        return OrderBook, (self._removes_crossed, self._on_removed), (book.is_known, _to_bytes(&book.bids), _to_bytes(&book.asks))

    def __setstate__(self, state):
        cdef bytes bids, asks
        self.book.is_known, bids, asks = state
        _from_bytes(&self.book.bids, bids)
        _from_bytes(&self.book.asks, asks)


cdef bytes _to_bytes(const Side *side):
    return PyBytes_FromStringAndSize(<char *> side.levels, side.count * sizeof(Level))


cdef int _from_bytes(Side *side, bytes levels) except -1:
    cdef const Level *given = <const Level *> PyBytes_AS_STRING(levels)
    cdef Level level
    cdef Py_ssize_t place
    for place in range(PyBytes_GET_SIZE(levels) // <Py_ssize_t> sizeof(Level)):
        # A string has no place for whole numbers of that size.
        memcpy(&level, given + place, sizeof(Level))
        add_level(side, level.key, level.amount)
    # Whoever watches it looks anew.
    side.is_touched = True
    return 0
