"""Records that were given up in a row, by destination.

One record that its bus refuses is at fault itself. Where a destination refuses one after the other and confirms none between, it is
the destination that does not work: permissions were revoked, or it is gone. Nothing more is given up then. Its records are tried
again until one is confirmed.

Invariant: of one destination no more than `most` records are given up between two that are confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

__all__ = ["Refusals"]


class Refusals:
    """The refusals of one bus."""

    def __init__(self, most: int) -> None:
        # How many may be given up in a row.
        self._most = most
        # How many were, by destination.
        self._in_a_row: Counter[str] = Counter()
        # Destinations of which nothing more is given up.
        self._paused: set[str] = set()

    def __bool__(self) -> bool:
        """Whether anything was given up that no confirmation followed."""
        return bool(self._in_a_row or self._paused)

    @property
    def is_paused(self) -> bool:
        """Whether there is a destination of which nothing more is given up."""
        return bool(self._paused)

    def admit(self, destinations: Iterable[str]) -> bool:
        """Whether records to these destinations may be given up, all of them; if so, they are counted."""
        wanted = Counter(destinations)
        doubted = [name for name, count in wanted.items() if name in self._paused or self._in_a_row[name] + count > self._most]
        if doubted:
            self._paused.update(doubted)
            return False
        self._in_a_row.update(wanted)
        return True

    def note_confirmed(self, destinations: Iterable[str]) -> None:
        """These destinations work."""
        for name in set(destinations):
            self._in_a_row.pop(name, None)
            self._paused.discard(name)

    def explain(self, error: BaseException) -> str:
        """Why what was refused for good is tried again."""
        return (
            f"{error} (refused {self._most} times in a row, so that nothing more goes to the dead letters, and it is tried again)"
        )
