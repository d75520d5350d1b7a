"""What is done now and then: what is known goes to disk, what is not needed any longer goes from it.

Invariant: the ledger is written before the spool forgets an event; else a crash between the two would lose counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..delivery import Delivery
from ..ledger import Ledger
from ..spool import Spool
from .disk_thread import DiskThread
from .ledger_writer import LedgerWriter
from .monitor import BusMonitor
from .sessions import Sessions

__all__ = ["Housekeeping"]

_INTERVAL_S = 1.0
# Writing the ledger may take this share of the time at most.
_TIME_SHARE = 0.02


class Housekeeping:
    """Keeps the spool and the ledger of one bus. `wake` is called when there may be something new to do."""

    def __init__(
        self,
        bus: str,
        delivery: Delivery,
        sessions: Sessions,
        ledger: Ledger,
        ledger_writer: LedgerWriter,
        spool: Spool,
        monitor: BusMonitor,
        disk: DiskThread,
        wake: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._delivery = delivery
        self._sessions = sessions
        self._ledger = ledger
        self._ledger_writer = ledger_writer
        self._spool = spool
        self._monitor = monitor
        self._disk = disk
        self._wake = wake
        # Held while something is being written.
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on it is done now and then."""
        self._task = asyncio.create_task(self._run(), name=f"{self._bus} housekeeping")

    async def stop(self) -> None:
        """No longer; returns when what is being written is on disk."""
        if self._task is not None:
            async with self._writing:  # cancelled while it writes, it would forget what it was about to write
                self._task.cancel()

    async def _run(self) -> None:
        while True:
            took_s = await self.run_once()
            await asyncio.sleep(max(_INTERVAL_S, took_s / _TIME_SHARE))

    async def run_once(self) -> float:
        """Writes, and brings metrics up to date. Returns the seconds it took, without the wait for other work of the disk."""
        took_s = await self._persist()
        self._monitor.look()
        return took_s

    async def _persist(self) -> float:
        async with self._writing:
            spans = self._delivery.take_resolved_spans()
            await self._disk.run(self._spool.ack, spans)
            try:
                took_s = await self._ledger_writer.write()
                freed_bytes, persisting_s = await self._disk.run_timed(self._spool.persist)
                self._ledger.settle(self._sessions.take_done())
                took_s += persisting_s + await self._ledger_writer.write_settled()
            except OSError as error:
                self._ledger_writer.log_failure(error)
                return 0.0
            if freed_bytes:
                self._delivery.spool_has_room()
            self._wake()
            return took_s
