"""The end of a courier: nothing is sent any more, what is left goes to the spool, and everything is let go of.

Invariant: it happens once, whoever asks for it and however often, and goes on where the one who asked is cancelled.
"""

from __future__ import annotations

import asyncio

from .bus_calls import BusCalls
from .disk_calls import DiskCalls
from .housekeeping import Housekeeping
from .intake import Intake
from .letter_copies import LetterCopies
from .monitor import BusMonitor
from .pump import Pump
from .sessions import Sessions
from .waiters import Waiters

__all__ = ["Shutdown"]


class Shutdown:
    """Ends the courier of one bus. `drained` are those that wait until nothing is left."""

    def __init__(
        self,
        intake: Intake,
        pump: Pump,
        housekeeping: Housekeeping,
        sessions: Sessions,
        disk: DiskCalls,
        bus: BusCalls,
        copies: LetterCopies | None,
        monitor: BusMonitor,
        drained: Waiters,
    ) -> None:
        self._intake = intake
        self._pump = pump
        self._housekeeping = housekeeping
        self._sessions = sessions
        self._disk = disk
        self._bus = bus
        self._copies = copies
        self._monitor = monitor
        self._drained = drained
        # Runs from the first time it is asked for.
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Returns when all is done; also ends a flush that is still waiting."""
        if self._task is None:
            self._intake.is_closed = True
            self._pump.close()
            self._task = asyncio.create_task(self._run())
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        await self._housekeeping.stop()
        await self._pump.stop()
        self._intake.wake_waiters()
        self._drained.wake()
        await self._disk.leave_all()
        if not self._monitor.receipt.lost:
            self._sessions.note_ends_safe()
        await self._housekeeping.run_once()
        await self._disk.close()
        self._monitor.note_closed()
        if self._copies is not None:
            await self._copies.close()
        await self._bus.close()
