# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""`rebuilding` compiled: from Arrow's columns to Arrow's columns without an object a row or a level.

What is asked once in a while (which of several recorders is followed) is asked of the functions that the definition asks.
"""

from itertools import pairwise

import numpy as np
import pyarrow as pa

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from tardis_machine._book cimport (
    Book,
    Level,
    Side,
    Whole,
    add_level,
    begin_book,
    forget_levels,
    free_book,
    is_crossed,
    remove_crossed,
    settle_levels,
    take_level,
)

from .rebuilding import _FLUSH_ROWS, _MOST_UNITS, BOOKS, DISCONNECT, KNOWN, REBUILT, SECONDS, TOP, Sampling, starts_of_places
from .recorders import choose, forget_silent
from .windows import HOUR_US, SECOND_US

__all__ = ["rebuild"]

cdef:
    int _KNOWN = KNOWN
    int _DISCONNECT = DISCONNECT
    int64_t _SECOND_US = SECOND_US
    Py_ssize_t _FLUSH = _FLUSH_ROWS
    object _choose = choose
    object _forget_silent = forget_silent
    object _LEVELS = REBUILT.field("bids").type
    object _DECIMAL = REBUILT.field("order_flow").type
    list _PRODUCTS = [TOP, SECONDS, BOOKS]

cdef enum:
    TOP_ROW = 0, SECONDS_ROW = 1, BOOKS_ROW = 2
    NONE = -1

# A row that comes out, but for its levels and its order flow.
cdef packed struct Row:
    int32_t product, place, recorder
    uint8_t has_event, has_crossed, has_since, has_sequence, has_gap, is_gap, has_flow, has_levels
    int32_t bids, asks
    int64_t start_us, local_us, event_us, crossed, since_us, sequence

_ROW = np.dtype(
    [
        *((name, "<i4") for name in ("product", "place", "recorder")),
        *((f"has_{name}", "?") for name in ("event", "crossed", "since", "sequence", "gap")),
        *((name, "?") for name in ("is_gap", "has_flow", "has_levels")),
        *((name, "<i4") for name in ("bids", "asks")),
        *((name, "<i8") for name in ("start_us", "local_us", "event_us", "crossed", "since_us", "sequence")),
    ]
)

cdef struct Top:
    bint has_bid, has_ask
    Level bid, ask


cdef inline Top _no_top() noexcept:
    return Top(False, False, Level(0, 0), Level(0, 0))


cdef inline bint _is_same_top(const Top *one, const Top *other) noexcept:
    return (
        one.has_bid == other.has_bid
        and one.has_ask == other.has_ask
        and (not one.has_bid or (one.bid.key == other.bid.key and one.bid.amount == other.bid.amount))
        and (not one.has_ask or (one.ask.key == other.ask.key and one.ask.amount == other.ask.amount))
    )


cdef class _Bytes:
    """Bytes that grow."""

    cdef char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        free(self.data)

    cdef int add(self, const void *given, Py_ssize_t size) except -1:
        cdef char *larger
        if self.size + size > self.room:
            self.room = 2 * (self.size + size)
            larger = <char *> realloc(self.data, self.room)
            if larger == NULL:
                raise MemoryError
            self.data = larger
        memcpy(self.data + self.size, given, size)
        self.size += size
        return 0

    cdef bytes take(self):
        """All of them; then there are none."""
        cdef bytes taken = PyBytes_FromStringAndSize(self.data, self.size)
        self.size = 0
        return taken


cdef class Recorder:
    """See `recorders.Recorder`."""

    cdef Book _book
    cdef bint _has_book
    cdef readonly object name
    cdef readonly int64_t since_us
    cdef readonly int64_t heard_us
    cdef readonly bint has_gap
    cdef int32_t _number
    cdef int64_t _event_us
    cdef bint _has_event
    cdef int64_t _sequence
    cdef bint _has_sequence
    cdef int64_t _snapshot_left
    cdef int64_t _crossed

    def __cinit__(self, name):
        begin_book(&self._book)
        self.name = name
        self._number = NONE
        self.since_us = self.heard_us = -(<int64_t> 1 << 62)

    def __dealloc__(self):
        free_book(&self._book)

    @property
    def book(self):
        """None: there is none before a snapshot, and after a lost connection."""
        return True if self._has_book else None

    cdef Top top(self) noexcept:
        cdef Top top = _no_top()
        cdef Side *bids = &self._book.bids
        cdef Side *asks = &self._book.asks
        top.has_bid, top.has_ask = self._has_book and bids.count > 0, self._has_book and asks.count > 0
        if top.has_bid:
            top.bid = bids.levels[bids.count - 1]
        if top.has_ask:
            top.ask = asks.levels[asks.count - 1]
        return top


cdef class _Levels:
    """The levels of one side of all rows of a batch."""

    cdef object _held
    cdef const Whole *_prices
    cdef const Whole *_amounts
    cdef const uint8_t[::1] _are_known
    cdef const int64_t[::1] _ends
    cdef bint _are_all_known

    def __cinit__(self, column):
        prices, amounts = column.flatten().flatten()
        self._held = prices, amounts
        self._ends = np.concatenate([[0], np.cumsum(column.value_lengths().fill_null(0))]).astype(np.int64)
        self._are_all_known = not (prices.null_count or amounts.null_count)
        known = np.logical_and(prices.is_valid(), amounts.is_valid()) if not self._are_all_known else np.zeros(0, "?")
        self._are_known = np.ascontiguousarray(known).view(np.uint8)
        self._prices, self._amounts = _numbers(prices), _numbers(amounts)

    cdef int apply(self, Py_ssize_t row, Side *side, bint is_bid, bint is_snapshot) except -1:
        cdef Py_ssize_t place
        cdef Whole price, amount
        if is_snapshot:
            forget_levels(side)
        for place in range(self._ends[row], self._ends[row + 1]):
            if not self._are_all_known and not self._are_known[place]:
                continue
            # Columns are not always where such numbers have to be.
            memcpy(&price, self._prices + place, sizeof(Whole))
            memcpy(&amount, self._amounts + place, sizeof(Whole))
            if is_snapshot:
                add_level(side, price if is_bid else -price, amount)
            else:
                take_level(side, price if is_bid else -price, amount)
        if is_snapshot:
            settle_levels(side)
        return 0

    cdef bint has_price(self, Py_ssize_t row, Whole wanted) noexcept:
        cdef Py_ssize_t place
        cdef Whole price
        for place in range(self._ends[row], self._ends[row + 1]):
            memcpy(&price, self._prices + place, sizeof(Whole))
            if price == wanted and (self._are_all_known or self._are_known[place]):
                return True
        return False


cdef const Whole *_numbers(column) except? NULL:
    cdef size_t address
    if not len(column):
        return NULL
    address = column.buffers()[1].address
    return <const Whole *> address + <Py_ssize_t> column.offset


cdef class _Integers:
    """A column of whole numbers, some of which may be null."""

    cdef const int64_t[::1] values
    cdef const uint8_t[::1] are_known

    def __cinit__(self, column):
        self.values = np.ascontiguousarray(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
        self.are_known = np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)


cdef class _Input:
    """A batch of rows."""

    cdef _Levels bids
    cdef _Levels asks
    cdef _Integers kinds
    cdef _Integers local_us
    cdef _Integers event_us
    cdef _Integers level_counts
    cdef _Integers numbers
    cdef _Integers since_us
    cdef _Integers have_gaps
    cdef _Integers are_snapshots
    cdef _Integers recorders
    cdef list recorder_names

    def __cinit__(self, batch):
        recorders = batch["recorder"].dictionary_encode()
        self.recorder_names = recorders.dictionary.to_pylist()
        self.recorders = _Integers(recorders.indices)
        self.bids, self.asks = _Levels(batch["bids"]), _Levels(batch["asks"])
        self.kinds, self.local_us, self.event_us = _Integers(batch["kind"]), _Integers(batch["local_us"]), _Integers(batch["event_us"])
        self.level_counts, self.numbers = _Integers(batch["level_count"]), _Integers(batch["number"])
        self.since_us, self.have_gaps = _Integers(batch["since_us"]), _Integers(batch["has_gap"])
        self.are_snapshots = _Integers(batch["is_snapshot"])


cdef class _Output:
    """Rows that come out."""

    cdef Py_ssize_t count
    cdef list products
    # Exchange and symbol, and names of recorders, by number.
    cdef list places
    cdef list recorders
    cdef _Bytes rows
    cdef _Bytes flows
    # Of all rows one after the other: prices and amounts of bids, and of asks.
    cdef _Bytes bid_prices
    cdef _Bytes bid_amounts
    cdef _Bytes ask_prices
    cdef _Bytes ask_amounts

    def __cinit__(self, samplings):
        self.products = [*_PRODUCTS, *(sampling.product for sampling in samplings)]
        self.places, self.recorders = [], []
        self.rows, self.flows = _Bytes(), _Bytes()
        self.bid_prices, self.bid_amounts, self.ask_prices, self.ask_amounts = _Bytes(), _Bytes(), _Bytes(), _Bytes()

    cdef int add(self, Row *row, Whole flow) except -1:
        self.rows.add(row, sizeof(Row))
        self.flows.add(&flow, sizeof(Whole))
        self.count += 1
        return 0

    cdef int add_side(self, const Side *side, Py_ssize_t depth, bint is_bid) except -1:
        cdef Py_ssize_t place
        cdef Level level
        cdef _Bytes prices = self.bid_prices if is_bid else self.ask_prices
        cdef _Bytes amounts = self.bid_amounts if is_bid else self.ask_amounts
        for place in range(depth):
            level = side.levels[side.count - 1 - place]
            if not is_bid:
                level.key = -level.key
            prices.add(&level.key, sizeof(Whole))
            amounts.add(&level.amount, sizeof(Whole))
        return 0

    def to_batch(self):
        """All of them; then there are none."""
        rows = np.frombuffer(self.rows.take(), _ROW)
        places = rows["place"]
        exchanges, symbols = zip(*self.places, strict=True)
        instant = REBUILT.field("start").type

        def optional(name, has, kind):
            return pa.array(np.ascontiguousarray(rows[name]), mask=~rows[has]).cast(kind)

        arrays = {
            "product": pa.array(self.products, pa.string()).take(pa.array(rows["product"])),
            "exchange": pa.array(exchanges, pa.string()).take(pa.array(places)),
            "symbol": pa.array(symbols, pa.string()).take(pa.array(places)),
            "start": pa.array(rows["start_us"]).cast(instant),
            "local_ts": pa.array(rows["local_us"]).cast(instant),
            "event_ts": optional("event_us", "has_event", instant),
            "bids": _lists(rows["bids"], rows["has_levels"], self.bid_prices, self.bid_amounts),
            "asks": _lists(rows["asks"], rows["has_levels"], self.ask_prices, self.ask_amounts),
            "crossed_levels": optional("crossed", "has_crossed", pa.int64()),
            "order_flow": _decimals(self.flows, rows["has_flow"]),
            "recorder": pa.array(self.recorders, pa.string()).take(pa.array(rows["recorder"], mask=rows["recorder"] < 0)),
            "since": optional("since_us", "has_since", instant),
            "sequence": optional("sequence", "has_sequence", pa.int64()),
            "has_gap": optional("is_gap", "has_gap", pa.bool_()),
        }
        self.count = 0
        self.places, self.recorders = [self.places[len(self.places) - 1]], []
        return pa.RecordBatch.from_arrays([arrays[name] for name in REBUILT.names], schema=REBUILT)


def _decimals(_Bytes numbers, are_known):
    cdef bytes data = numbers.take()
    known = None if are_known is None else pa.array(np.ascontiguousarray(are_known)).buffers()[1]
    return pa.Array.from_buffers(_DECIMAL, len(data) // 16, [known, pa.py_buffer(data)])


def _lists(counts, are_known, _Bytes prices, _Bytes amounts):
    offsets = np.concatenate([[0], np.cumsum(counts)])
    items = pa.StructArray.from_arrays([_decimals(prices, None), _decimals(amounts, None)], fields=list(_LEVELS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=_LEVELS, mask=pa.array(~are_known))


cdef object _int_of(Whole whole):
    return int.from_bytes(PyBytes_FromStringAndSize(<char *> &whole, sizeof(Whole)), "little", signed=True)


cdef bint _find_flow(const Top *before, const Top *after, Whole *flow) except -1:
    """Whether there is one; see `rebuilding._order_flow`."""
    cdef Whole most = <Whole> 1 << 124
    cdef Whole parts[4]
    cdef int place
    cdef bytes given
    if not (before.has_bid and before.has_ask and after.has_bid and after.has_ask):
        return False
    # An ask's key is the price negated.
    parts[0] = after.bid.amount if after.bid.key >= before.bid.key else 0
    parts[1] = -before.bid.amount if after.bid.key <= before.bid.key else 0
    parts[2] = -after.ask.amount if after.ask.key >= before.ask.key else 0
    parts[3] = before.ask.amount if after.ask.key <= before.ask.key else 0
    flow[0] = 0
    for place in range(4):
        if not -most < parts[place] < most:
            break
        flow[0] += parts[place]
    else:
        # The sum of these is less than 128 bits hold, but may be more than the column does.
        most = 2 * most
        if -most < flow[0] < most:
            return True
    total = sum([_int_of(parts[place]) for place in range(4)])
    if abs(total) > _MOST_UNITS:
        return False
    given = total.to_bytes(16, "little", signed=True)
    memcpy(flow, PyBytes_AS_STRING(given), sizeof(Whole))
    return True


cdef class _Rebuilding:
    """See `rebuilding._Rebuilding`."""

    cdef _Output _out
    cdef int32_t _place
    cdef int64_t _emit_from_us
    cdef int64_t _until_us
    cdef bint _has_until
    cdef list _samplings
    cdef dict _recorders
    cdef Recorder _followed
    # The recorder of the last row: nearly always that of the next.
    cdef Recorder _last
    cdef int64_t _now_us
    cdef bint _is_begun
    cdef Top _top
    cdef int64_t _second_us
    # The earliest end of an interval that is under way; before it none has to be looked at.
    cdef int64_t _next_end_us

    def __cinit__(self, place, emit_from_us, until_us, samplings, _Output out):
        self._out = out
        out.places.append(place)
        self._emit_from_us = emit_from_us
        self._has_until = until_us is not None
        self._until_us = until_us or 0
        self._samplings = [
            (sampling.product == BOOKS, NONE if sampling.depth is None else sampling.depth, sampling.interval_us)
            for sampling in samplings
        ]
        self._recorders = {}
        self._second_us = -(<int64_t> 1 << 62)

    cdef Py_ssize_t take(self, _Input rows, Py_ssize_t row, Py_ssize_t end) except -1:
        """Rows from one on, until enough comes of them: where it stopped."""
        self._place = <int32_t> (len(self._out.places) - 1)
        self._last = None
        while row < end and self._out.count < _FLUSH:
            self._take(rows, row)
            row += 1
        return row

    cdef int _take(self, _Input rows, Py_ssize_t row) except -1:
        cdef int64_t at_us = rows.local_us.values[row], levels
        cdef bint is_snapshot = rows.are_snapshots.values[row]
        cdef Recorder recorder
        name = rows.recorder_names[rows.recorders.values[row]] if rows.recorders.are_known[row] else None
        if rows.kinds.values[row] == _KNOWN:
            self._take_known(rows, row, name, is_snapshot)
            return 0
        if not self._is_begun or at_us != self._now_us:
            self._settle(True, at_us)
            self._now_us, self._is_begun = at_us, True
        recorder = self._last
        if recorder is None or recorder.name is not name:
            recorder = self._last = self._recorder(name)
        if at_us != recorder.heard_us:
            recorder.heard_us = at_us
            recorder._snapshot_left = 0
        recorder._event_us, recorder._has_event = rows.event_us.values[row], rows.event_us.are_known[row]
        if rows.kinds.values[row] == _DISCONNECT:
            recorder._has_book = False
            return 0
        levels = rows.level_counts.values[row]
        if is_snapshot and levels:
            if recorder._snapshot_left:
                is_snapshot = False
                recorder._snapshot_left -= 1
            else:
                recorder._snapshot_left = levels - 1
        if rows.numbers.are_known[row]:
            if recorder._has_sequence and rows.numbers.values[row] > recorder._sequence + 1:
                recorder.has_gap = True
            recorder._sequence, recorder._has_sequence = rows.numbers.values[row], True
        if is_snapshot:
            recorder.since_us, recorder.has_gap = at_us, False
            recorder._has_book = True
        if recorder._has_book:
            _apply(rows, row, recorder, is_snapshot)
        return 0

    cdef int _take_known(self, _Input rows, Py_ssize_t row, name, bint is_snapshot) except -1:
        cdef Recorder recorder = Recorder(name)
        self._recorders[name] = recorder
        recorder.heard_us = rows.local_us.values[row]
        recorder._sequence, recorder._has_sequence = rows.numbers.values[row], rows.numbers.are_known[row]
        recorder.has_gap = rows.have_gaps.values[row]
        recorder.since_us = rows.since_us.values[row] if rows.since_us.are_known[row] else recorder.heard_us
        if is_snapshot:
            recorder._has_book = True
            _apply(rows, row, recorder, True)
        recorder._crossed = 0
        self._followed = _choose(self._recorders, recorder.heard_us)
        self._top = _top_of(self._followed)
        self._last = None
        return 0

    cdef Recorder _recorder(self, name):
        cdef Recorder found = self._recorders.get(name)
        if found is None:
            # A book of an earlier release is that of the first who is heard.
            found = self._recorders.pop(None, None) or Recorder(name)
            found.name = name
            self._recorders[name] = found
        return found

    cdef int end(self) except -1:
        self._place = <int32_t> (len(self._out.places) - 1)
        return self._settle(self._has_until, self._until_us)

    cdef int _settle(self, bint has_next, int64_t next_us) except -1:
        """See `rebuilding._Rebuilding._settle`."""
        cdef int64_t now_us = self._now_us, second_us, start_us, end_us
        cdef Recorder followed, recorder
        cdef Top top
        cdef Row row
        cdef Whole flow = 0
        cdef int32_t product
        if not self._is_begun:
            return 0
        if len(self._recorders) > 1:
            _forget_silent(self._recorders, now_us)
            self._last = None
            followed = _choose(self._recorders, now_us)
        else:
            followed = self._last if self._last is not None else _choose(self._recorders, now_us)
        top = _top_of(followed)
        if not _is_same_top(&top, &self._top):
            if now_us >= self._emit_from_us:
                row = self._row(TOP_ROW, now_us, followed)
                # Between books of two recorders nothing has flowed.
                row.has_flow = followed is self._followed and _find_flow(&self._top, &top, &flow)
                row.has_crossed, row.crossed = True, 0 if followed is None else followed._crossed
                self._add(&row, followed, 1, flow)
            self._top = top
        self._followed = followed
        second_us = _floor(now_us, _SECOND_US)
        if now_us >= self._emit_from_us and second_us != self._second_us:
            self._second_us = second_us
            row = self._row(SECONDS_ROW, second_us, followed)
            self._out.add(&row, 0)
        for recorder in self._recorders.values():
            # Of this instant only: what came before is told by another row, or was told by another pass.
            recorder._crossed = 0
        if has_next and next_us < self._next_end_us:
            return 0
        self._next_end_us = <int64_t> 1 << 62
        product = BOOKS_ROW
        for is_books, depth, interval_us in self._samplings:
            product += 1
            start_us = _floor(now_us, interval_us)
            end_us = start_us + <int64_t> interval_us
            if has_next and next_us < end_us:
                self._next_end_us = min(self._next_end_us, end_us)
                continue
            # The next instant begins another one.
            self._next_end_us = min(self._next_end_us, _floor(next_us, interval_us) + <int64_t> interval_us)
            if end_us <= self._emit_from_us:
                continue
            if is_books:
                for recorder in self._recorders.values():
                    if recorder.heard_us >= start_us:
                        row = self._row(BOOKS_ROW, start_us, recorder)
                        row.local_us = recorder.heard_us
                        row.recorder = self._number_of(recorder)
                        row.has_since, row.since_us = recorder._has_book, recorder.since_us
                        row.has_sequence, row.sequence = recorder._has_sequence, recorder._sequence
                        row.has_gap, row.is_gap = True, recorder.has_gap
                        self._add(&row, recorder, -1, 0)
            elif followed is not None and followed._has_book:
                row = self._row(product, start_us, followed)
                self._add(&row, followed, depth, 0)
        return 0

    cdef Row _row(self, int32_t product, int64_t start_us, Recorder recorder) noexcept:
        cdef Row row
        row.product, row.place, row.recorder = product, self._place, NONE
        row.has_crossed = row.has_since = row.has_sequence = row.has_gap = row.is_gap = row.has_flow = row.has_levels = False
        row.bids = row.asks = 0
        row.start_us, row.local_us = start_us, self._now_us
        row.has_event = recorder is not None and recorder._has_event
        row.event_us = 0 if recorder is None else recorder._event_us
        row.crossed = row.since_us = row.sequence = 0
        return row

    cdef int _add(self, Row *row, Recorder recorder, Py_ssize_t depth, Whole flow) except -1:
        """A row with levels: all of them where the depth is below 0. A top has levels even where there is no book."""
        cdef Side *bids
        cdef Side *asks
        if recorder is not None and recorder._has_book:
            bids, asks = &recorder._book.bids, &recorder._book.asks
            row.bids = <int32_t> (bids.count if depth < 0 else min(depth, bids.count))
            row.asks = <int32_t> (asks.count if depth < 0 else min(depth, asks.count))
            self._out.add_side(bids, row.bids, True)
            self._out.add_side(asks, row.asks, False)
            row.has_levels = True
        else:
            row.has_levels = row.product == TOP_ROW
        return self._out.add(row, flow)

    cdef int32_t _number_of(self, Recorder recorder) except -2:
        if recorder.name is None:
            return NONE
        self._out.recorders.append(recorder.name)
        return <int32_t> (len(self._out.recorders) - 1)


cdef inline int64_t _floor(int64_t instant_us, int64_t length_us) noexcept:
    cdef int64_t rest = instant_us % length_us
    return instant_us - (rest + length_us if rest < 0 else rest)


cdef Top _top_of(Recorder recorder) noexcept:
    return _no_top() if recorder is None else recorder.top()


cdef int _apply(_Input rows, Py_ssize_t row, Recorder recorder, bint is_snapshot) except -1:
    cdef Book *book = &recorder._book
    cdef bint ask_is_new
    rows.asks.apply(row, &book.asks, False, is_snapshot)
    rows.bids.apply(row, &book.bids, True, is_snapshot)
    if is_crossed(book):
        ask_is_new = rows.asks.has_price(row, -book.asks.levels[book.asks.count - 1].key)
        while is_crossed(book):
            remove_crossed(book, ask_is_new)
            recorder._crossed += 1
    return 0


def rebuild(samplings, batches):
    """See `rebuilding.rebuild`."""
    samplings = [*samplings, Sampling(BOOKS, None, HOUR_US)]
    cdef _Output out = _Output(samplings)
    cdef _Rebuilding current = None
    cdef _Input rows
    cdef Py_ssize_t row
    place = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = _Input(batch)
        for first, end in pairwise(starts_of_places(batch)):
            exchange, symbol, emit_from_us, until_us = (
                batch[name][first].as_py() for name in ("exchange", "symbol", "emit_from_us", "until_us")
            )
            if (exchange, symbol) != place:
                if current is not None:
                    current.end()
                place = exchange, symbol
                current = _Rebuilding(place, emit_from_us, until_us, samplings, out)
            row = first
            while row < end:
                row = current.take(rows, row, end)
                if out.count >= _FLUSH:
                    yield out.to_batch()
    if current is not None:
        current.end()
    if out.count:
        yield out.to_batch()
