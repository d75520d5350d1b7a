"""Parcels that must be on disk, in the spool or as dead letters, before their publisher goes on.

Invariant: the ledger counts such a parcel when something of it is on disk, not before; where its session ends first, at the end.
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

    def add(self, arrivals: Iterable[Arrival], parcel: Parcel) -> None:
        """The parcel was accepted, as these arrivals, which are to be written."""
        for arrival in arrivals:
            self._unwritten[arrival] = parcel
            parcel.unwritten += 1
        if parcel.written is None or parcel.written.done():
            parcel.written = asyncio.get_running_loop().create_future()

    def note_written(self, arrivals: Iterable[Arrival]) -> None:
        """These are on disk; those that need not be written ahead may be among them."""
        for arrival in arrivals:
            parcel = self._unwritten.pop(arrival, None)
            if parcel is not None and parcel.written is not None:
                self._sessions.count(parcel)
                parcel.unwritten -= 1
                if not parcel.unwritten:
                    parcel.written.set_result("")

    def count_all(self) -> None:
        """The ledger counts all of them now."""
        for parcel in self._unwritten.values():
            self._sessions.count(parcel)

    def let_go(self, reason: str) -> None:
        """Nothing is written any more: nobody need wait. `reason` says why some are not on disk, and is empty where all are."""
        if not reason:
            self.note_written(list(self._unwritten))
        for parcel in self._unwritten.values():
            if parcel.written is not None and not parcel.written.done():
                parcel.written.set_result(reason)
