"""Every event to every configured bus, accounted for.

Each bus has a courier of its own, with its own queue, spool and ledger: one that is slow or gone holds up neither another nor
those who publish.

Invariant: an event that `publish` took is, for each bus whose allow list has it, at every moment in exactly one of: queue, in
flight, confirmed, spool, dead letter, dropped and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from random import random as dice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..bronze.bundle import Bundle
from ..bronze.event import Event
from ..errors import SettingsError, UndeliveredError
from .contract import EventBus
from .courier import Courier
from .dead_letters import batches_of, dead_letter_files, read_dead_letters
from .policy import Policy
from .receipt import BusHealth, Receipt, undelivered
from .routing import Router, Routing

if TYPE_CHECKING:
    from .tracing import Tracing

__all__ = ["BusPlan", "LetterPlan", "Publisher"]


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


class BusPlan(msgspec.Struct):
    """A bus, and what its common options say."""

    bus: EventBus
    routing: Routing
    options: Mapping[str, Any]
    """The common options, as `Settings.for_bus` gives them."""
    letters: LetterPlan | None = None
    """Where copies of dead letters go."""


class LetterPlan(msgspec.Struct):
    """A bus of the same kind, whose records all go to the destination of dead letters."""

    bus: EventBus
    routing: Routing

    @property
    def router(self) -> Router:
        """To that destination."""
        return Router(self.bus.name, self.routing, carries_headers=self.bus.limits.carries_headers)


class Publisher:
    """Publishes to some buses. `start` it, `publish` any number of batches, `close` it once."""

    def __init__(
        self,
        plans: Sequence[BusPlan],
        *,
        spool_dir: Path,
        spool_max_bytes: int = 4 * 1024**3,
        spool_mode: Literal["overflow", "always"] = "overflow",
        random: Callable[[], float] = dice,
        wall_us: Callable[[], int] = _wall_clock_us,
        otel_endpoint: str | None = None,
    ) -> None:
        # Told of sessions and batches; None where nobody wants to be.
        self.tracing = _make_tracing(otel_endpoint, [plan.bus.name for plan in plans])
        problems: list[str] = []
        self._couriers: dict[str, Courier] = {}
        for plan in plans:
            try:
                policy = Policy.from_options(plan.options, plan.bus.limits, write_ahead=spool_mode == "always")
                self._couriers[plan.bus.name] = Courier(
                    plan.bus,
                    Router(plan.bus.name, plan.routing, carries_headers=plan.bus.limits.carries_headers),
                    policy,
                    folder=spool_dir / plan.bus.name,
                    dead_letter_dir=plan.options["dead_letter_dir"],
                    dead_letter_max_bytes=plan.options["dead_letter_max_bytes"],
                    spool_max_bytes=spool_max_bytes,
                    oversize=plan.options["oversize"],
                    block_timeout_s=plan.options["block_timeout"],
                    random=random,
                    wall_us=wall_us,
                    tracing=self.tracing,
                    letters=None if plan.letters is None else (plan.letters.bus, plan.letters.router),
                )
            except SettingsError as error:
                problems += error.problems
        if problems:
            raise SettingsError(problems)
        self._is_open = False
        self._writes_ahead = spool_mode == "always"
        self._dead_letter_dirs = {plan.bus.name: Path(plan.options["dead_letter_dir"]) for plan in plans}

    @property
    def include(self) -> frozenset[str] | None:
        """The payload cases that some bus takes, None for all: what no bus takes need not be encoded."""
        wanted: set[str] = set()
        for courier in self._couriers.values():
            if courier.router.include is None:
                return None
            wanted |= courier.router.include
        return frozenset(wanted)

    async def start(self, connect_timeout_s: float = 10.0) -> None:
        """Opens the spools and connects all buses; raises where one can't be used at all. One that is only away may follow."""
        results = await asyncio.gather(
            *(courier.start(connect_timeout_s) for courier in self._couriers.values()), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            for courier, result in zip(self._couriers.values(), results, strict=True):
                if result is None:
                    await courier.abort()
            raise errors[0]
        self._is_open = True

    async def session_start(self, session_id: str, *, source: str, origin: str, meta: Mapping[str, str]) -> None:
        """A session begins; its ledger is on disk when this returns. One that is not announced begins with its first event."""
        self._require_open()
        if self.tracing is not None:
            self.tracing.note_begin(session_id)
        await asyncio.gather(*(courier.start_session(session_id, source, origin, meta) for courier in self._couriers.values()))

    async def publish(self, events: Sequence[Event]) -> None:
        """Hands events over to all buses; waits only for one that has no room for them, not longer than its block time-out.

        In write-ahead mode it also waits until they are on disk: what it returned for survives the death of the process. Where they
        are not after the block time-out, or were dropped, it raises.

        Raises where an event is too large for a bus that is told to fail; then no bus has accepted any of them.
        """
        if not events:
            return
        self._require_open()
        bundle = Bundle.of(events)
        parcels = [(courier, courier.prepare(bundle)) for courier in self._couriers.values()]
        waiting = [courier.accept_later(parcel) for courier, parcel in parcels if not courier.accept(parcel)]
        await _all(waiting)
        if self._writes_ahead:
            await _all([courier.written(parcel) for courier, parcel in parcels])

    def session_end(self, session_id: str, *, complete: bool = True, reason: str = "") -> None:
        """A session ends: its ledger goes out as the last event of it on each bus. `reason` says why it is not complete."""
        if self.tracing is not None:
            self.tracing.note_end(session_id, complete=complete, reason=reason)
        for courier in self._couriers.values():
            courier.end_session(session_id, complete=complete, reason=reason)

    async def flush(self, timeout_s: float) -> None:
        """Sends partial batches at once and returns when all is resolved, spools included; raises where time does not suffice."""
        await asyncio.gather(*(courier.flush(timeout_s) for courier in self._couriers.values()))
        self._raise_if_undelivered()

    async def close(self, timeout_s: float) -> list[Receipt]:
        """Drains all buses within the time and gives the receipts; what is left is in the spool.

        Raises where an event is unconfirmed, spooled or not; `receipts` has the receipts then.
        """
        self._is_open = False
        await asyncio.gather(*(courier.close(timeout_s) for courier in self._couriers.values()))
        await self._end_tracing()
        self._raise_if_undelivered()
        return self.receipts

    async def abort(self) -> list[Receipt]:
        """Ends now: what is left goes to the spool. Also while `close` is still draining."""
        self._is_open = False
        receipts = list(await asyncio.gather(*(courier.abort() for courier in self._couriers.values())))
        await self._end_tracing()
        return receipts

    async def _end_tracing(self) -> None:
        tracing, self.tracing = self.tracing, None
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    def _raise_if_undelivered(self) -> None:
        sentence = undelivered(self.receipts)
        if sentence is not None:
            raise UndeliveredError(sentence)

    def _require_open(self) -> None:
        if not self._is_open:
            raise UndeliveredError("the publisher is not running: events can't be published before its start or after its close")

    async def replay_dead_letters(self, bus: str, timeout_s: float, folder: Path | None = None) -> int:
        """Sends a bus's dead letters again and removes their files; what fails again is in new ones. Returns how many it sent.

        They are those in the bus's own folder unless told otherwise. Raises, and keeps the file, where some were not resolved in time.
        """
        self._require_open()
        courier, sent = self._couriers[bus], 0
        for path in dead_letter_files(folder or self._dead_letter_dirs[bus]):
            dropped = courier.receipt.dropped
            for letters in batches_of(read_dead_letters(path)):
                await courier.resend([letter.event for letter in letters])
                sent += len(letters)
            await courier.flush(timeout_s)
            self._raise_if_undelivered()
            if courier.receipt.dropped > dropped:
                raise UndeliveredError(f"{bus} had no room for all dead letters of {path}, which is kept")
            path.unlink()
        return sent

    @property
    def receipts(self) -> list[Receipt]:
        """The accounts of all buses as they are now."""
        return [courier.receipt for courier in self._couriers.values()]

    def health(self) -> list[BusHealth]:
        """All buses as they are now."""
        return [courier.health for courier in self._couriers.values()]


async def _all(waiting: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Returns when all have. One needs no task of its own, which would take turns of an event loop that sends meanwhile."""
    if len(waiting) == 1:
        await waiting[0]
    elif waiting:
        await asyncio.gather(*waiting)


def _make_tracing(endpoint: str | None, buses: Sequence[str]) -> Tracing | None:
    """None where nobody wants to be told: then nothing of OpenTelemetry is loaded."""
    if endpoint is None:
        return None
    from .tracing import Tracing

    return Tracing(endpoint, buses)
