"""The delivery of events to one bus, as a state machine without I/O, clock or threads.

A record that was accepted waits for the disk or on it (`disk_queue`), in the queue or behind another of its lane (`send_scheduler`)
or, being a session's end, for the records before it (`arrival_order`) and for its ledger (`ledger_wait`). Then it is in flight, and
at last confirmed, a dead letter (`undeliverable_queue`) or dropped. `accounts` counts where it is. The shell around this (`courier`)
asks what is to be done (`wants_connect`, `wants_ledger`, `next_batch`, `next_spill`, `next_load`, `next_undeliverable`), does it, and
reports what came of it.

Invariant: every record is in exactly one of these places, and the books balance after every call. Each part owns its state; what
passes from one to another goes through `Delivery`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..contract import Failure, Limits, Record
from ..policy import Policy
from ..spool_span import SpoolSpan
from .accounts import Accounts, Books, DropReport
from .arrival_order import ArrivalOrder
from .connection_state import ConnectionState
from .disk_queue import DiskQueue
from .disk_work import Leftover, Loaded, Spill, Undeliverable, to_leftovers
from .in_flight import Batch
from .ledger_wait import LedgerWait
from .memory import MemoryBudget, memory_of
from .record_groups import Arrival, RecordGroup, RecordRange, whole
from .retry_pause import RetryPause
from .send_outcome import SendOutcome
from .send_scheduler import SendScheduler
from .undeliverable_queue import UndeliverableQueue

__all__ = ["Delivery"]


class Delivery:
    """One bus's records on their way. `now` is any clock in seconds that does not go back."""

    def __init__(self, policy: Policy, limits: Limits, random: Callable[[], float]) -> None:
        # How many records are where.
        self._accounts = Accounts()
        # What all records in memory take, but for those that wait for the disk.
        self._memory = MemoryBudget(policy.send_memory_bytes)
        # Their order, and which are not resolved.
        self._arrivals = ArrivalOrder()
        # Which ends of sessions wait for their ledger.
        self._ledger_wait = LedgerWait(RetryPause(policy, random))
        # What is on disk, or waits to be written there.
        self._disk = DiskQueue(policy, random)
        # Whether the bus is connected.
        self._connection = ConnectionState(RetryPause(policy, random))
        # What is to be sent, or is in flight.
        self._scheduler = SendScheduler(policy, limits, random, self._connection)
        # What is to be a dead letter.
        self._undeliverable = UndeliverableQueue(RetryPause(policy, random))
        # The last thing that went wrong.
        self._last_error: str | None = None
        # The same for the disk; None once something was written.
        self.disk_error: str | None = None

    def carry(self, count: int, last_segment: int) -> None:
        """An earlier run left so many records in the spool, whose last segment this is. To be called before anything else."""
        self._accounts.carry(count)
        self._disk.carry(count, last_segment)

    def offer(
        self, records: Sequence[Record], size_bytes: int, now: float, cases: Mapping[str, int], ends_session: str | None = None
    ) -> Arrival | None:
        """Accepts all of these records, or none of them where there is no room; for a session's end there always is.

        `cases` says how many there are of each payload case.
        """
        arrival = Arrival(len(records), now, ends_session)
        group = RecordGroup(records, size_bytes, arrival, now, cases)
        always_fits, memory_bytes = ends_session is not None, group.memory_bytes
        if self._disk.may_be_passed_by and (always_fits or self._memory.fits(memory_bytes)):
            self._disk.pass_by(arrival)
            self._enter(group, now)
        elif always_fits or self._disk.fits(memory_bytes, self._memory):
            self._disk.push(group)
        else:
            return None
        self._accounts.accept(len(records), cases)
        if ends_session is not None:
            self._ledger_wait.add(ends_session)
        return arrival

    def wants_ledger(self, now: float) -> bool:
        """Whether the ledger is to be written now, as ends wait for it; `ledger_written` or `ledger_failed` must follow."""
        return self._ledger_wait.start(now)

    def ledger_written(self, session_ids: Iterable[str]) -> None:
        """The ends of these sessions are on disk, durably: they may be sent."""
        self._ledger_wait.note_written(session_ids)

    def ledger_failed(self, error: BaseException, now: float) -> None:
        """They wait, and are tried again."""
        self._ledger_wait.note_failure(now)
        self._last_error = f"the ledger can't be written: {error}"

    def drop(self, records: Sequence[Record], now: float) -> None:
        """Accepts and drops them: there was no room."""
        self._accounts.drop(records, now)

    def refuse(self, records: Sequence[Record], reason: str, now: float) -> list[Arrival]:
        """Accepts records that the bus can't take at all: they go to the dead letters."""
        arrivals = []
        for record in records:
            group = RecordGroup([record], record.size_bytes, Arrival(1, now), now)
            group.arrival.after_segment = self._disk.last_segment
            self._arrivals.enter(group)
            self._memory.take(group.memory_bytes)
            self._undeliverable.push([Undeliverable(group, reason)])
            arrivals.append(group.arrival)
        self._accounts.accept(len(records), Counter([record.route.payload_case for record in records]))
        return arrivals

    def _enter(self, group: RecordGroup, now: float) -> None:
        self._memory.take(group.memory_bytes)
        group.queued_at = now
        if self._arrivals.enter(group):
            self._scheduler.push(group)

    def wants_connect(self, now: float) -> bool:
        """Whether the bus is to be connected now; the answer comes by `connect_succeeded` or `connect_failed`."""
        return self._connection.start(now, self._scheduler.sends)

    def connect_succeeded(self, limits: Limits) -> None:
        """The service's sizes may be known only now."""
        self._connection.note_connected()
        self._scheduler.adopt(limits)

    def connect_failed(self, error: BaseException, now: float) -> None:
        """Tried again after a pause."""
        self._connection.note_failure(now)
        self._last_error = str(error)

    def next_batch(self, now: float) -> Batch | None:
        """What is to be sent now; the answer comes by `settle` or `fail`."""
        self._advance_tail(now)
        for end in self._arrivals.release_ends(self._ledger_wait):
            end.queued_at = now
            self._scheduler.push(end)
        batch = self._scheduler.next_batch(now)
        if batch is not None:
            self._accounts.send(len(batch))
        return batch

    def settle(self, batch: Batch, failures: Sequence[Failure], now: float) -> None:
        """A send returned: all records are confirmed but those in `failures`."""
        self._note_outcome(batch, self._scheduler.settle(batch, failures, now))

    def fail(self, batch: Batch, error: BaseException, now: float) -> None:
        """A send raised: of every record it is unknown whether it arrived, or, where the error is Terminal, none did nor will."""
        self._note_outcome(batch, self._scheduler.fail(batch, error, now))

    def _note_outcome(self, batch: Batch, outcome: SendOutcome) -> None:
        self._accounts.land(len(batch))
        self._accounts.confirm(outcome.confirmed, outcome.confirmed_count)
        self._accounts.retry(outcome.retried)
        for group, start, stop in outcome.confirmed:
            self._arrivals.resolve(group.arrival, stop - start)
        self._memory.give_back(memory_of(outcome.confirmed_count, outcome.confirmed_bytes))
        self._undeliverable.push(outcome.undeliverable)
        if outcome.error is not None:
            self._last_error = outcome.error

    def next_undeliverable(self, now: float) -> list[Undeliverable]:
        """What is to be written to the dead letters now; the answer comes by `dead_lettered` or `dead_letters_failed`."""
        return self._undeliverable.start(now)

    def dead_lettered(self) -> list[Arrival]:
        """They are durable; returns what they arrived with."""
        written = self._undeliverable.take_written()
        self.disk_error = None
        for found in written:
            self._accounts.dead_letter(found.record)
            self._arrivals.resolve(found.group.arrival, 1)
            self._memory.give_back(found.group.memory_bytes)
        return [found.group.arrival for found in written]

    def dead_letters_failed(self, error: BaseException, now: float) -> None:
        """They wait, and are tried again."""
        self._undeliverable.note_failure(now)
        self._last_error = self.disk_error = str(error)

    def _advance_tail(self, now: float) -> None:
        for group in self._disk.take_passing(self._memory):
            self._enter(group, now)

    def next_spill(self, now: float) -> Spill | None:
        """What is to be written to the spool now; the answer comes by `spilled` or `spill_failed`."""
        self._advance_tail(now)
        return self._disk.start_write(now)

    def spilled(self, spill: Spill, spans: Sequence[SpoolSpan], now: float) -> list[SpoolSpan]:
        """They are on disk, at these spans; returns those that stay in memory too, and need not be read back."""
        self._disk.note_written()
        self.disk_error = None
        kept = []
        for group, span in zip(spill.groups, spans, strict=True):
            self._accounts.write(whole(group))
            if self._disk.place(group, span, self._memory):
                self._enter(group, now)
                kept.append(span)
            else:
                self._accounts.leave_memory(len(group))
        return kept

    def spill_failed(self, error: BaseException, now: float) -> None:
        """They stay in memory, and are tried again."""
        self._disk.note_write_failure(now)
        self._last_error = self.disk_error = str(error)

    def spool_has_room(self) -> None:
        """What could not be written may be tried at once."""
        self._disk.note_room()

    def next_load(self, now: float) -> int:
        """How many bytes are to be read back from the spool now; the answer comes by `loaded` or `load_failed`."""
        return self._disk.start_read(now, self._memory)

    def loaded(self, groups: Sequence[Loaded], lost: int, now: float) -> None:
        """The next records of the spool, and how many of them turned out to be damaged."""
        count = sum(len(loaded.records) for loaded in groups)
        self._disk.note_read(count + lost)
        self._accounts.load(count)
        self._accounts.lose(lost)
        for loaded in groups:
            first = loaded.records[0].route
            ends_session = first.session_id if first.payload_case == "session_end" else None
            arrival = Arrival(len(loaded.records), loaded.accepted_at, ends_session)
            arrival.span = loaded.span
            self._enter(RecordGroup(loaded.records, loaded.size_bytes, arrival, now), now)

    def load_failed(self, error: BaseException, now: float) -> None:
        """Tried again."""
        self._disk.note_read_failure(now)
        self._last_error = str(error)

    def take_resolved_spans(self) -> list[SpoolSpan]:
        """What the spool need not keep any longer, since the last call."""
        return self._arrivals.take_resolved_spans()

    def take_ended_sessions(self) -> list[str]:
        """Sessions whose end was resolved since the last call."""
        return self._arrivals.take_ended_sessions()

    @property
    def can_report_drops(self) -> bool:
        """Whether something was dropped, and there is room again."""
        has_room = not self._disk.tail_memory_bytes and self._memory.used_bytes * 2 < self._memory.limit_bytes
        return self._accounts.has_drops and has_room

    def take_drops(self) -> DropReport | None:
        """What was dropped since the last call; asked for once there is room again."""
        return self._accounts.take_drops()

    def set_flushing(self, *, is_flushing: bool) -> None:
        """Whether partial batches are to be sent at once, from now on."""
        self._scheduler.is_flushing = is_flushing

    def deadline(self, now: float) -> float | None:
        """When to ask again though nothing is reported."""
        return min(self._deadlines(now), default=None)

    def _deadlines(self, now: float) -> Iterator[float]:
        connect_at = self._connection.connect_at(self._scheduler.sends)
        if connect_at is not None:
            yield connect_at
        yield from self._scheduler.deadlines(now)
        yield from (at for at in self._disk.retry_times() if at > now)
        for retry_at in (self._undeliverable.retry_at, self._ledger_wait.retry_at):
            if retry_at is not None and retry_at > now:
                yield retry_at

    @property
    def books(self) -> Books:
        """Where all records are."""
        return self._accounts.books

    @property
    def retried(self) -> int:
        """How often a record was to be sent again."""
        return self._accounts.retried

    @property
    def by_case(self) -> Mapping[str, Mapping[str, int]]:
        """What was ever published, confirmed, retried, dropped, dead_lettered and spooled, each by payload case."""
        return self._accounts.by_case

    @property
    def connected(self) -> bool:
        """Whether the bus is connected."""
        return self._connection.is_connected

    @property
    def is_paused(self) -> bool:
        """Whether so many records were refused in a row that no more are given up: they are tried again."""
        return self._scheduler.is_paused

    @property
    def failures(self) -> int:
        """How often the bus as a whole failed since something was last confirmed."""
        return self._connection.failures

    @property
    def last_error(self) -> str | None:
        """The last thing that went wrong; may hold what only the operator may see."""
        return self._last_error

    @property
    def is_idle(self) -> bool:
        """Nothing is left to be done."""
        return self._accounts.in_memory == 0 and self._disk.unread == 0

    @property
    def is_spooling(self) -> bool:
        """Whether what comes now is behind something on disk, without being asked to be."""
        return self._disk.is_overflow

    @property
    def memory_bytes(self) -> int:
        """What all records in memory take."""
        return self._memory.used_bytes + self._disk.tail_memory_bytes

    @property
    def oldest_at(self) -> float | None:
        """When the oldest record that is in memory and not resolved was accepted."""
        oldest_at = self._arrivals.oldest_at
        return self._disk.oldest_at if oldest_at is None else oldest_at

    def abandon(self) -> list[Leftover]:
        """Ends the delivery: what is left in memory only, in order. Of what was in flight it is unknown whether it arrived."""
        groups = (*self._arrivals.waiting_ends, *(found.group for found in self._undeliverable))
        ranges: list[RecordRange] = [*self._scheduler.waiting, *self._scheduler.in_flight, *map(whole, groups)]
        return to_leftovers(ranges, self._disk.tail)

    def abandoned(self, saved: int, error: BaseException | None = None) -> None:
        """So many of them are in the spool now; those that were there before count too. `error`: why the others are not."""
        self._accounts.end(saved + self._arrivals.unresolved_in_spool)
        if error is not None:
            self._last_error = str(error)
