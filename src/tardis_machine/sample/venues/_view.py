"""Books of which a venue sends only the best levels: which levels are in view, and how the view changes.

Invariant: the changes of a view, applied to it, give the view after them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from math import inf

from ..market import BookEvent, Change, SlotBook

__all__ = ["best_of", "view_changes"]


def best_of(book: SlotBook, depth: int) -> SlotBook:
    """The best levels of both sides, a book of its own."""
    bids, asks = sorted(book.bids, reverse=True)[:depth], sorted(book.asks)[:depth]
    return SlotBook({slot: book.bids[slot] for slot in bids}, {slot: book.asks[slot] for slot in asks})


def view_changes(
    opening: SlotBook, events: Iterable[BookEvent], depth: int
) -> Iterator[tuple[BookEvent, list[Change], list[Change], SlotBook]]:
    """For each event the changes in view, those of levels that are only out of view now, and the whole book after it."""
    book = opening.copy()
    sides = (_RankedSide(True, book.bids, depth), _RankedSide(False, book.asks, depth))
    for event in events:
        changes: list[Change] = []
        passed: list[Change] = []
        for side in sides:
            own = [change for change in event.changes if change.bid is side.bid]
            if own:
                side.apply(own, changes, passed)
        yield event, changes, passed, book


class _RankedSide:
    """One side of a book, sorted from the best level to the worst, and the last level in view."""

    def __init__(self, bid: bool, levels: dict[int, int], depth: int) -> None:
        self.bid = bid
        self._levels = levels
        self._depth = depth
        self._sign = -1 if bid else 1
        self._ranks = sorted(slot * self._sign for slot in levels)

    def apply(self, own: list[Change], changes: list[Change], passed: list[Change]) -> None:
        """Applies changes of this side; adds those in view, and those that only moved out of it."""
        levels, ranks, sign, bid = self._levels, self._ranks, self._sign, self.bid
        edge = self._edge()
        before: dict[int, int] = {}
        for _, slot, lots, _ in own:
            rank = slot * sign
            was = levels.get(slot, 0)
            before.setdefault(rank, was)
            if lots:
                levels[slot] = lots
                if not was:
                    insort(ranks, rank)
            elif was:
                del levels[slot]
                del ranks[bisect_left(ranks, rank)]
        new_edge = self._edge()
        for rank, was in before.items():
            slot = rank * sign
            shown, lots = was if rank <= edge else 0, levels.get(slot, 0)
            if rank <= new_edge and lots != shown:
                changes.append(Change(bid, slot, lots, shown))
            elif rank > new_edge and shown:
                (passed if lots else changes).append(Change(bid, slot, 0, shown))
        low, high = sorted((edge, new_edge))
        for rank in ranks[bisect_right(ranks, low) : bisect_right(ranks, high)]:
            if rank not in before:
                slot = rank * sign
                lots = levels[slot]
                if new_edge > edge:
                    changes.append(Change(bid, slot, lots, 0))
                else:
                    passed.append(Change(bid, slot, 0, lots))

    def _edge(self) -> float:
        return self._ranks[self._depth - 1] if len(self._ranks) >= self._depth else inf
