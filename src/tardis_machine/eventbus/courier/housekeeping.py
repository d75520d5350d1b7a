"""What is done now and then: what is known goes to disk, what is not needed any longer goes from it.

Invariant: the ledger is written before the spool forgets an event; else a crash between the two would lose counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...telemetry import Logger
from ..delivery import Delivery
from ..ledger import Ledger
from ..spool import Spool
from .clocks import Clocks
from .disk_thread import DiskThread
from .monitor import BusMonitor
from .sessions import Sessions

__all__ = ["Housekeeping"]

_INTERVAL_S = 1.0
# Writing the ledger may take this share of the time at most.
_TIME_SHARE = 0.02


class Housekeeping:
    """Keeps the spool and the ledger of one bus. `wake` is called when the spool has room again."""

    def __init__(
        self,
        bus: str,
        delivery: Delivery,
        sessions: Sessions,
        ledger: Ledger,
        spool: Spool,
        monitor: BusMonitor,
        disk: DiskThread,
        clocks: Clocks,
        wake: Callable[[], None],
        log: Logger,
    ) -> None:
        self._bus = bus
        self._delivery = delivery
        self._sessions = sessions
        self._ledger = ledger
        self._spool = spool
        self._monitor = monitor
        self._disk = disk
        self._clocks = clocks
        self._wake = wake
        self._log = log
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
            changes = self._ledger.take_changes(self._clocks.wall_us())
            settled = self._ledger.take_settled(self._sessions.take_done())

            def write() -> tuple[int, float]:
                started = time.monotonic()
                self._spool.ack(spans)
                self._ledger.write_changes(changes)
                freed_bytes = self._spool.persist()
                self._ledger.write_settled(settled)
                return freed_bytes, time.monotonic() - started

            try:
                freed_bytes, took_s = await self._disk.run(write)
            except OSError as error:
                self._ledger.put_back(changes)
                self._log.error("the ledger can't be written", bus=self._bus, error=str(error))
                return 0.0
            if freed_bytes:
                self._delivery.spool_has_room()
                self._wake()
            return took_s
