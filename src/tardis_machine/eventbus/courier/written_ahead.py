"""Parcels that must be on disk before their publisher goes on.

Invariant: the ledger counts such a parcel when it is on disk, not before; where its session ends first, at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..delivery.record_groups import Arrival
from .parcel import Parcel
from .sessions import Sessions

__all__ = ["WrittenAhead"]


class WrittenAhead:
    """The parcels of one bus that are accepted and not on disk yet."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._unwritten: dict[Arrival, Parcel] = {}

    def add(self, arrival: Arrival, parcel: Parcel) -> None:
        """The parcel was accepted, and is to be written."""
        self._unwritten[arrival] = parcel
        parcel.written = asyncio.get_running_loop().create_future()

    def note_written(self, arrivals: Iterable[Arrival]) -> None:
        """These are on disk; those that need not be written ahead may be among them."""
        for arrival in arrivals:
            parcel = self._unwritten.pop(arrival, None)
            if parcel is not None and parcel.written is not None:
                self._sessions.count(parcel)
                parcel.written.set_result(None)

    def count_all(self) -> None:
        """The ledger counts all of them now."""
        for parcel in self._unwritten.values():
            self._sessions.count(parcel)

    def let_go(self) -> None:
        """Nothing is written any more: nobody need wait."""
        self.note_written(list(self._unwritten))
