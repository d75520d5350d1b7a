"""A book that is joined from two sources: a snapshot, which the recorder fetches over REST, and the updates that the venue sends.

Updates that come before the snapshot wait for it. Those that it does not hold are merged into it, and the result is emitted as one
snapshot; later updates are emitted one by one. A venue numbers its updates, and a snapshot has the number of the last that it holds.

Invariant: a book has one snapshot in each connection; a second one is ignored. What differs between venues is in `JoinRules`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..messages import BookChange, BookLevel
from ._mapper import Mapper
from ._parsing import levels, levels_as_sent, to_number
from ._remembered import Remembered

__all__ = ["MAX_WAITING", "JoinRules", "JoinedBookMapper", "goes_on", "links", "surrounds"]

MAX_WAITING = 2000
"""How many updates of a book wait for its snapshot, at most; the oldest are forgotten first."""


Overlap = Callable[[float, float, float, float], bool]
"""(first, last, previous, snapshot) to whether an update follows a snapshot without a gap.

`first` and `last` number the changes in the update, `previous` is the last change in the update before it (NaN where the venue does
not say), `snapshot` is the last change that the snapshot holds.
"""


def goes_on(first: float, last: float, previous: float, snapshot: float) -> bool:
    """The change after the snapshot's is in the update."""
    return first <= snapshot + 1 <= last


def surrounds(first: float, last: float, previous: float, snapshot: float) -> bool:
    """The snapshot's own change is in the update, or is the last of the update before it."""
    return first <= snapshot <= last or previous == snapshot


def links(first: float, last: float, previous: float, snapshot: float) -> bool:
    """The snapshot's own change is in the update, or between it and the update before it."""
    return previous <= snapshot <= last


@dataclass(frozen=True)
class JoinRules:
    """How a venue's updates fit its snapshot, and how they are merged into it. The defaults are those of most venues."""

    overlaps: Overlap = goes_on
    """Whether the first update that a snapshot does not hold follows it without a gap. If not, that is an error in real time."""
    holds_own_number: bool = True
    """Whether the snapshot holds the update that ends with the snapshot's own number."""
    empty_numbers: tuple[float, ...] = ()
    """Numbers of the snapshot of an empty book: any update follows that."""
    ignores_gaps: bool = False
    """Whether a gap after the snapshot is no error in real time either."""
    is_chain: bool = False
    """Whether each later update must name the change that the book is at; one that does not is an error, also in history."""
    moves_on: bool = False
    """Whether an update takes the book on to its own number, so that those which end before it are dropped; a chain does so too."""
    same_by_number: bool = False
    """Whether two levels are the same if their prices are equal as numbers; otherwise they must be the same text."""
    keeps_zero: bool = False
    """Whether merging an amount of 0 leaves the level in the snapshot, with amount 0; otherwise the level is taken out."""
    skips_zero_price: bool = False
    """Whether a level with price 0 is no level, but a placeholder, while updates are merged."""
    as_sent: bool = False
    """Whether prices and amounts are JSON numbers, and passed on as they are; otherwise they are text, or read as text is."""

    def merge(self, side: Iterable[Sequence[Any]], updates: Iterable[Iterable[Sequence[Any]]]) -> list[tuple[Any, Any]]:
        """One side of a snapshot with updates merged in: changed levels keep their place, new ones go to the end."""
        key = to_number if self.same_by_number else _as_sent
        merged = {key(level[0]): (level[0], level[1]) for level in side}
        for update in updates:
            for level in update:
                price, amount = level[0], level[1]
                if self.skips_zero_price and price in ("0", 0):
                    continue
                if not self.keeps_zero and (amount if self.as_sent else to_number(amount)) == 0:
                    merged.pop(key(price), None)
                else:
                    merged[key(price)] = (price, amount)
        return list(merged.values())

    def to_levels(self, pairs: Iterable[Sequence[Any]]) -> list[BookLevel]:
        """One side as messages hold it."""
        return levels_as_sent(pairs) if self.as_sent else levels(pairs)


def _as_sent(price: Any) -> Any:
    return price


Levels = Sequence[Sequence[Any]]
"""`[[price, amount, …], …]` as they were sent, of text or numbers."""


class _JoinedBook:
    """What is known of one book."""

    __slots__ = ("has_followed", "number", "waiting")

    def __init__(self) -> None:
        # First, last and previous number, bids and asks of updates from before the snapshot; None once it was seen.
        self.waiting: deque[tuple[Any, Any, Any, Levels, Levels]] | None = deque(maxlen=MAX_WAITING)
        # The snapshot's number, or the last update's where the book `moves_on`.
        self.number: float = 0
        # Whether an update has followed the snapshot.
        self.has_followed = False


class JoinedBookMapper(Mapper):
    """A mapper of joined books: a venue's `map` reads a message, and returns what `join_snapshot` or `join_update` make of it.

    Numbers are passed as they were sent, text or not, UNSET where they are absent.
    """

    rules: ClassVar[JoinRules]

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._books: Remembered[str, _JoinedBook] = Remembered()

    def join_snapshot(
        self, symbol: str, number: Any, bids: Levels, asks: Levels, timestamp: str | None, local_timestamp: str
    ) -> Sequence[BookChange]:
        """The first snapshot of a symbol, with the updates merged in that waited for it; nothing for a later one."""
        book = self._books.get(symbol)
        if book is None:
            book = self._books[symbol] = _JoinedBook()
        if book.waiting is None:
            return ()
        updates, book.waiting, book.number = book.waiting, None, to_number(number)
        news = [update for update in updates if self._is_news(book, update[0], update[1], update[2])]
        merged_bids = self.rules.to_levels(self.rules.merge(bids, [update[3] for update in news]))
        merged_asks = self.rules.to_levels(self.rules.merge(asks, [update[4] for update in news]))
        return (BookChange(symbol, self.exchange, True, merged_bids, merged_asks, timestamp, local_timestamp),)

    def join_update(
        self,
        symbol: str,
        first: Any,
        last: Any,
        previous: Any,
        bids: Levels,
        asks: Levels,
        timestamp: str | None,
        local_timestamp: str,
    ) -> Sequence[BookChange]:
        """What an update changes; nothing where it waits for the snapshot, or the snapshot holds it."""
        book = self._books.get(symbol)
        if book is None:
            book = self._books[symbol] = _JoinedBook()
        if book.waiting is not None:
            book.waiting.append((first, last, previous, bids, asks))
        elif self._is_news(book, first, last, previous):
            to_levels = self.rules.to_levels
            return (BookChange(symbol, self.exchange, False, to_levels(bids), to_levels(asks), timestamp, local_timestamp),)
        return ()

    def _is_news(self, book: _JoinedBook, first: Any, last: Any, previous: Any) -> bool:
        """Whether the book does not hold the update yet; ValueError where there is a gap before it that matters."""
        rules, number, last = self.rules, book.number, to_number(last)
        if last < number or (last == number and rules.holds_own_number):
            return False
        if not book.has_followed:
            self._check_overlap(number, to_number(first), last, to_number(previous))
            book.has_followed = True
        elif rules.is_chain and to_number(previous) != number:
            raise ValueError(f"the book is at {number}, and the update that ends with {last} follows {previous}")
        if rules.moves_on or rules.is_chain:
            book.number = last
        return True

    def _check_overlap(self, number: float, first: float, last: float, previous: float) -> None:
        rules = self.rules
        if rules.ignores_gaps or not self.realtime or number in rules.empty_numbers:
            return
        if not rules.overlaps(first, last, previous, number):
            raise ValueError(f"the book snapshot {number} and the first update {first} to {last} leave a gap")
