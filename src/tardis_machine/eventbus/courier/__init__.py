"""One bus's delivery on the event loop: the thin shell that does what the state machine asks for.

A parcel (`parcel`) comes in through `intake`, and its session is counted (`sessions`). The `pump` asks the delivery what is to be
done and has `bus_calls` and `disk_calls` do it. `housekeeping` writes down what is known now and then, `monitor` shows it,
`shutdown` ends it.

Invariant: `Courier` only puts these together; each of them owns what it does. The event loop is never blocked, and nothing is done
for each event but to make its record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...bronze.bundle import Bundle
from ...bronze.event import Event
from ...errors import TardisMachineError
from ...telemetry import get_logger
from ..contract import EventBus
from ..dead_letters import DeadLetters
from ..delivery import Delivery
from ..ledger import Ledger
from ..policy import Policy
from ..receipt import BusHealth, Receipt
from ..routing import Router
from ..spool import Spool
from .bus_calls import BusCalls
from .clocks import Clocks
from .disk_calls import DiskCalls
from .disk_thread import DiskThread
from .drop_notice import DropNotice
from .housekeeping import Housekeeping
from .intake import Intake
from .ledger_writer import LedgerWriter
from .letter_copies import LetterCopies
from .monitor import BusMonitor
from .parcel import Oversize, Parcel, ParcelBuilder
from .pump import Pump
from .sessions import Sessions
from .shutdown import Shutdown
from .waiters import Waiters
from .written_ahead import WrittenAhead

if TYPE_CHECKING:
    from ..tracing import Tracing

__all__ = ["Courier"]


class Courier:
    """Delivers to one bus. `wall_us` is the time of day in microseconds, `random` gives numbers from 0 to 1, `letters` is where
    copies of dead letters go."""

    def __init__(
        self,
        bus: EventBus,
        router: Router,
        policy: Policy,
        *,
        folder: Path,
        dead_letter_dir: Path,
        dead_letter_max_bytes: int,
        spool_max_bytes: int,
        oversize: Oversize,
        block_timeout_s: float,
        random: Callable[[], float],
        wall_us: Callable[[], int],
        letters: tuple[EventBus, Router] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        name = bus.name
        self.name = name
        self._bus = bus
        self.router = router
        self._log = log = get_logger(f"eventbus.{name}")
        clocks = Clocks(wall_us)
        spool = Spool(folder, spool_max_bytes, sync=policy.write_ahead)
        ledger = Ledger(folder / "sessions", sync=policy.write_ahead)
        dead_letters = DeadLetters(name, dead_letter_dir, dead_letter_max_bytes)
        # The state machine.
        self._delivery = delivery = Delivery(policy, bus.limits, random)
        # What can be seen of it.
        self._monitor = monitor = BusMonitor(name, delivery, spool, dead_letters, clocks)
        self._copies = copies = None if letters is None else LetterCopies(*letters, policy, random, log)
        # The thread of spool, ledger and dead letters.
        self._disk_thread = thread = DiskThread(name)
        ledger_writer = LedgerWriter(name, ledger, delivery, thread, clocks, log)
        on_resolved = None if tracing is None else partial(tracing.note_resolved, name)
        self._sessions = sessions = Sessions(ledger, ledger_writer, delivery, router, clocks, on_resolved)
        self._written_ahead = written_ahead = WrittenAhead(sessions)
        self._bus_calls = calls = BusCalls(bus, delivery, monitor, clocks, log, tracing)
        self._disk_calls = disk = DiskCalls(
            name,
            spool,
            ledger,
            dead_letters,
            copies,
            delivery,
            router,
            ledger_writer,
            written_ahead,
            monitor,
            thread,
            clocks,
            log,
        )
        self._pump = pump = Pump(delivery, calls, disk, ledger_writer, clocks, self._after_round)
        self._intake = intake = Intake(name, policy, block_timeout_s, delivery, sessions, written_ahead, clocks, pump.wake)
        self._parcels = ParcelBuilder(bus, router, oversize)
        self._drop_notice = DropNotice(name, delivery, router, self._parcels, intake, clocks)
        self._housekeeping = housekeeping = Housekeeping(
            name, delivery, sessions, ledger, ledger_writer, spool, monitor, thread, pump.wake
        )
        # Those that wait until nothing is left.
        self._drained = Waiters()
        self._shutdown = Shutdown(intake, pump, housekeeping, sessions, disk, calls, copies, monitor, self._drained)

    async def start(self, connect_timeout_s: float) -> None:
        """Opens the spool, connects, and closes what an earlier process left open; a Terminal error of the bus is raised.

        A bus that is not there yet does not hold up the start.
        """
        try:
            await self._disk_calls.recover()
        except TardisMachineError:
            self._disk_thread.close()
            raise
        self._pump.run_round()
        self._sessions.end_those_left_open()
        self._pump.wake()
        self._housekeeping.start()
        refusal = await self._bus_calls.first_refusal(connect_timeout_s)
        if refusal is None and self._copies is not None:
            refusal = await self._copies.first_refusal(connect_timeout_s)
        if refusal is not None:
            await self.abort()
            raise refusal
        if self._bus.limits.gives_up:
            self._log.info("something is given up by choice", bus=self.name, gives_up=self._bus.limits.gives_up)

    def prepare(self, bundle: Bundle) -> Parcel:
        """The events as this bus takes them; nothing is accepted yet. Raises where a record is too large and that is to fail."""
        return self._parcels.build(bundle)

    def accept(self, parcel: Parcel) -> bool:
        """Takes the parcel; False: it has to wait for room."""
        return self._intake.accept(parcel)

    async def accept_later(self, parcel: Parcel) -> None:
        """Waits for room, not longer than the block time-out, then drops."""
        await self._intake.accept_later(parcel)

    async def written(self, parcel: Parcel) -> None:
        """Where events are written ahead: returns when these are on disk. Raises where they are not after the block time-out."""
        await self._intake.written(parcel)

    async def resend(self, events: list[Event]) -> None:
        """Takes events that their session's ledger has already, whatever the allow list says today."""
        parcel = self._parcels.build_counted(events)
        if not self.accept(parcel):
            await self.accept_later(parcel)
        await self.written(parcel)

    async def start_session(self, session_id: str, source: str, origin: str, meta: Mapping[str, str]) -> None:
        """Durable when it returns."""
        await self._sessions.start(session_id, source, origin, meta)

    def end_session(self, session_id: str, *, complete: bool, reason: str) -> None:
        """Closes the ledger and sends it behind all of the session's events; after the end of all, the next start does so."""
        if not self._intake.is_closed:
            self._written_ahead.count_all()
            self._sessions.end(session_id, complete=complete, reason=reason)
            self._pump.wake()

    def _after_round(self) -> None:
        self._drop_notice.publish_if_due()
        self._monitor.note_state()
        self._intake.wake_waiters()
        self._sessions.note_resolved()
        if self._delivery.is_idle:
            self._drained.wake()

    async def flush(self, timeout_s: float) -> None:
        """Sends partial batches at once, and returns when nothing is left, or after the time."""
        self._delivery.set_flushing(is_flushing=True)
        self._pump.wake()
        try:
            if not self._delivery.is_idle:
                await self._drained.wait(timeout_s)
        finally:
            self._delivery.set_flushing(is_flushing=False)

    async def close(self, timeout_s: float) -> None:
        """Drains within the time, puts the rest into the spool, and lets go of everything."""
        for session_id in self._sessions.open_sessions:
            is_own = session_id == self._drop_notice.session_id
            self.end_session(session_id, complete=is_own, reason="" if is_own else "the machine was shut down")
        await self.flush(timeout_s)
        receipt = await self.abort()
        log = self._log.info if receipt.is_complete else self._log.warning
        log("closed", bus=self.name, receipt=str(receipt))

    async def abort(self) -> Receipt:
        """Stops sending, puts what is left into the spool, and lets go of everything; ends a `close` that is still draining."""
        await self._shutdown.run()
        return self.receipt

    @property
    def receipt(self) -> Receipt:
        """The accounts as they are now."""
        return self._monitor.receipt

    @property
    def health(self) -> BusHealth:
        """The bus as it is now."""
        return self._monitor.health
