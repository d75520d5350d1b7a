"""The order book of one instrument, rebuilt from its changes.

Invariant: each side's prices are sorted, the best one last. Almost all changes happen there, and so move few of the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import Any

from ..messages import BookChange, BookLevel

__all__ = ["OrderBook", "PlainOrderBook"]

LevelRemoved = Callable[[BookLevel | None, BookLevel | None, BookLevel | None, BookLevel | None], None]
"""Told of each crossed level that was removed: best bid before and after, best ask before and after."""


class _Side:
    """One side; `sign` turns its prices into keys that grow towards the best one."""

    __slots__ = ("floor", "keys", "levels", "sign")

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.keys: list[float] = []
        # By key, the levels as their last changes gave them.
        self.levels: dict[float, BookLevel] = {}
        # The worst key at which a change matters to whoever watches the book.
        self.floor: float = -inf

    def replace(self, levels: Iterable[BookLevel]) -> None:
        """Forgets all levels and takes these."""
        sign, known = self.sign, self.levels
        known.clear()
        for level in levels:
            if not _has_price(level):
                continue
            key: Any = sign * level.price  # type: ignore[operator]
            if level.amount == 0:
                known.pop(key, None)
            else:
                known[key] = level
        self.keys = sorted(known)

    def apply(self, levels: Iterable[BookLevel]) -> bool:
        """Takes changed levels; whether one of them changed the book at the floor or better."""
        sign, known, keys, floor = self.sign, self.levels, self.keys, self.floor
        matters = False
        for level in levels:
            if not _has_price(level):
                continue
            key: Any = sign * level.price  # type: ignore[operator]
            if level.amount != 0:
                if key not in known:
                    insort(keys, key)
                known[key] = level
            elif key in known:
                del known[key], keys[bisect_left(keys, key)]
            else:
                continue
            if key >= floor:
                matters = True
        return matters

    def best(self) -> BookLevel | None:
        """The best level."""
        return self.levels[self.keys[-1]] if self.keys else None

    def remove_best(self) -> None:
        """Drops the best level."""
        del self.levels[self.keys.pop()]

    def __iter__(self) -> Iterator[BookLevel]:
        return map(self.levels.__getitem__, reversed(self.keys))

    def top(self, depth: int) -> list[BookLevel]:
        """The best levels, at most `depth` of them."""
        return list(map(self.levels.__getitem__, self.keys[: -depth - 1 : -1]))


class OrderBook:
    """Bids and asks of one instrument; changes before its first snapshot are ignored.

    Where the best bid reaches the best ask, a message that removes a level was lost. Unless told otherwise, such levels are
    removed: those of the side whose best the last change did not set, as that side is the stale one.

    >>> from tardis_machine.messages import BookLevel
    >>> book = OrderBook()
    >>> book.update(BookChange("XBTUSD", "bitmex", True, [BookLevel(99, 5), BookLevel(98, 7)], [BookLevel(101, 3)], "", ""))
    >>> book.update(BookChange("XBTUSD", "bitmex", False, [BookLevel(99, 0)], [BookLevel(100, 1)], "", ""))
    >>> [level.price for level in book.asks()], book.best_bid
    ([100, 101], BookLevel(price=98, amount=7))
    """

    __slots__ = ("_asks", "_bids", "_has_snapshot", "_on_removed", "_remove_crossed", "asks_touched", "bids_touched")

    def __init__(self, remove_crossed: bool = True, on_removed: LevelRemoved | None = None) -> None:
        self._bids = _Side(1)
        self._asks = _Side(-1)
        self._has_snapshot = False
        self._remove_crossed = remove_crossed
        self._on_removed = on_removed
        # Whether a side may have changed at the price watched, or better ones, since `watch`; if not, it has not.
        self.bids_touched = self.asks_touched = False

    @property
    def best_bid(self) -> BookLevel | None:
        """The highest bid."""
        return self._bids.best()

    @property
    def best_ask(self) -> BookLevel | None:
        """The lowest ask."""
        return self._asks.best()

    def bids(self) -> Iterator[BookLevel]:
        """All bids, the highest first."""
        return iter(self._bids)

    def asks(self) -> Iterator[BookLevel]:
        """All asks, the lowest first."""
        return iter(self._asks)

    def top_bids(self, depth: int) -> list[BookLevel]:
        """The highest bids, at most `depth` of them."""
        return self._bids.top(depth)

    def top_asks(self, depth: int) -> list[BookLevel]:
        """The lowest asks, at most `depth` of them."""
        return self._asks.top(depth)

    def watch(self, lowest_bid: float, highest_ask: float) -> None:
        """From now on `bids_touched` and `asks_touched` tell of changes at these prices or better ones."""
        self._bids.floor = lowest_bid
        self._asks.floor = -highest_ask
        self.bids_touched = self.asks_touched = False

    def update(self, change: BookChange) -> None:
        """Takes a change. Levels whose price is no number are passed over."""
        bids, asks = self._bids, self._asks
        if change.is_snapshot:
            bids.replace(change.bids)
            asks.replace(change.asks)
            self._has_snapshot = self.bids_touched = self.asks_touched = True
        elif not self._has_snapshot:
            return
        else:
            if asks.apply(change.asks):
                self.asks_touched = True
            if bids.apply(change.bids):
                self.bids_touched = True
        bid_keys, ask_keys = bids.keys, asks.keys
        if self._remove_crossed and bid_keys and ask_keys and bid_keys[-1] >= -ask_keys[-1]:
            self._uncross(change.asks)

    def _uncross(self, changed_asks: Iterable[BookLevel]) -> None:
        bids, asks = self._bids, self._asks
        best_ask_price = -asks.keys[-1]
        stale = bids if any(level.price == best_ask_price for level in changed_asks) else asks
        self.bids_touched = self.asks_touched = True
        while bids.keys and asks.keys and bids.keys[-1] >= -asks.keys[-1]:
            bid, ask = bids.best(), asks.best()
            stale.remove_best()
            if self._on_removed is not None:
                self._on_removed(bid, bids.best(), ask, asks.best())


def _has_price(level: BookLevel) -> bool:
    """Whether it has a place in an order, which null, text and NaN have not."""
    return isinstance(level.price, int | float) and level.price == level.price


PlainOrderBook = OrderBook
"""The one in Python, whose numbers may be any: whole ones of any size too."""

# Where it was compiled, a book is what is there.
with suppress(ImportError):
    from .order_book_compiled import *  # noqa: F403
