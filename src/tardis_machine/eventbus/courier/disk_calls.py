"""The calls of the disk: events to the spool and back, dead letters.

Invariant: who finds an event in the spool finds its session in the ledger too, and who finds the end of one finds the ledger that
has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...errors import DeliveryError
from ...telemetry import Logger, redact
from ..dead_letters import DeadLetters
from ..delivery import Delivery
from ..delivery.disk_work import Loaded, Spill, Undeliverable
from ..ledger import Ledger
from ..routing import Router
from ..spool import Recovered, Spool
from ..spool_span import SpoolSpan
from .clocks import Clocks
from .disk_thread import DiskThread
from .ledger_writer import LedgerWriter
from .letter_copies import LetterCopies
from .monitor import BusMonitor
from .written_ahead import WrittenAhead

__all__ = ["DiskCalls"]


class DiskCalls:
    """Does what the delivery of one bus wants done with the disk, and tells it what came of it."""

    def __init__(
        self,
        bus: str,
        spool: Spool,
        ledger: Ledger,
        dead_letters: DeadLetters,
        copies: LetterCopies | None,
        delivery: Delivery,
        router: Router,
        ledger_writer: LedgerWriter,
        written_ahead: WrittenAhead,
        monitor: BusMonitor,
        disk: DiskThread,
        clocks: Clocks,
        log: Logger,
    ) -> None:
        self._bus = bus
        self._spool = spool
        self._ledger = ledger
        self._dead_letters = dead_letters
        self._copies = copies
        self._delivery = delivery
        self._router = router
        self._ledger_writer = ledger_writer
        self._written_ahead = written_ahead
        self._monitor = monitor
        self._disk = disk
        self._clocks = clocks
        self._log = log

    async def recover(self) -> None:
        """Opens the spool and the ledger, and takes over what an earlier run left there. SettingsError where that can't be."""
        recovered = await self._disk.run(self._open)
        self._log_damage(recovered.problems)
        self._delivery.carry(recovered.events, self._spool.last_segment)
        if recovered.events:
            self._log.info("events of an earlier run are in the spool", bus=self._bus, events=recovered.events)

    def _open(self) -> Recovered:
        self._spool.lock()
        self._dead_letters.measure()
        problems = self._ledger.read_open()
        recovered = self._spool.open(self._ledger.recover if self._ledger.open_sessions else None)
        recovered.problems += problems
        return recovered

    async def spill(self, spill: Spill) -> None:
        """Writes to the spool."""
        groups = [(group.records.events, self._clocks.to_wall_us(group.arrival.accepted_at)) for group in spill.groups]
        try:
            await self._ledger_writer.write(only_new=True)
            append = partial(self._spool.append, groups, in_new_segment=spill.in_new_segment)
            spans: list[SpoolSpan] = await self._disk.run(append)
        except (OSError, DeliveryError) as error:
            self._delivery.spill_failed(error, self._clocks.now())
            return
        kept = self._delivery.spilled(spill, spans, self._clocks.now())
        self._written_ahead.note_written(group.arrival for group in spill.groups)
        if kept:
            await self._disk.run(self._spool.skip, kept)

    async def load(self, max_bytes: int) -> None:
        """Reads back from the spool."""
        try:
            groups, lost, problems = await self._disk.run(self._spool.read, max_bytes)
        except (OSError, DeliveryError) as error:
            self._delivery.load_failed(error, self._clocks.now())
            return
        self._log_damage(problems)
        loaded = []
        for group in groups:
            records = self._router.route_events(group.events)
            loaded.append(Loaded(records, sum(records.sizes), group.span, self._clocks.from_wall_us(group.accepted_us)))
        self._delivery.loaded(loaded, lost, self._clocks.now())

    def _log_damage(self, problems: Sequence[str]) -> None:
        for problem in problems:
            self._log.error("the spool was damaged", bus=self._bus, problem=problem)

    async def write_dead_letters(self, undeliverable: Sequence[Undeliverable]) -> None:
        """Writes dead letters."""
        letters = [(found.record, redact(found.reason)) for found in undeliverable]
        try:
            await self._disk.run(self._dead_letters.write, letters)
        except DeliveryError as error:
            self._delivery.dead_letters_failed(error, self._clocks.now())
            self._monitor.note_stuck_letters(len(letters), error)
        else:
            self._written_ahead.note_written(self._delivery.dead_lettered())
            self._monitor.note_dead_letters(len(letters), letters[0][1])
            if self._copies is not None:
                self._copies.put(letters)

    async def leave_all(self) -> None:
        """Ends the delivery: what is undeliverable is written once more, and what is left in memory only goes to the spool."""
        if undeliverable := self._delivery.next_undeliverable(float("inf")):
            await self.write_dead_letters(undeliverable)
        saved, now_us, failure = 0, self._clocks.wall_us(), None
        try:
            await self._ledger_writer.write(only_new=True)
        except OSError as error:
            self._ledger_writer.log_failure(error)
        try:
            for leftover in self._delivery.abandon():
                events = [record.event for record in leftover.records]
                await self._disk.run(self._spool.insert, leftover.after_segment, [(events, now_us)])
                saved += len(events)
            await self._disk.run(self._spool.seal)
        except (OSError, DeliveryError) as error:
            failure = error
            self._log.error("events are lost, as the spool can't take them", bus=self._bus, error=str(error))
        self._delivery.abandoned(saved, failure)
        self._written_ahead.let_go(
            "" if failure is None else f"events to {self._bus} are lost, as the spool can't take them: {failure}"
        )

    async def close(self) -> None:
        """Lets go of the files. What can't be noted as confirmed is sent again."""
        try:
            await self._disk.run(self._spool.close)
        except OSError as error:
            self._log.error("what is confirmed can't be noted, and is sent again", bus=self._bus, error=str(error))
        await self._disk.run(self._dead_letters.close)
        self._disk.close()
