"""Asks the delivery what is to be done, and has it done.

Invariant: after every answer (a send, a write, a time) there is one round, in which the delivery is asked for all that is to be
done now. Rounds run on the event loop, one at a time, and wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ..delivery import Delivery
from .bus_calls import BusCalls
from .clocks import Clocks
from .disk_calls import DiskCalls
from .ledger_writer import LedgerWriter

__all__ = ["Pump"]


class Pump:
    """Keeps one bus going. `after_round` is called at the end of each round."""

    def __init__(
        self,
        delivery: Delivery,
        bus: BusCalls,
        disk: DiskCalls,
        ledger: LedgerWriter,
        clocks: Clocks,
        after_round: Callable[[], None],
    ) -> None:
        self._delivery = delivery
        self._bus = bus
        self._disk = disk
        self._ledger = ledger
        self._clocks = clocks
        self._after_round = after_round
        # A round is to come as soon as the event loop has time.
        self._is_scheduled = False
        # The round that comes though nothing is reported.
        self._timer: asyncio.TimerHandle | None = None
        # Sends and connects, which may be cancelled.
        self._bus_tasks: set[asyncio.Task[None]] = set()
        # Disk work, which may not.
        self._disk_tasks: set[asyncio.Task[None]] = set()
        # There are no more rounds.
        self._is_closed = False

    def wake(self) -> None:
        """There is something new: a round comes soon."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.run_round)

    def run_round(self) -> None:
        """Starts all that is to be done now."""
        self._is_scheduled = False
        if self._is_closed:
            return
        now, delivery = self._clocks.now(), self._delivery
        if delivery.wants_connect(now):
            self._start(self._bus_tasks, self._bus.connect())
        if delivery.wants_ledger(now):
            self._start(self._disk_tasks, self._ledger.write_ends())
        while (batch := delivery.next_batch(now)) is not None:
            self._start(self._bus_tasks, self._bus.send(batch))
        if (spill := delivery.next_spill(now)) is not None:
            self._start(self._disk_tasks, self._disk.spill(spill))
        if max_bytes := delivery.next_load(now):
            self._start(self._disk_tasks, self._disk.load(max_bytes))
        if undeliverable := delivery.next_undeliverable(now):
            self._start(self._disk_tasks, self._disk.write_dead_letters(undeliverable))
        self._after_round()
        self._set_timer(delivery.deadline(now), now)

    def _start(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(partial(self._finish, tasks))

    def _finish(self, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        self.wake()

    def _set_timer(self, deadline: float | None, now: float) -> None:
        self._cancel_timer()
        if deadline is None:
            return
        if deadline <= now:
            self.wake()
        else:
            self._timer = asyncio.get_running_loop().call_at(deadline, self.run_round)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """There are no more rounds; what was started goes on."""
        self._is_closed = True
        self._cancel_timer()

    async def stop(self) -> None:
        """Cancels sends, and returns when nothing is running any more."""
        for task in self._bus_tasks:
            task.cancel()
        await asyncio.gather(*self._bus_tasks, *self._disk_tasks, return_exceptions=True)
