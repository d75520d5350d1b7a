"""Books that are joined live: the exchange sends updates alone, and the snapshot is fetched, or asked for in a frame.

Invariant: a snapshot is let through only if no update between it and those heard is missing. All updates are: what a snapshot
holds already, the mapper leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ._feed import BookGate, BookStep, FrameKind


class JoinRule(NamedTuple):
    """How an exchange's updates are counted against its snapshots."""

    is_held: Callable[[BookStep, int], bool]
    """Whether the snapshot of a number holds the update already."""
    joins: Callable[[BookStep, int], bool]
    """Whether the first update that it does not hold goes on from the snapshot of a number."""


class _Waiting:
    """A book whose snapshot and updates are not joined yet."""

    __slots__ = ("refusals", "snapshot", "updates")

    def __init__(self) -> None:
        # Updates that may come after the snapshot.
        self.updates: list[BookStep] = []
        # The snapshot's number, once one was let through.
        self.snapshot: int | None = None
        # Snapshots that were refused, as no update had come that it could be held against.
        self.refusals = 0


class JoinedBooks(BookGate):
    """The gate of such books. Updates pass from the first on; of each two in a row, the second must follow the first."""

    def __init__(self, rule: JoinRule, *, max_updates: int = 2000, patience: int = 0) -> None:
        super().__init__()
        self._rule = rule
        # Updates that may wait for a snapshot.
        self._max_updates = max_updates
        # How many snapshots are refused while no update has come; the next is taken, as the book may be one that hardly changes.
        # For exchanges whose snapshots come from a cache, and may be older than the first update.
        self._patience = patience
        # Those that are not joined yet.
        self._waiting: dict[str, _Waiting] = {}

    def take(self, step: BookStep) -> FrameKind:
        """See BookGate. A snapshot that does not fit is EARLY: the feed's `reply` asks for another."""
        book, known = step.book, self._last
        if step.is_snapshot:
            return FrameKind.DATA if self.fits(book, step.number) else FrameKind.EARLY
        if book not in known:
            self._waiting.setdefault(book, _Waiting())
        elif step.previous is not None and step.previous != known[book]:
            return self.miss(f"{book}: update {step.number} follows {step.previous}, but the last one was {known[book]}")
        known[book] = step.number
        return FrameKind.DATA if book not in self._waiting else self._wait(self._waiting[book], step)

    def _wait(self, waiting: _Waiting, step: BookStep) -> FrameKind:
        if waiting.snapshot is None:
            waiting.updates.append(step)
            if len(waiting.updates) > self._max_updates:
                return self.miss(f"{step.book}: no snapshot in {self._max_updates} updates")
        elif not self._rule.is_held(step, waiting.snapshot):
            del self._waiting[step.book]
            if not self._rule.joins(step, waiting.snapshot):
                return self.miss(f"{step.book}: update {_range(step)} does not join the snapshot {waiting.snapshot}")
        return FrameKind.DATA

    def fits(self, book: str, number: int | None) -> bool:
        """Whether a snapshot of that number joins the updates heard so far. If so it must be delivered; if not, a newer one may."""
        waiting = self._waiting.get(book)
        if waiting is None:
            if book in self._last:
                return True  # joined before: the mapper passes over it
            waiting = self._waiting[book] = _Waiting()
        if number is None:
            return False
        if not waiting.updates and waiting.refusals < self._patience:
            waiting.refusals += 1
            return False
        later = next((step for step in waiting.updates if not self._rule.is_held(step, number)), None)
        if later is not None and not self._rule.joins(later, number):
            return False
        waiting.snapshot = number
        waiting.updates.clear()
        if later is not None:
            del self._waiting[book]
        return True


def _range(step: BookStep) -> str:
    return str(step.number) if not step.first else f"{step.first} to {step.number}"
