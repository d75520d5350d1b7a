"""Which records go into the next batch, and what is done with those that failed.

Records wait in the queue or, behind one of their lane that failed or is on its way, in the backlog of their lane. From there they
go into a batch, and out of it they are confirmed, undeliverable, or back where they wait.

Invariant: records of one lane are handed out in the order of their ordinals, the next one only when those before it are resolved
or travel in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from ..contract import Failure, Limits
from ..policy import Policy
from .batch_size import BatchSize
from .connection_state import ConnectionState
from .disk_work import Undeliverable
from .in_flight import Batch, InFlight
from .lanes import Lane, Lanes
from .record_groups import RecordGroup, RecordRange, singles, whole
from .refusals import Refusals
from .retries import Retries
from .send_outcome import SendOutcome
from .send_queue import SendQueue

__all__ = ["SendScheduler"]

# Records that are looked through for one batch, before the event loop gets its turn: milliseconds.
_SCAN_RECORDS = 2_000
# Sends that may run at once without being full, where a lane is in one send at a time.
_PARTIAL_SENDS = 2


class SendScheduler:
    """The batches of one bus."""

    def __init__(self, policy: Policy, limits: Limits, random: Callable[[], float], connection: ConnectionState) -> None:
        self._policy = policy
        self._connection = connection
        # How many sends the bus takes at once.
        self._concurrent_sends = limits.concurrent_sends
        # How large the next batch may be.
        self._size = BatchSize(policy, limits)
        # Ready to be sent.
        self._queue = SendQueue()
        # What waits for an earlier record of its lane.
        self._lanes = Lanes(
            locks=limits.ordered
            and (not limits.keeps_order_in_batch or (limits.concurrent_sends > 1 and not limits.keeps_order_across_sends)),
            one_record_per_batch=limits.ordered and not limits.keeps_order_in_batch,
        )
        # Without locks, a backlog that goes on must not overtake an older send that may still fail.
        self._backlogs_go_alone = limits.ordered and not self._lanes.locks
        # What was given up in a row.
        self._refusals = Refusals(policy.max_refusals)
        # What failed, and may be given up.
        self._retries = Retries(policy, self._lanes, self._refusals, random)
        # Being sent, or back from a send that failed.
        self._in_flight = InFlight()
        # Partial batches go at once.
        self.is_flushing = False

    @property
    def sends(self) -> int:
        """How many sends are running."""
        return len(self._in_flight)

    @property
    def is_paused(self) -> bool:
        """Whether a destination refused so many in a row that nothing more of it is given up."""
        return self._refusals.is_paused

    @property
    def in_flight(self) -> Iterator[RecordRange]:
        """Records that are being sent."""
        for batch in self._in_flight:
            yield from batch.ranges

    @property
    def waiting(self) -> Iterator[RecordRange]:
        """Records that are to be sent."""
        yield from self._queue
        yield from self._in_flight.returned
        yield from map(whole, self._lanes)

    @property
    def _may_send(self) -> bool:
        return self._connection.is_connected and len(self._in_flight) < self._sends_at_once

    @property
    def _sends_at_once(self) -> int:
        # After a failure one send shows whether the bus is back.
        is_alone = self._connection.failures or (self._backlogs_go_alone and self._lanes)
        return 1 if is_alone else self._concurrent_sends

    def adopt(self, limits: Limits) -> None:
        """Takes over what the service said of itself when it was connected."""
        self._size.adopt(limits)

    def push(self, group: RecordGroup) -> None:
        """A group is ready to be sent."""
        self._queue.push(group)

    def next_batch(self, now: float) -> Batch | None:
        """What is to be sent now; `settle` or `fail` must follow."""
        if not self._may_send:
            return None
        self._lanes.end_pauses(now)
        if self._holds_back or not self._is_due(now):
            return None
        lanes: dict[Lane, bool] = {}
        if self._lanes.locks or self._lanes:
            ranges, size_bytes = self._cut_by_lane(lanes)
        else:
            ranges, size_bytes = self._queue.cut(self._size.records, self._size.bytes)
        return self._in_flight.start(ranges, size_bytes, list(lanes)) if ranges else None

    @property
    def _holds_back(self) -> bool:
        """Lanes that are kept to one send each would else be scattered over as many sends as there may be, a few in each."""
        if not self._lanes.locks or len(self._in_flight) < _PARTIAL_SENDS:
            return False
        return self._lanes.due_count + self._queue.count < self._size.records

    def _is_due(self, now: float) -> bool:
        if self._lanes.due_count:
            return True
        queue = self._queue
        if not queue:
            return False
        return (
            self.is_flushing
            or queue.count >= self._size.records
            or queue.size_bytes >= self._size.bytes
            or queue.queued_at + self._policy.batch_delay_s <= now
            or queue.size_bytes * 4 >= self._policy.send_memory_bytes
        )

    def _cut_by_lane(self, lanes: dict[Lane, bool]) -> tuple[list[RecordRange], int]:
        """Backlogs that are due, then the queue; what the queue has of a lane with a backlog joins that backlog."""
        max_records, max_bytes = self._size.records, self._size.bytes
        spare_suspects = bool(self._connection.failures and self._queue)
        taken, size_bytes, is_full = self._lanes.take_due(max_records, max_bytes, lanes, spare_suspects=spare_suspects)
        count, scanned = len(taken), 0
        while self._queue and not is_full and count < max_records and scanned < _SCAN_RECORDS:
            ranges, _ = self._queue.cut(max_records - count, max_bytes - size_bytes, at_least=0 if taken else 1)
            is_full = not ranges
            for range_ in ranges:
                scanned += range_.stop - range_.start
                for part in self._lanes.sort_out(range_, lanes):
                    taken.append(part)
                    count += part.stop - part.start
                    size_bytes += part.size_bytes
        return taken, size_bytes

    def deadlines(self, now: float) -> Iterator[float]:
        """When there may be a batch though nothing is reported."""
        if not self._may_send or self._holds_back:
            return
        if self._lanes.due_count:
            yield now
        if self._lanes.next_pause_at is not None:
            yield self._lanes.next_pause_at
        if self._queue:
            yield now if self._is_due(now) else self._queue.queued_at + self._policy.batch_delay_s

    def settle(self, batch: Batch, failures: Sequence[Failure], now: float) -> SendOutcome:
        """A send returned: all records are confirmed but those in `failures`."""
        errors = {failure.index: failure.error for failure in failures}
        if errors and not 0 <= min(errors) <= max(errors) < len(batch):
            return self.fail(batch, TransientDeliveryError("the bus reported failures of records that it was not given"), now)
        self._doubt_refusals(batch, errors)
        is_for_all = len(errors) == len(batch) and not any(failure.is_local for failure in failures)
        if is_for_all and not any(isinstance(error, TerminalDeliveryError) for error in errors.values()):
            return self.fail(batch, errors[0], now)
        self._in_flight.land(batch)
        confirmed_before = self._retries.confirmed
        confirmed_count = len(batch) - len(errors)
        if confirmed_count:
            self._retries.note_confirmed(confirmed_count)
            self._connection.note_confirmed()
            self._size.grow()
        if errors:
            outcome = self._settle_singly(batch, errors, confirmed_before, now)
        else:
            outcome = SendOutcome(batch.ranges, confirmed_count, batch.size_bytes)
        self._free_lanes(batch)
        return outcome

    def _doubt_refusals(self, batch: Batch, errors: dict[int, DeliveryError]) -> None:
        """Makes Transient what is not to be given up, as its destination refuses everything."""
        routes = batch.records.routes
        if self._refusals:
            self._refusals.note_confirmed(route.destination for index, route in enumerate(routes) if index not in errors)
        for index, error in errors.items():
            if isinstance(error, TerminalDeliveryError) and not self._refusals.admit([routes[index].destination]):
                errors[index] = TransientDeliveryError(self._refusals.explain(error))

    def _settle_singly(self, batch: Batch, errors: dict[int, DeliveryError], confirmed_before: int, now: float) -> SendOutcome:
        confirmed: list[RecordRange] = []
        outcome = SendOutcome(confirmed, len(batch) - len(errors))
        failed: dict[Lane, list[RecordGroup]] = {}
        reasons: dict[Lane, DeliveryError] = {}
        for index, group in enumerate(singles(batch.ranges)):
            error = errors.get(index)
            if error is None:
                confirmed.append(whole(group))
                outcome.confirmed_bytes += group.size_bytes
                continue
            outcome.error = str(error)
            if isinstance(error, TerminalDeliveryError):
                outcome.undeliverable.append(Undeliverable(group, str(error)))
            else:
                lane = group.records.routes[0].lane
                failed.setdefault(lane, []).append(group)
                reasons.setdefault(lane, error)
        for lane, groups in failed.items():
            self._retries.retry(lane, groups, reasons[lane], confirmed_before, now, outcome)
        return outcome

    def fail(self, batch: Batch, error: BaseException, now: float) -> SendOutcome:
        """A send raised: of every record it is unknown whether it arrived, or, where the error is Terminal, none did nor will.

        They are given up then, unless nothing was confirmed for too long.
        """
        self._in_flight.land(batch)
        is_refused = isinstance(error, TerminalDeliveryError)
        is_given_up = is_refused and self._refusals.admit(route.destination for route in batch.records.routes)
        outcome = SendOutcome(error=self._refusals.explain(error) if is_refused and not is_given_up else str(error))
        if is_given_up:
            outcome.undeliverable = [Undeliverable(group, str(error)) for group in singles(batch.ranges)]
        else:
            self._connection.note_failure(now)
            if not (len(batch) == 1 and self._retries.set_aside(next(singles(batch.ranges)), error, now, outcome)):
                self._size.shrink(len(batch))
                self._in_flight.put_back(batch)
                outcome.retried.extend(batch.ranges)
        self._free_lanes(batch)
        return outcome

    def _free_lanes(self, batch: Batch) -> None:
        self._lanes.release(batch.lanes)
        if returned := self._in_flight.take_returned():
            self._queue.push_front(self._lanes.give_back(returned))
