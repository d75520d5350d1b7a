"""The delivery of events to one bus, as a state machine without I/O, clock or threads.

A record that was accepted waits in the tail (behind what is on disk), in the spool, in the queue, in the line of its lane (behind
one of that lane that failed) or, being a session's end, for the records before it; then it is in flight, and at last confirmed,
dead-lettered or dropped. The shell around this (`courier`) asks what is to be done (`wants_connect`, `next_batch`, `next_spill`,
`next_load`, `next_burial`), does it, and reports what came of it.

Invariant: every record is in exactly one of these places, and `books` balances after every call. Records of one lane are handed
out in the order of their ordinals, the next one only when those before it are resolved or travel in front of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from .batching import Arrival, Batch, Chunk, Piece, Queue, singles
from .books import Books, DropReport
from .contract import Failure, Limits, Record
from .errands import Burial, Leftover, Loaded, Spill
from .lanes import Lane, Lanes
from .mark import Mark
from .policy import RECORD_MEMORY_BYTES, Pause, Policy

__all__ = ["Delivery"]

_LOAD_BYTES = 4 * 1024**2
# Records that are looked through for one batch, before the event loop gets its turn: milliseconds.
_SCAN_RECORDS = 2_000
# Single records that may be set aside in a row, to find out whether they or the bus are at fault.
_ISOLATED_AT_MOST = 3
# Sends that may run at once without being full, where a lane is in one send at a time.
_PARTIAL_SENDS = 2


class Delivery:
    """One bus's records on their way. `now` is any clock in seconds that does not go back."""

    def __init__(self, policy: Policy, limits: Limits, random: Callable[[], float], carried: int = 0) -> None:
        self.policy = policy
        self._random = random
        self._batch_records = min(policy.batch_records, limits.batch_records)
        self._batch_bytes = min(policy.batch_bytes, limits.batch_bytes)
        self._concurrent_sends = limits.concurrent_sends

        # Ready to be sent.
        self._head = Queue()
        # Came back from a send that failed as a whole, while others are still running.
        self._returned: list[Piece] = []
        # What waits for an earlier record of its lane.
        self._lanes = Lanes(
            locks=limits.ordered
            and (not limits.keeps_order_in_batch or (limits.concurrent_sends > 1 and not limits.keeps_order_across_sends)),
            one_of_a_lane=limits.ordered and not limits.keeps_order_in_batch,
        )
        # Without locks, a line that goes on must not overtake an older send that may still fail.
        self._lines_go_alone = limits.ordered and not self._lanes.locks
        # Ends of sessions, each waiting until all before it is resolved.
        self._held: deque[Chunk] = deque()
        self._in_flight: dict[int, Batch] = {}
        # For the dead letters, and those being written there.
        self._to_bury: list[Burial] = []
        self._burying: list[Burial] = []
        # Accepted behind what is on disk.
        self._tail: deque[Chunk] = deque()
        # Records on disk that are not in memory.
        self._unread = carried
        # Put into the spool by a shutdown.
        self._left_in_spool = 0

        # Arrivals with unresolved records, oldest first: sessions' ends, and all others.
        self._outstanding: deque[Arrival] = deque()
        self._ends: deque[Arrival] = deque()
        self._next_ordinal = 0
        self._next_batch = 0
        self._pending = 0
        self._flying = 0
        self._memory_bytes = 0
        self._tail_memory_bytes = 0

        self._accepted = 0
        self._carried = carried
        self._confirmed = 0
        self._dead_lettered = 0
        self._dropped = 0
        self.retried = 0
        self.spooled = 0
        """How many records were ever written to the spool."""
        self.by_case: dict[str, Counter[str]] = {
            name: Counter() for name in ("published", "confirmed", "retried", "dropped", "dead_lettered", "spooled")
        }
        """The same by payload case, for metrics."""
        self.acked: list[Mark] = []
        """Marks of the spool that are done with; the shell takes them."""
        self.ended: list[str] = []
        """Sessions whose end is resolved; the shell takes them."""
        self._drops: DropReport | None = None

        self.connected = False
        self._connecting = False
        # Failures of the bus as a whole, of writing and reading the spool, and of writing dead letters.
        self._bus = Pause()
        self._writing = Pause()
        self._reading = Pause()
        self._burial = Pause()
        self._limit = self._batch_records
        self._isolated = 0
        self.last_error: str | None = None
        # Partial batches go at once.
        self.flushing = False

        # Disk.
        self.segment = 0
        """The spool's last segment; the shell keeps it up to date."""
        self._has_direct = False
        self._spilling = False
        self._loading = False

    # --- what comes in -------------------------------------------------------------------------------------------------------

    def offer(
        self,
        records: Sequence[Record],
        size_bytes: int,
        now: float,
        ends_session: str | None = None,
        cases: Mapping[str, int] | None = None,
    ) -> Arrival | None:
        """Accepts all of these records, or none of them where there is no room; for a session's end there always is."""
        memory = size_bytes + len(records) * RECORD_MEMORY_BYTES
        arrival = Arrival(0, len(records), now)
        arrival.ends_session = ends_session
        chunk = Chunk(records, size_bytes, arrival, 0, now, cases)
        if self._is_direct and (self._fits(memory) or ends_session is not None):
            self._enter_direct(chunk, now)
        elif self._tail_fits(memory) or ends_session is not None:
            self._tail.append(chunk)
            self._tail_memory_bytes += memory
            self._pending += len(records)
        else:
            return None
        self._accepted += len(records)
        return arrival

    def drop(self, records: Sequence[Record], now: float) -> None:
        """Accepts and drops them: there was no room."""
        self._accepted += len(records)
        self._dropped += len(records)
        self._count("dropped", records)
        if self._drops is None:
            self._drops = DropReport(0, now, now)
        self._drops.count += len(records)
        self._drops.last_at = now

    def bury(self, records: Sequence[Record], reason: str, now: float) -> None:
        """Accepts records that the bus can't take at all."""
        for record in records:
            arrival = Arrival(self._next_ordinal, 1, now)
            arrival.after_segment = self.segment
            self._next_ordinal += 1
            self._outstanding.append(arrival)
            self._bury(Chunk([record], record.size_bytes, arrival, arrival.first, now), reason)
            self._memory_bytes += record.size_bytes + RECORD_MEMORY_BYTES
        self._accepted += len(records)
        self._pending += len(records)

    @property
    def can_report_drops(self) -> bool:
        """Whether something was dropped, and there is room again."""
        return self._drops is not None and not self._tail and self._memory_bytes * 2 < self.policy.head_bytes

    def take_drops(self) -> DropReport | None:
        """What was dropped since the last call; asked for once there is room again."""
        report, self._drops = self._drops, None
        return report

    @property
    def _is_direct(self) -> bool:
        """Whether what comes now is behind nothing on disk."""
        return not (self.policy.write_ahead or self._unread or self._tail)

    def _fits(self, memory: int) -> bool:
        return self._memory_bytes == 0 or self._memory_bytes + memory <= self.policy.head_bytes

    def _tail_fits(self, memory: int) -> bool:
        if self.policy.spills:
            # One chunk may always wait to be written, however large it is and however full the queue.
            return not self._tail or self._tail_memory_bytes + memory <= self.policy.tail_bytes
        if self._is_direct:
            return False
        held = self._memory_bytes + self._tail_memory_bytes
        return held == 0 or held + memory <= self.policy.head_bytes

    def _enter_direct(self, chunk: Chunk, now: float) -> None:
        chunk.arrival.after_segment = self.segment
        self._has_direct = True
        self._pending += len(chunk)
        self._enter(chunk, now)

    def _enter(self, chunk: Chunk, now: float) -> None:
        arrival = chunk.arrival
        arrival.first = chunk.first = self._next_ordinal
        self._next_ordinal += len(chunk)
        self._memory_bytes += chunk.size_bytes + len(chunk) * RECORD_MEMORY_BYTES
        chunk.queued_at = now
        if arrival.ends_session is None:
            self._outstanding.append(arrival)
            self._head.push(chunk)
        else:
            self._ends.append(arrival)
            self._held.append(chunk)

    # --- the connection ------------------------------------------------------------------------------------------------------

    def wants_connect(self, now: float) -> bool:
        """Whether the bus is to be connected now; the answer comes by `connect_succeeded` or `connect_failed`."""
        if self.connected or self._connecting or self._in_flight or now < self._bus.until:
            return False
        self._connecting = True
        return True

    def connect_succeeded(self, limits: Limits) -> None:
        """The service's sizes may be known only now."""
        self._connecting = False
        self.connected = True
        whole = self._limit == self._batch_records
        self._batch_records = min(self.policy.batch_records, limits.batch_records)
        self._batch_bytes = min(self.policy.batch_bytes, limits.batch_bytes)
        self._limit = self._batch_records if whole else min(self._limit, self._batch_records)

    def connect_failed(self, error: BaseException, now: float) -> None:
        self._connecting = False
        self._pause(self._bus, error, now)

    def _pause(self, pause: Pause, error: BaseException, now: float) -> None:
        pause.extend(now, self.policy, self._random)
        self.last_error = str(error)

    # --- sending -------------------------------------------------------------------------------------------------------------

    def next_batch(self, now: float) -> Batch | None:
        """What is to be sent now; the answer comes by `settle` or `fail`."""
        if not self.connected or len(self._in_flight) >= self._sends_at_once:
            return None
        self._advance_tail(now)
        self._release_ends(now)
        self._lanes.wake(now)
        if self._holds_back or not self._is_due(now):
            return None
        lanes: dict[Lane, bool] = {}
        if self._lanes.locks or self._lanes:
            pieces, size_bytes = self._cut_by_lane(lanes)
        else:
            pieces, size_bytes = self._head.cut(self._limit, self._batch_bytes)
        if not pieces:
            return None
        batch = Batch(self._next_batch, pieces, size_bytes, list(lanes))
        self._next_batch += 1
        self._in_flight[batch.number] = batch
        self._flying += len(batch)
        return batch

    @property
    def _sends_at_once(self) -> int:
        # After a failure one send shows whether the bus is back.
        return 1 if self._bus.failures or (self._lines_go_alone and self._lanes) else self._concurrent_sends

    @property
    def _holds_back(self) -> bool:
        """Lanes that are kept to one send each would else be scattered over as many sends as there may be, a few in each."""
        if not self._lanes.locks or len(self._in_flight) < _PARTIAL_SENDS:
            return False
        return self._lanes.due_count + self._head.count < self._limit

    def _is_due(self, now: float) -> bool:
        head = self._head
        if self._lanes.has_due:
            return True
        if not head:
            return False
        return (
            self.flushing
            or head.count >= self._limit
            or head.size_bytes >= self._batch_bytes
            or head.queued_at + self.policy.batch_delay_s <= now
            or head.size_bytes * 4 >= self.policy.head_bytes
        )

    def _release_ends(self, now: float) -> None:
        oldest = _oldest(self._outstanding)
        while self._held and (oldest is None or oldest.first > self._held[0].first):
            chunk = self._held.popleft()
            chunk.queued_at = now
            self._head.push(chunk)

    def _cut_by_lane(self, lanes: dict[Lane, bool]) -> tuple[list[Piece], int]:
        """Lines that are due, then the queue; what is there of a lane that has a line joins that line."""
        spare_suspects = bool(self._bus.failures and self._head)
        taken, size_bytes, is_full = self._lanes.take_due(self._limit, self._batch_bytes, lanes, spare_suspects=spare_suspects)
        count, scanned = len(taken), 0
        while self._head and not is_full and count < self._limit and scanned < _SCAN_RECORDS:
            pieces, _ = self._head.cut(self._limit - count, self._batch_bytes - size_bytes, at_least=0 if taken else 1)
            is_full = not pieces
            for piece in pieces:
                scanned += piece.stop - piece.start
                for part in self._lanes.sort_out(piece, lanes):
                    taken.append(part)
                    count += part.stop - part.start
                    size_bytes += part.size_bytes
        return taken, size_bytes

    # --- what came of a send -------------------------------------------------------------------------------------------------

    def settle(self, batch: Batch, failures: Sequence[Failure], now: float) -> None:
        """A send returned: all records are confirmed but those in `failures`."""
        errors = {failure.index: failure.error for failure in failures}
        if errors and not 0 <= min(errors) <= max(errors) < len(batch):
            self.fail(batch, TransientDeliveryError("the bus reported failures of records that it was not given"), now)
            return
        is_for_all = len(errors) == len(batch) and not any(failure.is_local for failure in failures)
        if is_for_all and not any(isinstance(error, TerminalDeliveryError) for error in errors.values()):
            self.fail(batch, errors[0], now)
            return
        self._land(batch)
        confirmed_before = self._confirmed
        if len(batch) > len(errors):
            self._confirmed += len(batch) - len(errors)
            self._bus.failures = 0
            self._isolated = 0
            self._limit = min(self._limit * 2, self._batch_records)
        if errors:
            self._settle_singly(batch, errors, confirmed_before, now)
        else:
            confirmed = self.by_case["confirmed"]
            for piece in batch.pieces:
                for case, count in piece.cases.items():
                    confirmed[case] += count
                self._resolve(piece.chunk.arrival, piece.stop - piece.start)
            self._forget(len(batch), batch.size_bytes)
        self._unlock(batch)

    def _settle_singly(self, batch: Batch, errors: dict[int, DeliveryError], confirmed_before: int, now: float) -> None:
        failed: dict[Lane, list[Chunk]] = {}
        reasons: dict[Lane, DeliveryError] = {}
        for index, chunk in enumerate(singles(batch.pieces)):
            error, route = errors.get(index), chunk.records.routes[0]
            if error is None:
                self.by_case["confirmed"][route.payload_case] += 1
                self._resolve(chunk.arrival, 1)
                self._forget(1, chunk.size_bytes)
                continue
            self.last_error = str(error)
            if isinstance(error, TerminalDeliveryError):
                self._bury(chunk, str(error))
            else:
                failed.setdefault(route.lane, []).append(chunk)
                reasons.setdefault(route.lane, error)
        for lane, chunks in failed.items():
            self._fail_lane(lane, chunks, reasons[lane], confirmed_before, now)

    def fail(self, batch: Batch, error: BaseException, now: float) -> None:
        """A send raised: of every record it is unknown whether it arrived, or, where the error is Terminal, none did nor will."""
        self._land(batch)
        if isinstance(error, TerminalDeliveryError):
            self.last_error = str(error)
            for chunk in singles(batch.pieces):
                self._bury(chunk, str(error))
        else:
            self.connected = False
            self._pause(self._bus, error, now)
            if not (len(batch) == 1 and self._set_aside(next(singles(batch.pieces)), error, now)):
                self._limit = max(1, len(batch) // 2)
                self._count_retried(batch.records)
                self._returned.extend(batch.pieces)
        self._unlock(batch)

    def _set_aside(self, chunk: Chunk, error: BaseException, now: float) -> bool:
        """It may be this one record that makes the bus fail: others are tried, and once one of them passes, its retries count."""
        lane = chunk.records.routes[0].lane
        if not self._lanes.is_suspect(lane):
            if self._isolated >= _ISOLATED_AT_MOST:
                return False
            self._isolated += 1
        self._fail_lane(lane, [chunk], error, self._confirmed, now, is_suspect=True)
        return True

    def _fail_lane(
        self,
        lane: Lane,
        chunks: list[Chunk],
        error: BaseException,
        confirmed_before: int,
        now: float,
        *,
        is_suspect: bool = False,
    ) -> None:
        """Puts single records that failed back into the line of their lane; the first of them has used up a try."""
        line = self._lanes.note_failure(lane, chunks[0].first, confirmed_before, is_suspect=is_suspect)
        if line.attempts > self.policy.max_retries and self._confirmed > line.confirmed_before:
            line.is_suspect = False
            self._bury(chunks.pop(0), f"gave up after {line.attempts} tries: {error}")
        if chunks:
            self._count_retried([chunk.records[0] for chunk in chunks])
            line.put_back(chunks)
        self._lanes.pause(lane, now + self.policy.backoff_s(line.attempts, self._random))

    def _land(self, batch: Batch) -> None:
        del self._in_flight[batch.number]
        self._flying -= len(batch)

    def _unlock(self, batch: Batch) -> None:
        self._lanes.release(batch.lanes)
        if not self._in_flight and self._returned:
            returned, self._returned = sorted(self._returned, key=lambda piece: piece.first), []
            self._head.push_front(self._lanes.give_back(returned))

    def _resolve(self, arrival: Arrival, count: int) -> None:
        arrival.unresolved -= count
        if arrival.unresolved:
            return
        if arrival.mark is not None:
            self.acked.append(arrival.mark)
        if arrival.ends_session is not None:
            self.ended.append(arrival.ends_session)

    def _forget(self, count: int, size_bytes: int) -> None:
        self._pending -= count
        self._memory_bytes -= size_bytes + count * RECORD_MEMORY_BYTES

    def _count_retried(self, records: Sequence[Record]) -> None:
        self.retried += len(records)
        self._count("retried", records)

    def _count(self, what: str, records: Iterable[Record]) -> None:
        self.by_case[what].update([record.route.payload_case for record in records])

    # --- dead letters --------------------------------------------------------------------------------------------------------

    def _bury(self, chunk: Chunk, reason: str) -> None:
        self._to_bury.append(Burial(chunk, reason))

    def next_burial(self, now: float) -> list[Burial]:
        """What is to be written to the dead letters now; the answer comes by `buried` or `burial_failed`."""
        if self._burying or not self._to_bury or now < self._burial.until:
            return []
        self._burying, self._to_bury = self._to_bury, []
        return self._burying

    def buried(self) -> None:
        """They are durable."""
        self._burial.failures = 0
        for burial in self._burying:
            self._dead_lettered += 1
            self.by_case["dead_lettered"][burial.record.route.payload_case] += 1
            self._resolve(burial.chunk.arrival, 1)
            self._forget(1, burial.chunk.size_bytes)
        self._burying = []

    def burial_failed(self, error: BaseException, now: float) -> None:
        """They wait, and are tried again."""
        self._to_bury, self._burying = self._burying + self._to_bury, []
        self._pause(self._burial, error, now)

    # --- the spool -----------------------------------------------------------------------------------------------------------

    def _advance_tail(self, now: float) -> None:
        """What no longer is behind anything on disk need not go there."""
        if self.policy.write_ahead or self._spilling or self._unread:
            return
        while self._tail:
            chunk = self._tail[0]
            memory = chunk.size_bytes + len(chunk) * RECORD_MEMORY_BYTES
            if not self._fits(memory):
                return
            self._tail.popleft()
            self._tail_memory_bytes -= memory
            self._pending -= len(chunk)
            self._enter_direct(chunk, now)

    def next_spill(self, now: float) -> Spill | None:
        """What is to be written to the spool now; the answer comes by `spilled` or `spill_failed`."""
        self._advance_tail(now)
        if self._spilling or not self._tail or not self.policy.spills or now < self._writing.until:
            return None
        self._spilling = True
        return Spill(list(self._tail), self._has_direct)

    def spilled(self, spill: Spill, marks: Sequence[Mark], now: float) -> list[Mark]:
        """They are on disk, at these marks; returns those that stay in memory too, and need not be read back."""
        self._spilling = self._has_direct = False
        self._writing.failures = 0
        kept = []
        for chunk, mark in zip(spill.chunks, marks, strict=True):
            self._tail.popleft()
            memory = chunk.size_bytes + len(chunk) * RECORD_MEMORY_BYTES
            self._tail_memory_bytes -= memory
            chunk.arrival.mark = mark
            self.spooled += len(chunk)
            self.by_case["spooled"].update(Piece(chunk, 0, len(chunk)).cases)
            if self._unread == 0 and self._fits(memory):
                self._enter(chunk, now)
                kept.append(mark)
            else:
                self._unread += len(chunk)
                self._pending -= len(chunk)
        return kept

    def spill_failed(self, error: BaseException, now: float) -> None:
        """They stay in memory, and are tried again."""
        self._spilling = False
        self._pause(self._writing, error, now)

    def spool_has_room(self) -> None:
        """What could not be written may be tried at once."""
        self._writing.until = 0.0

    def next_load(self, now: float) -> int:
        """How many bytes are to be read back from the spool now; the answer comes by `loaded` or `load_failed`."""
        room = self.policy.head_bytes - self._memory_bytes
        if self._loading or not self._unread or now < self._reading.until or room < self.policy.head_bytes // 4:
            return 0
        self._loading = True
        return min(room // 2, _LOAD_BYTES)

    def loaded(self, chunks: Sequence[Loaded], lost: int, now: float) -> None:
        """The next records of the spool, and how many of them turned out to be damaged."""
        self._loading = False
        self._reading.failures = 0
        self._unread -= lost
        self._dropped += lost
        for loaded in chunks:
            arrival = Arrival(0, len(loaded.records), loaded.accepted_at)
            arrival.mark = loaded.mark
            first = loaded.records[0].route
            if first.payload_case == "session_end":
                arrival.ends_session = first.session_id
            self._unread -= len(loaded.records)
            self._pending += len(loaded.records)
            self._enter(Chunk(loaded.records, loaded.size_bytes, arrival, 0, now), now)

    def load_failed(self, error: BaseException, now: float) -> None:
        """Tried again."""
        self._loading = False
        self._pause(self._reading, error, now)

    # --- what can be seen ----------------------------------------------------------------------------------------------------

    @property
    def books(self) -> Books:
        """Where all records are."""
        return Books(
            accepted=self._accepted,
            carried=self._carried,
            queued=self._pending - self._flying,
            in_flight=self._flying,
            spooled=self._unread + self._left_in_spool,
            confirmed=self._confirmed,
            dead_lettered=self._dead_lettered,
            dropped=self._dropped,
        )

    @property
    def failures(self) -> int:
        """How often the bus as a whole failed since something was last confirmed."""
        return self._bus.failures

    @property
    def is_idle(self) -> bool:
        """Nothing is left to be done."""
        return self._pending == 0 and self._unread == 0

    @property
    def memory_bytes(self) -> int:
        """What the queue and all that is in flight takes."""
        return self._memory_bytes + self._tail_memory_bytes

    @property
    def is_spooling(self) -> bool:
        """Whether what comes now is behind something on disk, without being asked to be."""
        return bool(self._unread or (self._tail and not self.policy.write_ahead))

    @property
    def oldest_at(self) -> float | None:
        """When the oldest record that is in memory and not resolved was accepted."""
        found = [a.accepted_at for a in (_oldest(self._outstanding), _oldest(self._ends)) if a is not None]
        return min(found) if found else self._tail[0].arrival.accepted_at if self._tail else None

    def deadline(self, now: float) -> float | None:
        """When to ask again though nothing is reported."""
        times: list[float] = []
        if not self.connected:
            if not self._connecting and not self._in_flight:
                times.append(self._bus.until)
        elif len(self._in_flight) < self._sends_at_once and not self._holds_back:
            if self._lanes.has_due:
                times.append(now)
            if self._lanes.next_pause_at is not None:
                times.append(self._lanes.next_pause_at)
            if self._head:
                times.append(now if self._is_due(now) else self._head.queued_at + self.policy.batch_delay_s)
        waits = ((self._writing, self._tail), (self._reading, self._unread), (self._burial, self._to_bury))
        times.extend(pause.until for pause, waiting in waits if waiting and pause.until > now)
        return min(times) if times else None

    # --- shutdown ------------------------------------------------------------------------------------------------------------

    def abandon(self) -> list[Leftover]:
        """Ends the delivery: what is left in memory only, in order. Of what was in flight it is unknown whether it arrived."""
        pieces = [*self._head.pieces, *self._returned]
        for batch in self._in_flight.values():
            pieces.extend(batch.pieces)
        buried = (burial.chunk for burial in (*self._burying, *self._to_bury))
        pieces.extend(Piece(chunk, 0, len(chunk)) for chunk in (*self._held, *self._lanes, *buried))
        leftovers: list[Leftover] = []
        for piece in sorted(pieces, key=lambda piece: piece.first):
            arrival = piece.chunk.arrival
            if arrival.mark is None:
                _leave(leftovers, arrival.after_segment, piece.records)
        for chunk in self._tail:
            _leave(leftovers, None, chunk.records)
        return leftovers

    def abandoned(self, saved: int) -> None:
        """So many of them are in the spool now; those that were there before count too."""
        on_disk = sum(arrival.unresolved for arrival in (*self._outstanding, *self._ends) if arrival.mark is not None)
        self._left_in_spool = saved + on_disk
        self._pending -= self._left_in_spool
        self._flying = 0


def _leave(leftovers: list[Leftover], after_segment: int | None, records: Sequence[Record]) -> None:
    if not leftovers or leftovers[-1].after_segment != after_segment:
        leftovers.append(Leftover(after_segment, []))
    leftovers[-1].records.extend(records)


def _oldest(arrivals: deque[Arrival]) -> Arrival | None:
    while arrivals and not arrivals[0].unresolved:
        arrivals.popleft()
    return arrivals[0] if arrivals else None
