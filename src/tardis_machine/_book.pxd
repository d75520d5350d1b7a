# The order book in C, which all books that are compiled share: two sides of levels, each sorted, the best one last.
#
# Prices and amounts are whole numbers of 128 bits: as they are, where a book counts in units of the last digit; or doubles, as the whole
# numbers that order as they do. A level's key grows towards the best price, so asks have their prices negated. An amount of 0 is none.

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

cdef extern from *:
    # Cython needs to know no more of it than that it is a whole number.
    ctypedef long long Whole "__int128_t"


cdef struct Level:
    Whole key
    Whole amount


cdef struct Side:
    Level *levels
    Py_ssize_t count
    Py_ssize_t room
    # The worst key at which a change matters to whoever watches the book, and whether one may have changed there.
    Whole floor
    bint is_touched


cdef struct Book:
    Side bids
    Side asks
    # Changes before the first snapshot are ignored.
    bint is_known


cdef inline Whole whole_of(double value) noexcept:
    """The whole number that stands for a double: of -x it is the negative of that of x, and 0 of both zeros."""
    cdef int64_t bits
    memcpy(&bits, &value, sizeof(double))
    return <Whole> bits if bits >= 0 else -<Whole> (bits & 0x7FFF_FFFF_FFFF_FFFF)


cdef inline double double_of(Whole whole) noexcept:
    """The opposite."""
    cdef int64_t bits = <int64_t> (whole if whole >= 0 else -whole)
    cdef double value
    memcpy(&value, &bits, sizeof(double))
    return value if whole >= 0 else -value


cdef inline Whole least_whole() noexcept:
    """Below every key: doubles and decimals have fewer digits."""
    return -(<Whole> 1 << 126)


cdef inline void begin_book(Book *book) noexcept:
    """An empty one, of which every change matters."""
    book.bids = Side(NULL, 0, 0, least_whole(), False)
    book.asks = book.bids
    book.is_known = False


cdef inline void free_book(Book *book) noexcept:
    free(book.bids.levels)
    free(book.asks.levels)


cdef inline int _make_room(Side *side) except -1:
    cdef Py_ssize_t room = 2 * side.room + 32
    cdef Level *levels = <Level *> realloc(side.levels, room * sizeof(Level))
    if levels == NULL:
        raise MemoryError
    side.levels, side.room = levels, room
    return 0


cdef inline Py_ssize_t _place_of(const Side *side, Whole key) noexcept:
    """The first level that is not worse than a key: looked for from the best one on, where nearly all changes are."""
    cdef Py_ssize_t high = side.count, low = high - 1, step = 1, middle
    cdef const Level *levels = side.levels
    while low >= 0 and levels[low].key >= key:
        high = low
        low = high - step
        step *= 2
    if low < 0:
        low = -1
    while high - low > 1:
        middle = (low + high) >> 1
        if levels[middle].key >= key:
            high = middle
        else:
            low = middle
    return high


cdef inline int take_level(Side *side, Whole key, Whole amount) except -1:
    """A changed level."""
    cdef Py_ssize_t place = _place_of(side, key)
    cdef bint is_there = place < side.count and side.levels[place].key == key
    if amount != 0:
        if not is_there:
            if side.count == side.room:
                _make_room(side)
            memmove(side.levels + place + 1, side.levels + place, (side.count - place) * sizeof(Level))
            side.count += 1
        side.levels[place] = Level(key, amount)
    elif is_there:
        side.count -= 1
        memmove(side.levels + place, side.levels + place + 1, (side.count - place) * sizeof(Level))
    else:
        return 0
    if key >= side.floor:
        side.is_touched = True
    return 0


cdef inline int add_level(Side *side, Whole key, Whole amount) except -1:
    """A level of a snapshot, in any order; `settle_levels` has to follow."""
    if side.count == side.room:
        _make_room(side)
    side.levels[side.count] = Level(key, amount)
    side.count += 1
    return 0


cdef inline void forget_levels(Side *side) noexcept:
    """The beginning of a snapshot."""
    side.count = 0
    side.is_touched = True


cdef inline int settle_levels(Side *side) except -1:
    """The end of a snapshot: levels are sorted, of those of one price the last one counts, and those without amount are gone."""
    cdef Py_ssize_t place, first, count = side.count, kept = 0
    cdef Level *levels = side.levels
    for place in range(1, count):
        if levels[place].key > levels[place - 1].key:
            break
    else:
        # The best one first, as most are. Of those of one price, the last one still has to be the last one.
        _reverse(levels, count)
        first = 0
        for place in range(1, count + 1):
            if place == count or levels[place].key != levels[first].key:
                _reverse(levels + first, place - first)
                first = place
    _sort(levels, count)
    for place in range(count):
        if place + 1 < count and levels[place + 1].key == levels[place].key:
            continue
        if levels[place].amount != 0:
            levels[kept] = levels[place]
            kept += 1
    side.count = kept
    return 0


cdef inline void _reverse(Level *levels, Py_ssize_t count) noexcept:
    cdef Py_ssize_t place
    cdef Level level
    for place in range(count // 2):
        level = levels[place]
        levels[place] = levels[count - 1 - place]
        levels[count - 1 - place] = level


cdef inline int _sort(Level *levels, Py_ssize_t count) except -1:
    """By key, those of one key in their order."""
    cdef Py_ssize_t place, first, middle, end, left, right, width = 1
    cdef Level *source = levels
    cdef Level *target
    cdef Level *other
    for place in range(1, count):
        if levels[place].key < levels[place - 1].key:
            break
    else:
        return 0
    other = <Level *> malloc(count * sizeof(Level))
    if other == NULL:
        raise MemoryError
    target = other
    while width < count:
        first = 0
        while first < count:
            middle = min(first + width, count)
            end = min(middle + width, count)
            left, right = first, middle
            for place in range(first, end):
                if left < middle and (right == end or source[left].key <= source[right].key):
                    target[place] = source[left]
                    left += 1
                else:
                    target[place] = source[right]
                    right += 1
            first = end
        source, target = target, source
        width *= 2
    if source != levels:
        memcpy(levels, source, count * sizeof(Level))
    free(other)
    return 0


cdef inline bint is_crossed(const Book *book) noexcept:
    """Whether the best bid reaches the best ask."""
    cdef const Side *bids = &book.bids
    cdef const Side *asks = &book.asks
    return bids.count > 0 and asks.count > 0 and bids.levels[bids.count - 1].key >= -asks.levels[asks.count - 1].key


cdef inline Side *remove_crossed(Book *book, bint ask_is_new) noexcept:
    """Drops one level of a crossed book: the best one of the side that the last change did not set, which is answered."""
    cdef Side *stale = &book.bids if ask_is_new else &book.asks
    stale.count -= 1
    book.bids.is_touched = book.asks.is_touched = True
    return stale
