"""How parcels are accepted: at once, after a wait for room, or not at all.

Invariant: a parcel is accepted as a whole, or dropped as a whole and counted; nothing is done for each event. Where events are
written ahead, nobody is told that a parcel was accepted before it is on disk: who waits in vain gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...errors import UndeliveredError
from ..delivery import Delivery
from ..policy import Policy
from .clocks import Clocks
from .parcel import Parcel
from .sessions import Sessions
from .waiters import Waiters
from .written_ahead import WrittenAhead

__all__ = ["Intake"]


class Intake:
    """The door of one bus. `wake` is called when there is something new to do."""

    def __init__(
        self,
        bus: str,
        policy: Policy,
        block_timeout_s: float,
        delivery: Delivery,
        sessions: Sessions,
        written_ahead: WrittenAhead,
        clocks: Clocks,
        wake: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._policy = policy
        self._block_timeout_s = block_timeout_s
        self._delivery = delivery
        self._sessions = sessions
        self._written_ahead = written_ahead
        self._clocks = clocks
        self._wake = wake
        # Those that wait for room.
        self._waiters = Waiters()
        # A wait for room was in vain: what has no room is dropped at once, until there is some.
        self._is_dropping = False
        # Everything is dropped.
        self.is_closed = False

    def accept(self, parcel: Parcel) -> bool:
        """Takes the parcel; False: it has to wait for room."""
        if self.is_closed:
            self._drop(parcel)
            return True
        if parcel.oversize:
            arrivals = self._delivery.refuse(parcel.oversize, parcel.oversize_reason, self._clocks.now())
            parcel.oversize = []
            if self._policy.write_ahead:
                self._written_ahead.add(arrivals, parcel)
        if parcel.records:
            arrival = self._delivery.offer(parcel.records, parcel.size_bytes, self._clocks.now(), parcel.cases)
            if arrival is None:
                if self._policy.overflow != "drop" and not self._is_dropping:
                    return False
                self._drop(parcel)
                return True
            self._is_dropping = False
            if self._policy.write_ahead:
                self._written_ahead.add([arrival], parcel)
        if parcel.written is None:
            self._sessions.count(parcel)
        self._wake()
        return True

    async def accept_later(self, parcel: Parcel) -> None:
        """Waits for room, not longer than the block time-out, then drops; `written` raises then, where events are written ahead."""
        deadline = self._clocks.now() + self._block_timeout_s
        try:
            while not self.accept(parcel):
                if self._clocks.now() >= deadline:
                    self._is_dropping = True
                    continue
                await self._waiters.wait(deadline - self._clocks.now())
        except asyncio.CancelledError:
            self._drop(parcel)
            raise

    async def written(self, parcel: Parcel) -> None:
        """Where events are written ahead: returns when these are on disk. Raises where they are not after the block time-out."""
        if parcel.written is None:
            return
        await asyncio.wait([parcel.written], timeout=self._block_timeout_s)
        if not parcel.written.done():
            late = f"{_events(parcel)} to {self._bus} are not on disk after {self._block_timeout_s:g} s (--spool-mode always)"
            raise UndeliveredError(f"{late}: {self._delivery.disk_error or 'the disk is too slow'}")
        if reason := parcel.written.result():
            raise UndeliveredError(reason)

    def _drop(self, parcel: Parcel) -> None:
        self._delivery.drop([*parcel.records, *parcel.oversize], self._clocks.now())
        self._sessions.count(parcel)
        if self._policy.write_ahead:
            why = self._delivery.disk_error or "there is no room for them"
            parcel.written = asyncio.get_running_loop().create_future()
            parcel.written.set_result(
                f"{_events(parcel)} to {self._bus} were dropped, as they can't be written to disk (--spool-mode always): {why}"
            )
        self._wake()

    def wake_waiters(self) -> None:
        """There may be room."""
        self._waiters.wake()


def _events(parcel: Parcel) -> str:
    count = len(parcel.records) + len(parcel.oversize)
    return "events" if not count else "1 event" if count == 1 else f"{count} events"
