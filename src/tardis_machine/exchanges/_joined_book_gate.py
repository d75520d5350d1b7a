"""The gate of joined books (see `_joined_book`) live: the exchange sends updates alone, the snapshot is fetched or asked for.

Invariant: a snapshot is let through only if no update between it and those heard is missing. All updates are let through: the mapper
leaves out those that a snapshot holds.
"""

from __future__ import annotations

import math

from ._feed import BookGate, BookStep, FrameKind
from ._joined_book import MAX_WAITING, JoinRules
from ._remembered import Remembered, bound_symbols

__all__ = ["JoinedBookGate"]


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


class JoinedBookGate(BookGate):
    """Updates pass from the first on; of each two in a row, the second must follow the first."""

    def __init__(self, rules: JoinRules, *, patience: int = 0) -> None:
        super().__init__()
        self._rules = rules
        # How many snapshots are refused while no update has come; the next is taken, as the book may be one that hardly changes.
        # For exchanges whose snapshots come from a cache, and may be older than the first update.
        self._patience = patience
        # Those that are not joined yet.
        self._waiting: Remembered[str, _Waiting] = Remembered()

    def take(self, step: BookStep) -> FrameKind:
        """See BookGate. A snapshot that does not fit is EARLY: the feed's `reply` asks for another."""
        book, known = step.book, self._last
        if step.is_snapshot:
            return FrameKind.DATA if self.fits(book, step.number) else FrameKind.EARLY
        if book not in known:
            bound_symbols(known)
            self._waiting.setdefault(book, _Waiting())
        elif step.previous is not None and step.previous != known[book]:
            return self.miss(f"{book}: update {step.number} follows {step.previous}, but the last one was {known[book]}")
        known[book] = step.number
        return FrameKind.DATA if book not in self._waiting else self._wait(self._waiting[book], step)

    def _wait(self, waiting: _Waiting, step: BookStep) -> FrameKind:
        if waiting.snapshot is None:
            waiting.updates.append(step)
            if len(waiting.updates) > MAX_WAITING:
                return self.miss(f"{step.book}: no snapshot in {MAX_WAITING} updates")
        elif not self._is_held(step, waiting.snapshot):
            del self._waiting[step.book]
            if not self._joins(step, waiting.snapshot):
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
        later = next((step for step in waiting.updates if not self._is_held(step, number)), None)
        if later is not None and not self._joins(later, number):
            return False
        waiting.snapshot = number
        waiting.updates.clear()
        if later is not None:
            del self._waiting[book]
        return True

    def _is_held(self, step: BookStep, snapshot: int) -> bool:
        return step.number < snapshot or (step.number == snapshot and self._rules.holds_own_number)

    def _joins(self, step: BookStep, snapshot: int) -> bool:
        rules, previous = self._rules, math.nan if step.previous is None else step.previous
        if rules.ignores_gaps or snapshot in rules.empty_numbers:
            return True
        return rules.overlaps(step.first or step.number, step.number, previous, snapshot)


def _range(step: BookStep) -> str:
    return str(step.number) if not step.first else f"{step.first} to {step.number}"
