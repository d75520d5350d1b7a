"""The top of the order book at intervals, or whenever it changes: `book_snapshot_…` and `quote…`.

Invariant: a snapshot is due if and only if some change left the top of the book other than it found it; one that another change
undid counts. The top is looked at only until that is known, and again when the snapshot is due.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat
from math import floor, fmod, inf, isfinite, nan
from operator import ne
from typing import Any, ClassVar

from ..messages import UNSET, BookChange, BookLevel, BookSnapshot, Message, js_number
from .bucket import Bucket
from .contract import Computable, Computation
from .order_book import OrderBook
from .quantity import parse_quantity, to_text

__all__ = ["BookSnapshots", "Sampler", "begin_snapshots", "decimal_places"]

_INTERVAL = r"_(?P<interval>[^_]+?)(?P<unit>ms|s|m)"
_QUOTE = re.compile("quote" + _INTERVAL)
_BOOK_SNAPSHOT = re.compile(r"book_snapshot_(?P<depth>[^_]+)(?:_grouped(?P<grouping>[^_]+))?" + _INTERVAL)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000}
_EMPTY = BookLevel(UNSET, UNSET)
_DEEPEST = 10_000  # a snapshot holds that many levels, however few the book has
_CACHED_STEPS = 100_000  # prices recur
_GROUPED_WEIGHT = 200  # what grouping a book of some thousand levels takes, compared with sending one level


@dataclass(frozen=True)
class BookSnapshots(Computable):
    """The best `depth` levels of both sides: after each change that shows in them (`interval` 0), or once an interval with one.

    With a `grouping`, levels are merged into steps of that size, bids downwards and asks upwards.

    >>> BookSnapshots.parse("book_snapshot_5_grouped10_1s")
    BookSnapshots(depth=5, interval=1000, grouping=10, name='book_snapshot_5_grouped10_1s', remove_crossed=True)
    >>> BookSnapshots(2, 100).name
    'book_snapshot_2_100ms'
    """

    depth: int
    interval: int
    grouping: float | None = None
    name: str = ""
    remove_crossed: bool = True

    SOURCE: ClassVar[type[Message]] = BookChange
    RESULT: ClassVar[type[Message]] = BookSnapshot
    FORMS: ClassVar[tuple[str, ...]] = ("book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}", "quote", "quote_{n}{ms|s|m}")

    def __post_init__(self) -> None:
        if not self.name:
            grouped = "" if self.grouping is None else f"_grouped{to_text(self.grouping)}"
            object.__setattr__(self, "name", f"book_snapshot_{self.depth}{grouped}_{to_text(self.interval)}ms")

    @classmethod
    def parse(cls, data_type: str) -> BookSnapshots | None:
        """The one asked for by that name."""
        if data_type == "quote":
            return cls(1, 0, name=data_type)
        if not data_type.startswith(("book_snapshot_", "quote_")):
            return None
        match = _BOOK_SNAPSHOT.fullmatch(data_type) or _QUOTE.fullmatch(data_type)
        if match is None:
            raise ValueError(f"'{data_type}' has no interval")
        asked = match.groupdict()
        depth = parse_quantity(asked.get("depth", "1"))
        interval = parse_quantity(asked["interval"], _UNIT_MS[asked["unit"]])
        grouping = None if asked.get("grouping") is None else parse_quantity(asked["grouping"])
        if not (isinstance(depth, int) and 0 <= depth <= _DEEPEST and isinstance(interval, int) and interval >= 0):
            raise ValueError(f"there are no snapshots of depth {depth} and interval {interval}")
        if grouping is not None and grouping <= 0:
            raise ValueError(f"levels can't be grouped by {grouping}")
        return cls(depth, interval, grouping, data_type)

    @property
    def weight(self) -> int:
        """Its levels; a step of a grouped book is the sum of any number of them."""
        return self.depth if self.grouping is None else self.depth + _GROUPED_WEIGHT

    def begin(self) -> Computation:
        """A book that waits for its first snapshot."""
        return begin_snapshots(self)


Levels = list[BookLevel]


class _Top:
    """The best levels of a book, filled up with empty ones."""

    __slots__ = ("depth",)

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def bids(self, book: OrderBook) -> Levels:
        """The highest bids."""
        return self._filled(book.top_bids(self.depth))

    def asks(self, book: OrderBook) -> Levels:
        """The lowest asks."""
        return self._filled(book.top_asks(self.depth))

    def differs(self, book: OrderBook, bids: Levels, asks: Levels) -> bool:
        """Whether the book's top is not these any more."""
        return (book.bids_touched and self.bids(book) != bids) or (book.asks_touched and self.asks(book) != asks)

    def watch(self, book: OrderBook, bids: Levels, asks: Levels) -> None:
        """Has the book tell of every change that could show in its top, which is these."""
        self._watch(book, bids, asks, 0)

    def _filled(self, levels: Levels) -> Levels:
        missing = self.depth - len(levels)
        return levels + [_EMPTY] * missing if missing else levels

    def _watch(self, book: OrderBook, bids: Levels, asks: Levels, margin: float) -> None:
        lowest_bid: Any = bids[-1].price if bids else inf
        highest_ask: Any = asks[-1].price if asks else -inf
        book.watch(
            -inf if lowest_bid is UNSET else lowest_bid - margin,
            inf if highest_ask is UNSET else highest_ask + margin,
        )


class _GroupedTop(_Top):
    """The best steps of a book, each the sum of its levels."""

    __slots__ = ("grouping", "scale")

    def __init__(self, depth: int, grouping: float) -> None:
        super().__init__(depth)
        self.grouping = grouping
        self.scale = 10.0 ** decimal_places(grouping)

    def bids(self, book: OrderBook) -> Levels:
        """The highest steps."""
        return list(islice(self._steps(book.bids(), _step_below), self.depth))

    def asks(self, book: OrderBook) -> Levels:
        """The lowest steps."""
        return list(islice(self._steps(book.asks(), _step_above), self.depth))

    def differs(self, book: OrderBook, bids: Levels, asks: Levels) -> bool:
        """Whether the book's top is not these any more; adds up no more steps than it takes to tell."""
        return (book.bids_touched and any(map(ne, bids, self._steps(book.bids(), _step_below)))) or (
            book.asks_touched and any(map(ne, asks, self._steps(book.asks(), _step_above)))
        )

    def watch(self, book: OrderBook, bids: Levels, asks: Levels) -> None:
        """Has the book tell of every change that could show; one step more than it needs, as steps are rounded."""
        self._watch(book, bids, asks, self.grouping)

    def _steps(self, levels: Iterable[BookLevel], step_of: Callable[[float, float, float], float]) -> Iterator[BookLevel]:
        grouping, scale = self.grouping, self.scale
        step: float | None = None
        amount = 0.0
        for level in levels:
            next_step = step_of(level.price, grouping, scale)  # type: ignore[arg-type]
            if next_step != step:
                if step is not None:
                    yield BookLevel(js_number(step), js_number(amount))
                step, amount = next_step, 0.0
            amount += level.amount if isinstance(level.amount, int | float) else 0
        if step is not None and amount > 0:
            yield BookLevel(js_number(step), js_number(amount))
        yield from repeat(_EMPTY)


def _rest(scaled: float, step: float) -> float:
    # Of an infinite price, which Python refuses to divide.
    return fmod(scaled, step) if isfinite(scaled) else nan


@lru_cache(_CACHED_STEPS)
def _step_below(price: float, grouping: float, scale: float) -> float:
    scaled = price * scale
    rest = _rest(scaled, grouping * scale) / scale
    return (scaled - rest * scale) / scale


@lru_cache(_CACHED_STEPS)
def _step_above(price: float, grouping: float, scale: float) -> float:
    scaled, step = price * scale, grouping * scale
    rest = _rest(scaled, step) / scale
    return (scaled - rest * scale + (step if rest > 0 else 0)) / scale


def decimal_places(number: float) -> int:
    """How many decimal places a number has, as far as 1e-10 can be told from 0."""
    places = 0
    while places <= _MOST_PLACES:
        scaled = number * 10.0**places
        if not abs(floor(scaled + 0.5) - scaled) > 1e-10:
            break
        places += 1
    return places


_MOST_PLACES = 308  # 10.0**309 is no double


class Sampler(Computation):
    """One instrument's book, and what was last told of it."""

    __slots__ = ("_asked", "_asks", "_bids", "_book", "_bucket", "_has_changed", "_is_due_at_once", "_top")

    def __init__(self, asked: BookSnapshots) -> None:
        self._asked = asked
        self._book = OrderBook(asked.remove_crossed)
        self._bucket = Bucket(asked.interval) if asked.interval else None
        self._top = _Top(asked.depth) if asked.grouping is None else _GroupedTop(asked.depth, asked.grouping)
        # What was told last; and whether the book has differed from it since.
        self._bids = self._asks = [_EMPTY] * asked.depth
        self._has_changed = False
        # Also where there is an interval, the first change does not wait for its end.
        self._is_due_at_once = True
        self._top.watch(self._book, self._bids, self._asks)

    def update(self, message: BookChange, out: list[Message]) -> None:
        """Tells what the ended interval left, then takes the change."""
        timestamp = message.timestamp
        book, bucket = self._book, self._bucket
        if bucket is not None and not bucket.holds(timestamp):
            ended = bucket.move(timestamp)
            if ended is not None and self._has_changed:
                out.append(self._snapshot(*self._levels(), message, ended))
        book.update(message)
        if not self._has_changed and (book.bids_touched or book.asks_touched):
            if not self._is_due_at_once:
                self._has_changed = self._top.differs(book, self._bids, self._asks)
            else:
                bids, asks = self._levels()
                if bids != self._bids or asks != self._asks:
                    out.append(self._snapshot(bids, asks, message, timestamp))
                    self._is_due_at_once = bucket is None
            if not self._has_changed:
                book.bids_touched = book.asks_touched = False

    def _levels(self) -> tuple[Levels, Levels]:
        """The top of the book as it is; a side that was not touched is as it was told last."""
        top, book = self._top, self._book
        return top.bids(book) if book.bids_touched else self._bids, top.asks(book) if book.asks_touched else self._asks

    def _snapshot(self, bids: Levels, asks: Levels, message: BookChange, timestamp: str | None) -> BookSnapshot:
        self._bids, self._asks, self._has_changed = bids, asks, False
        self._top.watch(self._book, bids, asks)
        asked = self._asked
        return BookSnapshot(
            message.symbol,
            message.exchange,
            asked.name,
            asked.depth,
            asked.interval,
            UNSET if asked.grouping is None else asked.grouping,
            bids,
            asks,
            timestamp,
            message.local_timestamp,
        )


def begin_snapshots(asked: BookSnapshots) -> Computation:
    """A book that waits for its first snapshot."""
    return Sampler(asked)


# Where it was compiled, this is done there.
with suppress(ImportError):
    from .book_snapshot_compiled import *  # noqa: F403
