"""One bus's delivery on the event loop: the thin shell that does what the state machine asks for.

Everything that touches the spool, the ledger or the dead letters runs in one thread of the bus, in order. The event loop is never
blocked, and nothing is done for each event but to make its record.

Invariant: after every answer (a send, a write, a time) `_pump` asks the delivery once for all that is to be done now.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..bronze.bundle import Bundle
from ..bronze.encoding import BronzeEncoder
from ..bronze.event import Event, Tally
from ..bronze.splitting import split_event
from ..errors import DeliveryError, TardisMachineError, TerminalDeliveryError, TransientDeliveryError
from ..messages import ErrorMessage, to_timestamp
from ..telemetry import get_logger, redact
from .batching import Arrival, Batch
from .contract import EventBus, Record, Records, Route
from .dead_letters import DeadLetters
from .delivery import Delivery
from .errands import Burial, Loaded, Spill
from .ledger import DIED, Ledger, Session, to_session_end
from .mark import Mark
from .policy import Policy
from .receipt import BusHealth, Receipt
from .routing import Router
from .spool import Recovered, Spool
from .watch import Watch

__all__ = ["Courier", "Parcel"]

T = TypeVar("T")
Oversize = Literal["dead-letter", "split", "fail"]

_HOUSEKEEPING_S = 1.0
# Writing the ledger may take this share of the time at most.
_HOUSEKEEPING_SHARE = 0.02
_BUS_CLOSE_S = 5.0


class Parcel(msgspec.Struct):
    """Events as one bus takes them."""

    records: Records
    size_bytes: int
    tallies: list[Tally]
    published: Counter[str]
    """How many there are of each payload case."""
    oversize: list[Record]
    written: asyncio.Future[None] | None = None
    """Where it has to be written ahead: done when it is on disk."""


class Courier:
    """Delivers to one bus. `wall_us` is the time of day in microseconds, `random` gives numbers from 0 to 1."""

    def __init__(
        self,
        bus: EventBus,
        router: Router,
        policy: Policy,
        *,
        folder: Path,
        dead_letter_dir: Path,
        spool_max_bytes: int,
        oversize: Oversize,
        block_timeout_s: float,
        random: Callable[[], float],
        wall_us: Callable[[], int],
    ) -> None:
        self.name = bus.name
        self.router = router
        self._bus = bus
        self._policy = policy
        self._oversize = oversize
        self._block_timeout_s = block_timeout_s
        self._random = random
        self._wall_us = wall_us
        self._log = get_logger(f"eventbus.{bus.name}")
        self._watch = Watch(bus.name)
        self._delivery = Delivery(policy, bus.limits, random)
        self._spool = Spool(folder, spool_max_bytes, sync=policy.write_ahead)
        self._ledger = Ledger(folder / "sessions")
        self._dead_letters = DeadLetters(bus.name, dead_letter_dir)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix=f"{bus.name}-disk")
        # Encodes what the courier itself has to say; a session of its own, begun when it first speaks.
        self._voice: BronzeEncoder | None = None
        # Sends and connects, which may be cancelled, and disk work, which may not.
        self._network_tasks: set[asyncio.Task[None]] = set()
        self._disk_tasks: set[asyncio.Task[None]] = set()
        self._housekeeper: asyncio.Task[None] | None = None
        self._keeping = asyncio.Lock()
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        # Wait for room in the queue, and for nothing to be left.
        self._room_waiters: list[asyncio.Future[None]] = []
        self._idle_waiters: list[asyncio.Future[None]] = []
        # The first answer of the bus: None, or why it can't be used.
        self._first_connect: asyncio.Future[TerminalDeliveryError | None] | None = None
        # A wait for room was in vain: what has no room is dropped at once, until there is some.
        self._is_dropping = False
        # Accepted, to be written ahead, and not yet on disk.
        self._unwritten: dict[Arrival, Parcel] = {}
        self._is_closed = False
        self._ending: asyncio.Task[None] | None = None
        self._spool_bytes = 0

    # --- start ---------------------------------------------------------------------------------------------------------------

    async def start(self, connect_timeout_s: float) -> None:
        """Opens the spool, connects, and closes what an earlier process left open; a Terminal error of the bus is raised.

        A bus that is not there yet does not hold up the start.
        """
        try:
            recovered = await self._on_disk(self._recover)
        except TardisMachineError:
            self._disk.shutdown(wait=False)
            raise
        for problem in recovered.problems:
            self._log.error("the spool was damaged", bus=self.name, problem=problem)
        self._delivery = Delivery(self._policy, self._bus.limits, self._random, recovered.events)
        self._delivery.segment = self._spool.last_segment
        self._spool_bytes = self._spool.size_bytes
        if recovered.events:
            self._log.info("events of an earlier run are in the spool", bus=self.name, events=recovered.events)
        self._first_connect = asyncio.get_running_loop().create_future()
        self._pump()
        for session_id in self._ledger.open_sessions:
            self._ledger.end(session_id, complete=False, reason=DIED, now_us=self._wall_us())
        for session in self._ledger.left_behind:
            self._send_ledger(session)
        self._housekeeper = asyncio.create_task(self._keep_house(), name=f"{self.name} housekeeping")
        try:
            async with asyncio.timeout(connect_timeout_s):
                refusal = await asyncio.shield(self._first_connect)
        except TimeoutError:
            refusal = None
        if refusal is not None:
            await self.abort()
            raise refusal

    def _recover(self) -> Recovered:
        self._spool.lock()
        problems = self._ledger.read_open()
        recovered = self._spool.open(self._ledger.recover if self._ledger.open_sessions else None)
        recovered.problems += problems
        return recovered

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # --- what comes in -------------------------------------------------------------------------------------------------------

    def prepare(self, bundle: Bundle) -> Parcel:
        """The events as this bus takes them; nothing is accepted yet. Raises where a record is too large and that is to fail."""
        routes: list[Route] = []
        # Of each portion, whether the allow list has it.
        admitted: list[bool] = []
        tallies: list[Tally] = []
        published: Counter[str] = Counter()
        size_bytes, has_oversize = 0, False
        record_bytes = self._bus.limits.record_bytes
        for stream, portion in zip(bundle.streams, bundle.portions, strict=True):
            route = self.router.route(stream)
            routes.append(route)
            admitted.append(self.router.admits(route.payload_case))
            if not admitted[-1]:
                continue
            count = len(portion.values)
            size_bytes += portion.size_bytes + count * route.overhead_bytes
            tallies.append(portion.tally(stream))
            published[route.payload_case] += count
            has_oversize = has_oversize or portion.largest_bytes + route.overhead_bytes > record_bytes
        records = Records(list(map(routes.__getitem__, bundle.places)), bundle.events)
        if not all(admitted):
            chosen = list(map(admitted.__getitem__, bundle.places))
            records = Records(list(compress(records.routes, chosen)), list(compress(records.events, chosen)))
        parcel = Parcel(records, size_bytes, tallies, published, [])
        return self._fit(parcel) if has_oversize else parcel

    def _route(self, events: list[Event]) -> Records:
        return Records([self.router.route(event.stream) for event in events], events)

    def _fit(self, parcel: Parcel) -> Parcel:
        """Deals with the records that are too large, as told."""
        limit = self._bus.limits.record_bytes
        fitting: list[Record] = []
        for record in parcel.records:
            if record.size_bytes <= limit:
                fitting.append(record)
                continue
            if self._oversize == "fail":
                raise TerminalDeliveryError(_too_large(self.name, record, limit))
            parts = split_event(record.event, limit - record.route.overhead_bytes) if self._oversize == "split" else None
            if parts is None:
                parcel.oversize.append(record)
            else:
                fitting.extend(Record(record.route, part) for part in parts)
        parcel.records = Records.of(fitting)
        parcel.size_bytes = sum(parcel.records.sizes)
        by_stream: dict[int, list[Event]] = {}
        for record in (*fitting, *parcel.oversize):
            by_stream.setdefault(id(record.event.stream), []).append(record.event)
        parcel.tallies = [Tally(events) for events in by_stream.values()]
        parcel.published = Counter(record.route.payload_case for record in (*fitting, *parcel.oversize))
        return parcel

    def accept(self, parcel: Parcel) -> bool:
        """Takes the parcel, or says that it has to wait for room."""
        if self._is_closed:
            self._drop(parcel)
            return True
        if parcel.oversize:
            limit = self._bus.limits.record_bytes
            self._delivery.bury(parcel.oversize, _too_large(self.name, parcel.oversize[0], limit), self._now())
            parcel.oversize = []
        if parcel.records:
            cases = parcel.published if parcel.published.total() == len(parcel.records) else None
            arrival = self._delivery.offer(parcel.records, parcel.size_bytes, self._now(), cases=cases)
            if arrival is None:
                if self._policy.overflow != "drop" and not self._is_dropping:
                    return False
                self._drop(parcel)
                return True
            self._is_dropping = False
            if self._policy.write_ahead:
                self._unwritten[arrival] = parcel
                parcel.written = asyncio.get_running_loop().create_future()
        self._enter(parcel)
        return True

    async def written(self, parcel: Parcel) -> None:
        """Where events are written ahead: returns when these are on disk, or after the block time-out."""
        if parcel.written is not None:
            await asyncio.wait([parcel.written], timeout=self._block_timeout_s)

    async def accept_later(self, parcel: Parcel) -> None:
        """Waits for room, not longer than the block time-out, then drops."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._block_timeout_s
        try:
            while not self.accept(parcel):
                if loop.time() >= deadline:
                    self._is_dropping = True
                    continue
                waiter: asyncio.Future[None] = loop.create_future()
                self._room_waiters.append(waiter)
                await asyncio.wait([waiter], timeout=deadline - loop.time())
        except asyncio.CancelledError:
            self._drop(parcel)
            raise

    async def resend(self, events: list[Event]) -> None:
        """Takes events that their session's ledger has already, whatever the allow list says today."""
        parcel = self._fit(Parcel(self._route(events), 0, [], Counter(), []))
        parcel.tallies = []
        if not self.accept(parcel):
            await self.accept_later(parcel)
        await self.written(parcel)

    def _drop(self, parcel: Parcel) -> None:
        self._delivery.drop([*parcel.records, *parcel.oversize], self._now())
        self._enter(parcel)

    def _enter(self, parcel: Parcel) -> None:
        if parcel.written is None:
            self._note(parcel)
        self._delivery.by_case["published"].update(parcel.published)
        self._wake()

    def _note(self, parcel: Parcel) -> None:
        """The ledger counts it: at once, or, where events are written ahead, not before they are on disk."""
        self._ledger.add(parcel.tallies, self._wall_us())
        parcel.tallies = []

    # --- sessions ------------------------------------------------------------------------------------------------------------

    async def start_session(self, session_id: str, source: str, origin: str, meta: Mapping[str, str]) -> None:
        """Durable when it returns."""
        self._ledger.start(session_id, source, origin, meta, self._wall_us())
        begun = self._ledger.take_changes(self._wall_us(), only_new=True)
        try:
            await self._on_disk(self._ledger.write_changes, begun)
        except OSError as error:
            self._ledger.put_back(begun)
            self._log.error("the ledger can't be written", bus=self.name, error=str(error))

    def end_session(self, session_id: str, *, complete: bool, reason: str) -> None:
        """Closes the ledger and sends it behind all of the session's events; after the end of all, the next start does so."""
        if self._is_closed:
            return
        for parcel in self._unwritten.values():
            self._note(parcel)
        session = self._ledger.end(session_id, complete=complete, reason=reason, now_us=self._wall_us())
        if session is not None:
            self._send_ledger(session)

    def _send_ledger(self, session: Session) -> None:
        if not self.router.admits("session_end"):
            self._delivery.ended.append(session.session_id)
            return
        ended_us = session.ended_us or self._wall_us()
        encoder = BronzeEncoder(
            session_id=session.session_id,
            origin=session.origin,  # type: ignore[arg-type]
            meta=session.meta,
            source=session.source,
            clock_us=lambda: ended_us,  # the same bytes when a later start sends it again
        )
        for event in encoder.encode_session_end(to_session_end(session)):
            record = self._route([event])
            self._delivery.offer(record, sum(record.sizes), self._now(), session.session_id)
            self._delivery.by_case["published"][event.stream.payload_case] += 1
        self._wake()

    def _report_drops(self) -> None:
        """Says on the bus itself what it did not get."""
        report = self._delivery.take_drops()
        if report is None or not self.router.admits("error"):
            return
        if self._voice is None:
            session_id = f"publisher-{self.name}-{self._wall_us():x}"
            self._voice = BronzeEncoder(session_id=session_id, origin="realtime", clock_us=self._wall_us)
        seconds = self._now() - report.first_at
        details = f"{report.count} events to {self.name} were dropped within the last {seconds:.1f} s, as its queue was full"
        message = ErrorMessage("", to_timestamp(self._wall_us()), details)
        self.accept(self.prepare(self._voice.encode([message])))

    # --- what the delivery asks for ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._pump_scheduled and not self._is_closed:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._is_closed:
            return
        now, delivery = self._now(), self._delivery
        if delivery.wants_connect(now):
            self._start_task(self._network_tasks, self._connect())
        while (batch := delivery.next_batch(now)) is not None:
            self._start_task(self._network_tasks, self._send(batch))
        if (spill := delivery.next_spill(now)) is not None:
            self._start_task(self._disk_tasks, self._spill(spill))
        if max_bytes := delivery.next_load(now):
            self._start_task(self._disk_tasks, self._load(max_bytes))
        if burials := delivery.next_burial(now):
            self._start_task(self._disk_tasks, self._bury(burials))
        if delivery.can_report_drops:
            self._report_drops()
        self._watch.note_state(delivery)
        self._wake_waiters()
        self._set_timer(delivery.deadline(now), now)

    def _start_task(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _set_timer(self, deadline: float | None, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is None:
            return
        if deadline <= now:
            self._wake()
        else:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._pump)

    def _wake_waiters(self) -> None:
        waiting, self._room_waiters = self._room_waiters, []
        if self._delivery.is_idle or self._is_closed:
            waiting += self._idle_waiters
            self._idle_waiters = []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._bus.limits.send_timeout_s):
                await self._bus.connect()
        except Exception as error:  # whatever a client raises, events are waiting
            self._delivery.connect_failed(self._to_delivery_error(error, "connect"), self._now())
            refusal = error if isinstance(error, TerminalDeliveryError) else None
        else:
            self._delivery.connect_succeeded(self._bus.limits)
            refusal = None
        if self._first_connect is not None and not self._first_connect.done():
            self._first_connect.set_result(refusal)
        self._wake()

    async def _send(self, batch: Batch) -> None:
        try:
            async with asyncio.timeout(self._bus.limits.send_timeout_s):
                failures = await self._bus.send(batch.records)
        except Exception as error:  # whatever a client raises, these events are not confirmed
            self._delivery.fail(batch, self._to_delivery_error(error, "send"), self._now())
        else:
            self._delivery.settle(batch, failures, self._now())
            self._watch.observe(batch, self._now())
        self._wake()

    def _to_delivery_error(self, error: Exception, doing: str) -> DeliveryError:
        if isinstance(error, DeliveryError):
            return error
        if isinstance(error, TimeoutError):
            return TransientDeliveryError(f"{self.name} did not answer a {doing} within {self._bus.limits.send_timeout_s:g} s")
        self._log.exception(f"a {doing} failed in an unforeseen way, and is tried again", cause=error, bus=self.name)
        return TransientDeliveryError(f"{type(error).__name__}: {error}")

    async def _spill(self, spill: Spill) -> None:
        # Who finds an event in the spool must find its session too, and who finds its end the ledger that ended.
        begun = self._ledger.take_changes(self._wall_us(), only_new=True)
        groups = [(chunk.records.events, self._to_wall_us(chunk.arrival.accepted_at)) for chunk in spill.chunks]

        def write() -> list[Mark]:
            self._ledger.write_changes(begun)
            return self._spool.append(groups, in_new_segment=spill.in_new_segment)

        try:
            marks = await self._on_disk(write)
        except (OSError, DeliveryError) as error:
            self._ledger.put_back(begun)
            self._delivery.spill_failed(error, self._now())
        else:
            kept = self._delivery.spilled(spill, marks, self._now())
            self._delivery.segment = self._spool.last_segment
            self._note_written(chunk.arrival for chunk in spill.chunks)
            if kept:
                await self._on_disk(self._spool.skip, kept)
        self._spool_bytes = self._spool.size_bytes
        self._wake()

    def _note_written(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            parcel = self._unwritten.pop(arrival, None)
            if parcel is not None and parcel.written is not None:
                self._note(parcel)
                parcel.written.set_result(None)

    async def _load(self, max_bytes: int) -> None:
        try:
            groups, lost, problems = await self._on_disk(self._spool.read, max_bytes)
        except (OSError, DeliveryError) as error:
            self._delivery.load_failed(error, self._now())
        else:
            for problem in problems:
                self._log.error("the spool was damaged", bus=self.name, problem=problem)
            loaded = []
            for group in groups:
                records = self._route(group.events)
                loaded.append(Loaded(records, sum(records.sizes), group.mark, self._from_wall_us(group.accepted_us)))
            self._delivery.loaded(loaded, lost, self._now())
        self._wake()

    async def _bury(self, burials: Sequence[Burial]) -> None:
        letters = [(burial.record, redact(burial.reason)) for burial in burials]
        try:
            await self._on_disk(self._dead_letters.write, letters)
        except DeliveryError as error:
            self._delivery.burial_failed(error, self._now())
        else:
            self._delivery.buried()
            self._watch.note_dead_letters(len(letters), letters[0][1], self._now())
        self._wake()

    async def _on_disk(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments)

    def _to_wall_us(self, moment: float) -> int:
        return self._wall_us() - int((self._now() - moment) * 1e6)

    def _from_wall_us(self, moment_us: int) -> float:
        return self._now() - max(self._wall_us() - moment_us, 0) / 1e6

    # --- now and then --------------------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            took_s = await self._persist()
            self._look()
            await asyncio.sleep(max(_HOUSEKEEPING_S, took_s / _HOUSEKEEPING_SHARE))

    def _look(self) -> None:
        self._watch.look(self._delivery, self._now(), spool_bytes=self._spool_bytes, spool_max_bytes=self._spool.max_bytes)

    async def _persist(self) -> float:
        """Writes down what the ledger knows, then what the spool need not keep: in this order, or a crash would lose counts.

        Returns how long that took, without the wait for other work of the disk's thread.
        """
        async with self._keeping:
            delivery = self._delivery
            marks, delivery.acked = delivery.acked, []
            changes = self._ledger.take_changes(self._wall_us())
            ended, delivery.ended = delivery.ended, []
            settled = self._ledger.take_settled(ended)

            def write() -> tuple[int, float]:
                started = time.monotonic()
                self._spool.ack(marks)
                self._ledger.write_changes(changes)
                freed_bytes = self._spool.persist()
                self._ledger.write_settled(settled)
                return freed_bytes, time.monotonic() - started

            try:
                freed_bytes, took_s = await self._on_disk(write)
            except OSError as error:
                self._ledger.put_back(changes)
                self._log.error("the ledger can't be written", bus=self.name, error=str(error))
                return 0.0
            self._spool_bytes = self._spool.size_bytes
            if freed_bytes:
                delivery.spool_has_room()
                self._wake()
            return took_s

    # --- the end -------------------------------------------------------------------------------------------------------------

    async def flush(self, timeout_s: float) -> bool:
        """Sends partial batches at once and waits until nothing is left; False where something is."""
        self._delivery.flushing = True
        self._wake()
        try:
            if not self._delivery.is_idle:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle_waiters.append(waiter)
                await asyncio.wait([waiter], timeout=timeout_s)
            return self._delivery.is_idle
        finally:
            self._delivery.flushing = False

    async def close(self, timeout_s: float) -> Receipt:
        """Drains within the time, puts the rest into the spool, and lets go of everything."""
        for session_id in self._ledger.open_sessions:
            is_own = self._voice is not None and session_id.startswith("publisher-")
            self.end_session(session_id, complete=is_own, reason="" if is_own else "the machine was shut down")
        await self.flush(timeout_s)
        receipt = await self.abort()
        log = self._log.warning if receipt.unconfirmed else self._log.info
        log("closed", bus=self.name, receipt=str(receipt))
        return receipt

    async def abort(self) -> Receipt:
        """Stops sending, puts what is left into the spool, and lets go of everything; ends a `close` that is still draining."""
        if self._ending is None:
            self._is_closed = True
            self._ending = asyncio.create_task(self._let_go())
        await asyncio.shield(self._ending)
        return self.receipt

    async def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._housekeeper is not None:
            async with self._keeping:  # not while it writes: what it was about to write would be forgotten
                self._housekeeper.cancel()
        for task in self._network_tasks:
            task.cancel()
        await asyncio.gather(*self._network_tasks, *self._disk_tasks, return_exceptions=True)
        self._wake_waiters()
        await self._bury_last()
        await self._leave_in_spool()
        await self._persist()
        self._look()
        await self._on_disk(self._spool.close)
        await self._on_disk(self._dead_letters.close)
        self._disk.shutdown(wait=False)
        self._watch.state = "closed"
        try:
            async with asyncio.timeout(_BUS_CLOSE_S):
                await self._bus.close()
        except Exception as error:  # nothing is in flight, all is accounted for
            self._log.warning("the bus did not close as it should", bus=self.name, error=str(error))

    async def _bury_last(self) -> None:
        if burials := self._delivery.next_burial(float("inf")):
            await self._bury(burials)

    async def _leave_in_spool(self) -> None:
        leftovers = self._delivery.abandon()
        saved = 0
        now_us = self._wall_us()
        try:
            for leftover in leftovers:
                await self._on_disk(self._spool.insert, leftover.after_segment, [([r.event for r in leftover.records], now_us)])
                saved += len(leftover.records)
        except (OSError, DeliveryError) as error:
            self._delivery.last_error = str(error)
            self._log.error("events are lost, as the spool can't take them", bus=self.name, error=str(error))
        self._delivery.abandoned(saved)
        self._note_written(list(self._unwritten))
        if not self.receipt.lost:
            # Their ends are in the spool, or resolved.
            self._delivery.ended.extend(session.session_id for session in self._ledger.left_behind)

    # --- what can be seen ----------------------------------------------------------------------------------------------------

    @property
    def receipt(self) -> Receipt:
        """The accounts as they are now."""
        return Receipt.of(self.name, self._delivery.books, self._delivery.retried, self._last_error)

    @property
    def health(self) -> BusHealth:
        """The bus as it is now."""
        books, oldest_at = self._delivery.books, self._delivery.oldest_at
        return BusHealth(
            bus=self.name,
            state=self._watch.state,
            queue_events=books.queued,
            queue_bytes=self._delivery.memory_bytes,
            in_flight_events=books.in_flight,
            spool_events=books.spooled,
            spool_bytes=self._spool_bytes,
            oldest_unconfirmed_seconds=None if oldest_at is None or self._is_closed else self._now() - oldest_at,
            dropped_events=books.dropped,
            dead_lettered_events=books.dead_lettered,
            last_error=self._last_error,
        )

    @property
    def _last_error(self) -> str | None:
        """A server's own words may repeat what it was sent, a password too."""
        said = self._delivery.last_error
        return None if said is None else redact(said)


def _too_large(bus: str, record: Record, limit: int) -> str:
    event = record.event
    what = f"{event.stream.payload_case} of {event.stream.exchange} {event.stream.symbol}".rstrip()
    return f"a {what} takes {record.size_bytes} bytes, and {bus} takes {limit} a record"
