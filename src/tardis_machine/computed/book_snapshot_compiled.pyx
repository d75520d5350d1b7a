# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`book_snapshot` compiled: from changes of a book to snapshots without an object a level.

The levels of a snapshot know their JSON. Of a side that changed, what is not as it was in the snapshot before is printed, and the rest copied.
"""

from collections.abc import Sequence

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport INFINITY, fabs, floor, fmod
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from tardis_machine._book cimport Level, Side, Whole, double_of, whole_of
from tardis_machine._declarations cimport (
    PyMemberDef,
    PyUnicode_CheckExact,
    PyUnicode_DATA,
    PyUnicode_GET_LENGTH,
    PyUnicode_IS_COMPACT_ASCII,
    find_field,
    get_field,
    put,
)

from .order_book_compiled cimport OrderBook, is_absent, is_missing, number_of

from ..messages import UNSET, BookChange, BookLevel, BookSnapshot, to_json
from .book_snapshot import decimal_places
from .bucket import CLOCK, Bucket
from .contract import Computation

__all__ = ["begin_snapshots"]

cdef extern from *:
    """
    /* Rounded by itself: a processor that multiplies and adds in one step would get other numbers than Python. */
    #if defined(__GNUC__)
    __attribute__((noinline))
    #endif
    static double product_of(double one, double other) { return one * other; }
    """
    double product_of(double, double) noexcept

cdef:
    object _BookLevel = BookLevel
    object _BookSnapshot = BookSnapshot
    object _UNSET = UNSET
    object _to_json = to_json
    object _BookChange = BookChange
    Py_ssize_t _CLOCK = CLOCK
    PyMemberDef *_SYMBOL = find_field(BookChange, "symbol")
    PyMemberDef *_EXCHANGE = find_field(BookChange, "exchange")
    PyMemberDef *_TIMESTAMP = find_field(BookChange, "timestamp")
    PyMemberDef *_LOCAL_TIMESTAMP = find_field(BookChange, "local_timestamp")
    # What the text of a level takes at most: two numbers of 25 characters among them.
    int _LEVEL_BYTES = 80
    double _EXACT = 2.0**53
    double _MOST_DIGITS = 1e15
    double _POWERS[21]

cdef int _power
for _power in range(21):
    _POWERS[_power] = 10.0**_power


cdef char *_put_digits(char *at, uint64_t digits, int decimals) noexcept:
    """A whole number of the last decimal."""
    cdef char text[48]
    cdef int place = 48, _
    if decimals:
        for _ in range(decimals):
            place -= 1
            text[place] = <char> (c"0" + digits % 10)
            digits //= 10
        place -= 1
        text[place] = c"."
    while True:
        place -= 1
        text[place] = <char> (c"0" + digits % 10)
        digits //= 10
        if digits == 0:
            return put(at, text + place, 48 - place)


cdef char *_put_number(char *at, double number) except NULL:
    """A number as JavaScript prints it."""
    cdef double size = fabs(number), digits
    cdef int decimals
    cdef bytes text
    if size == floor(size):
        if size < _EXACT:
            if number < 0:
                at[0] = c"-"
                at += 1
            return _put_digits(at, <uint64_t> size, 0)
    elif 1e-6 <= size < _MOST_DIGITS:
        for decimals in range(1, 21):
            digits = floor(product_of(size, _POWERS[decimals]) + 0.5)
            if digits >= _MOST_DIGITS:
                break
            # Of so few digits only one number reads back as this double: the shortest.
            if digits / _POWERS[decimals] == size:
                if number < 0:
                    at[0] = c"-"
                    at += 1
                return _put_digits(at, <uint64_t> digits, decimals)
    text = _to_json(number_of(number))
    return put(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef char *_put_level(char *at, const Level *level, double sign) except NULL:
    cdef double amount = double_of(level.amount)
    at = _put_number(put(at, b'{"price":', 9), sign * double_of(level.key))
    if not is_absent(amount):
        at = _put_number(put(at, b',"amount":', 10), amount)
    at[0] = c"}"
    return at + 1


cdef class Levels:
    """The best levels of one side as a snapshot has them, the best one first, and filled up with empty ones: a sequence of BookLevel."""

    cdef readonly bytes printed
    """Their JSON."""
    cdef double _sign
    cdef Py_ssize_t _depth
    cdef Py_ssize_t _count
    cdef Level *_levels
    # Where the text of each ends.
    cdef int *_ends
    cdef list _made

    def __dealloc__(self):
        free(self._levels)
        free(self._ends)

    cdef bint holds(self, const Level *levels, Py_ssize_t count) noexcept:
        return count == self._count and memcmp(levels, self._levels, count * sizeof(Level)) == 0

    cdef list made(self):
        """The objects, from when on somebody looks at them."""
        cdef Py_ssize_t place
        cdef list made
        if self._made is None:
            made = [
                _BookLevel(number_of(self._sign * double_of(self._levels[place].key)), number_of(double_of(self._levels[place].amount)))
                for place in range(self._count)
            ]
            made += [_BookLevel(_UNSET, _UNSET)] * (self._depth - self._count)
            self._made = made
        return self._made

    def __len__(self):
        return self._depth

    def __getitem__(self, place):
        return self.made()[place]

    def __iter__(self):
        return iter(self.made())

    def __reversed__(self):
        return reversed(self.made())

    def __contains__(self, level):
        return level in self.made()

    def index(self, *arguments):
        """As of a list."""
        return self.made().index(*arguments)

    def count(self, level):
        """As of a list."""
        return self.made().count(level)

    def __eq__(self, other):
        if isinstance(other, Levels):
            return self.made() == (<Levels> other).made()
        return self.made() == other if isinstance(other, list) else NotImplemented

    __hash__ = None

    def __repr__(self):
        return repr(self.made())

    def __reduce__(self):
        return list, (self.made(),)

    cdef bytes state(self):
        """What `_levels_of_state` makes them of."""
        return PyBytes_FromStringAndSize(<char *> self._levels, self._count * sizeof(Level))


Sequence.register(Levels)

cdef Levels _levels_of(const Level *levels, Py_ssize_t count, Py_ssize_t depth, double sign, Levels before):
    """Where there were others before, what did not change is taken from their text."""
    cdef Levels made = Levels.__new__(Levels)
    cdef char *room = <char *> malloc((_LEVEL_BYTES + 1) * count + 3 * depth + 2)
    made._sign, made._depth, made._count = sign, depth, count
    made._levels = <Level *> malloc(count * sizeof(Level) + 1)
    made._ends = <int *> malloc(count * sizeof(int) + 1)
    try:
        if room == NULL or made._levels == NULL or made._ends == NULL:
            raise MemoryError
        memcpy(made._levels, levels, count * sizeof(Level))
        made.printed = PyBytes_FromStringAndSize(room, _put_side(room, made, before) - room)
    finally:
        free(room)
    return made


cdef char *_put_side(char *room, Levels made, Levels before) except NULL:
    """The JSON of levels, and where that of each ends; of those that were there before, the text is copied."""
    cdef Py_ssize_t count = made._count, place = 0, other = 0, known = 0, run, start, shift
    cdef const Level *levels = made._levels
    cdef const char *text = NULL
    cdef char *at = room
    if before is not None:
        text = PyBytes_AS_STRING(before.printed)
        known = before._count
    at[0] = c"["
    at += 1
    while place < count:
        if place:
            at[0] = c","
            at += 1
        # Both have the best level first.
        while other < known and before._levels[other].key > levels[place].key:
            other += 1
        run = 0
        while place + run < count and other + run < known and _are_same(levels + place + run, before._levels + other + run):
            run += 1
        if run == 0:
            at = _put_level(at, levels + place, made._sign)
            made._ends[place] = <int> (at - room)
            place += 1
            continue
        start = before._ends[other - 1] + 1 if other else 1
        shift = (at - room) - start
        at = put(at, text + start, before._ends[other + run - 1] - start)
        for other in range(other, other + run):
            made._ends[place] = <int> (before._ends[other] + shift)
            place += 1
        other += 1
    for place in range(count, made._depth):
        at = put(at, b",{}", 3) if place else put(at, b"{}", 2)
    at[0] = c"]"
    return at + 1


cdef inline bint _are_same(const Level *one, const Level *other) noexcept:
    return one.key == other.key and one.amount == other.amount


cdef Levels _levels_of_state(bytes state, Py_ssize_t depth, double sign):
    return _levels_of(<const Level *> PyBytes_AS_STRING(state), PyBytes_GET_SIZE(state) // <Py_ssize_t> sizeof(Level), depth, sign, None)


cdef int _millisecond_of(const char *text) noexcept:
    """Of a time; below 0 where that is no number."""
    cdef int place, millisecond = 0
    for place in range(20, 23):
        if not c"0" <= text[place] <= c"9":
            return -1
        millisecond = 10 * millisecond + text[place] - c"0"
    return millisecond


cdef class Sampler:
    """See `book_snapshot.Sampler`."""

    cdef object _asked
    cdef object _name
    cdef object _interval_ms
    cdef object _grouping_told
    cdef OrderBook _book
    cdef object _bucket
    # The bucket's bounds, where text in it is told by comparing: the first 23 characters.
    cdef bytes _start
    cdef bytes _end
    # The interval, where a second is a number of them; else 0.
    cdef int _short_ms
    # Whether the bounds are of a later bucket than the one that `_bucket` knows of.
    cdef bint _is_ahead
    cdef Py_ssize_t _depth
    # 0: none.
    cdef double _grouping
    cdef double _scale
    cdef bint _has_changed
    cdef bint _is_due_at_once
    # What was told last.
    cdef Levels _bids
    cdef Levels _asks
    # The top of a side as it is now, the best level first.
    cdef Level *_top
    cdef Py_ssize_t _count

    def __cinit__(self, asked):
        self._asked = asked
        self._name, self._depth, self._interval_ms = asked.name, asked.depth, asked.interval
        self._book = OrderBook(asked.remove_crossed)
        self._bucket = Bucket(asked.interval) if asked.interval else None
        self._start, self._end = b"~", b""
        self._short_ms = asked.interval if 0 < asked.interval <= 1000 and 1000 % asked.interval == 0 else 0
        self._is_ahead = False
        self._grouping_told = _UNSET if asked.grouping is None else asked.grouping
        self._grouping = 0 if asked.grouping is None else asked.grouping
        self._scale = 0 if asked.grouping is None else 10.0 ** decimal_places(asked.grouping)
        self._has_changed, self._is_due_at_once = False, True
        self._top = <Level *> malloc(self._depth * sizeof(Level) + 1)
        if self._top == NULL:
            raise MemoryError
        self._bids = _levels_of(self._top, 0, self._depth, 1, None)
        self._asks = _levels_of(self._top, 0, self._depth, -1, None)
        self._watch()

    def __dealloc__(self):
        free(self._top)

    def update(self, message, list out not None):
        """See `book_snapshot.Sampler.update`."""
        cdef Side *bids = &self._book.book.bids
        cdef Side *asks = &self._book.book.asks
        cdef bint differs
        timestamp = get_field(message, _TIMESTAMP) if type(message) is _BookChange else message.timestamp
        if self._bucket is not None and not self._holds(timestamp):
            ended = self._move(timestamp)
            if ended is not None and self._has_changed:
                self._tell(message, ended, out)
        self._book.take(message)
        if not self._has_changed and (bids.is_touched or asks.is_touched):
            if not self._is_due_at_once:
                self._has_changed = self._differs(bids, self._bids, 1) or self._differs(asks, self._asks, -1)
            elif self._differs(bids, self._bids, 1) or self._differs(asks, self._asks, -1):
                self._tell(message, timestamp, out)
                self._is_due_at_once = self._bucket is None
            if not self._has_changed:
                bids.is_touched = asks.is_touched = False

    cdef bint _holds(self, timestamp) except -1:
        """See `Bucket.holds`; False also for text that is not usual."""
        cdef const char *text
        if not PyUnicode_CheckExact(timestamp) or not PyUnicode_IS_COMPACT_ASCII(timestamp):
            return False
        if PyUnicode_GET_LENGTH(timestamp) < _CLOCK or PyBytes_GET_SIZE(self._end) != _CLOCK:
            return False
        text = <const char *> PyUnicode_DATA(timestamp)
        return (
            memcmp(PyBytes_AS_STRING(self._start), text, _CLOCK) <= 0 and memcmp(text, PyBytes_AS_STRING(self._end), _CLOCK) < 0
        )

    cdef object _move(self, timestamp):
        """See `Bucket.move`."""
        cdef bytes began = self._start, ended = self._end
        cdef int millisecond, start_ms
        cdef char *end
        if self._is_of_second(timestamp):
            # Most are: then the calendar need not be asked.
            millisecond = _millisecond_of(<const char *> PyUnicode_DATA(timestamp))
            start_ms = millisecond - millisecond % self._short_ms
            if start_ms >= _millisecond_of(PyBytes_AS_STRING(ended)) and start_ms + self._short_ms < 1000:
                self._start, self._end = began[:20] + b"%03d" % start_ms, began[:20] + b"%03d" % (start_ms + self._short_ms)
                self._is_ahead = True
                return (ended + b"Z").decode()
        if self._is_ahead:
            # The bucket has stayed behind.
            self._bucket.move((began + b"Z").decode())
            self._is_ahead = False
        if self._bucket.holds(timestamp):
            return None
        told = self._bucket.move(timestamp)
        start, finish = self._bucket.bounds
        self._start, self._end = start.encode(), finish.encode()
        return told

    cdef bint _is_of_second(self, timestamp) except -1:
        """Whether a time is in the second in which the bucket begins and ends, and intervals are parts of seconds."""
        cdef const char *text
        if not self._short_ms or not PyUnicode_CheckExact(timestamp) or not PyUnicode_IS_COMPACT_ASCII(timestamp):
            return False
        # Three or six digits of a second.
        if PyUnicode_GET_LENGTH(timestamp) not in (_CLOCK + 1, _CLOCK + 4) or PyBytes_GET_SIZE(self._end) != _CLOCK:
            return False
        text = <const char *> PyUnicode_DATA(timestamp)
        return (
            memcmp(text, PyBytes_AS_STRING(self._start), 20) == 0
            and memcmp(text, PyBytes_AS_STRING(self._end), 20) == 0
            and _millisecond_of(text) >= 0
        )

    cdef bint _differs(self, const Side *side, Levels told, double sign) except -1:
        if not side.is_touched:
            return False
        self._look(side, sign)
        return not told.holds(self._top, self._count)

    cdef int _look(self, const Side *side, double sign) except -1:
        """Puts the top of a side into `_top`."""
        cdef Py_ssize_t place
        if self._grouping:
            return self._group(side, sign)
        self._count = min(self._depth, side.count)
        for place in range(self._count):
            self._top[place] = side.levels[side.count - 1 - place]
        return 0

    cdef int _group(self, const Side *side, double sign) except -1:
        """See `book_snapshot._GroupedTop`."""
        cdef double step = 0, next_step, amount = 0, more
        cdef bint is_begun = False
        cdef Py_ssize_t place
        self._count = 0
        for place in range(side.count - 1, -1, -1):
            if self._count == self._depth:
                return 0
            next_step = self._step_of(sign * double_of(side.levels[place].key), sign)
            if not is_begun or next_step != step:
                if is_begun:
                    self._top[self._count] = Level(whole_of(sign * step), whole_of(amount))
                    self._count += 1
                is_begun, step, amount = True, next_step, 0
            more = double_of(side.levels[place].amount)
            # One that is null or absent is none.
            if not is_missing(more):
                amount += more
        if is_begun and amount > 0 and self._count < self._depth:
            self._top[self._count] = Level(whole_of(sign * step), whole_of(amount))
            self._count += 1
        return 0

    cdef double _step_of(self, double price, double sign) noexcept:
        cdef double scaled = product_of(price, self._scale), step = product_of(self._grouping, self._scale)
        cdef double rest = fmod(scaled, step) / self._scale
        scaled = scaled - product_of(rest, self._scale)
        if sign < 0 and rest > 0:
            scaled = scaled + step
        return scaled / self._scale

    cdef int _tell(self, message, timestamp, list out) except -1:
        """Appends a snapshot of the book as it is; a side that was not touched is as it was told last."""
        cdef Side *bids = &self._book.book.bids
        cdef Side *asks = &self._book.book.asks
        if bids.is_touched:
            self._look(bids, 1)
            if not self._bids.holds(self._top, self._count):
                self._bids = _levels_of(self._top, self._count, self._depth, 1, self._bids)
        if asks.is_touched:
            self._look(asks, -1)
            if not self._asks.holds(self._top, self._count):
                self._asks = _levels_of(self._top, self._count, self._depth, -1, self._asks)
        self._has_changed = False
        self._watch()
        if type(message) is _BookChange:
            symbol, exchange = get_field(message, _SYMBOL), get_field(message, _EXCHANGE)
            local_timestamp = get_field(message, _LOCAL_TIMESTAMP)
        else:
            symbol, exchange, local_timestamp = message.symbol, message.exchange, message.local_timestamp
        out.append(
            _BookSnapshot(
                symbol,
                exchange,
                self._name,
                self._depth,
                self._interval_ms,
                self._grouping_told,
                self._bids,
                self._asks,
                timestamp,
                local_timestamp,
            )
        )
        return 0

    cdef int _watch(self) except -1:
        """See `book_snapshot._Top.watch`."""
        self._book.book.bids.floor = self._floor(self._bids, 1)
        self._book.book.asks.floor = self._floor(self._asks, -1)
        self._book.book.bids.is_touched = self._book.book.asks.is_touched = False
        return 0

    cdef Whole _floor(self, Levels told, double sign) noexcept:
        """The worst key that shows; with a grouping one step more, as steps are rounded."""
        if told._depth == 0:
            return whole_of(INFINITY)
        if told._count < told._depth:
            return whole_of(-INFINITY)
        return whole_of(double_of(told._levels[told._count - 1].key) - self._grouping)

    def __reduce__(self):
        of_time = self._bucket, self._start, self._end, self._is_ahead
        state = self._book, of_time, self._has_changed, self._is_due_at_once
        return Sampler, (self._asked,), (state, self._bids.state(), self._asks.state())

    def __setstate__(self, state):
        of_book, bids, asks = state
        self._book, of_time, self._has_changed, self._is_due_at_once = of_book
        self._bucket, self._start, self._end, self._is_ahead = of_time
        self._bids, self._asks = _levels_of_state(bids, self._depth, 1), _levels_of_state(asks, self._depth, -1)
        self._watch()
        # It is looked at with the next change.
        self._book.book.bids.is_touched = self._book.book.asks.is_touched = True


Computation.register(Sampler)


def begin_snapshots(asked):
    """See `book_snapshot.begin_snapshots`."""
    return Sampler(asked)
