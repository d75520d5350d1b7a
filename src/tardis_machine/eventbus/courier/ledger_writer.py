"""Writes the ledger of one bus, whoever asks for it.

Invariant: one write at a time. When `write` returns, all that had begun or ended when it was asked for is on disk; what could not
be written is written the next time. The delivery is told of each session whose end is on disk, and sends no end before.
"""

from __future__ import annotations

import asyncio

from ...telemetry import Logger
from ..delivery import Delivery
from ..ledger import Ledger
from .clocks import Clocks
from .disk_thread import DiskThread

__all__ = ["LedgerWriter"]


class LedgerWriter:
    """The way of one bus's ledger to the disk."""

    def __init__(self, bus: str, ledger: Ledger, delivery: Delivery, disk: DiskThread, clocks: Clocks, log: Logger) -> None:
        self._bus = bus
        self._ledger = ledger
        self._delivery = delivery
        self._disk = disk
        self._clocks = clocks
        self._log = log
        # Held while something is being written.
        self._writing = asyncio.Lock()

    async def write(self, *, only_new: bool = False) -> float:
        """Writes what changed or, with `only_new`, what began or ended; the seconds that took. OSError where it fails."""
        async with self._writing:
            changes = self._ledger.take_changes(self._clocks.wall_us(), only_new=only_new)
            ended, took_s = self._ledger.ended_sessions, 0.0
            if changes:
                try:
                    _, took_s = await self._disk.run_timed(self._ledger.write_changes, changes)
                except BaseException:
                    self._ledger.put_back(changes)
                    raise
            self._delivery.ledger_written(ended)
            return took_s

    async def write_ends(self) -> None:
        """What the delivery asks for, so that ends may be sent; it is told where that fails."""
        try:
            await self.write(only_new=True)
        except OSError as error:
            self.log_failure(error)
            self._delivery.ledger_failed(error, self._clocks.now())

    async def write_settled(self) -> float:
        """Moves settled sessions to the log of closed ones; the seconds that took. OSError where it fails; they move later."""
        total_s = 0.0
        async with self._writing:
            while settled := self._ledger.settled:
                _, took_s = await self._disk.run_timed(self._ledger.write_settled, settled)
                self._ledger.forget(settled)
                total_s += took_s
        return total_s

    def log_failure(self, error: OSError) -> None:
        """Says that it can't be written."""
        self._log.error("the ledger can't be written, and is tried again", bus=self._bus, error=str(error))
