"""What one bus shows of itself: its health and its receipt, metrics, a log line for each change of state, a summary now and then.

Invariant: it looks at the delivery, and changes nothing; nothing here is done for each event.
"""

from __future__ import annotations

from collections.abc import Mapping

from ... import telemetry
from ..dead_letters import DeadLetters
from ..delivery import Delivery
from ..delivery.in_flight import Batch
from ..receipt import BusHealth, BusState, Receipt
from ..spool import Spool
from .clocks import Clocks

__all__ = ["BusMonitor"]

_SUMMARY_S = 30.0

_BACK: Mapping[BusState, str] = {"connecting": "connected", "retrying": "recovered", "paused": "recovered"}
"""What is said when a bus is connected again, by what it was before."""

_COUNTERS: Mapping[str, telemetry.Metric] = {
    "published": telemetry.EVENTS_PUBLISHED,
    "confirmed": telemetry.EVENTS_CONFIRMED,
    "retried": telemetry.EVENTS_RETRIED,
    "dropped": telemetry.EVENTS_DROPPED,
    "dead_lettered": telemetry.EVENTS_DEAD_LETTERED,
    "spooled": telemetry.EVENTS_SPOOLED,
}


class BusMonitor:
    """Shows the delivery to one bus."""

    def __init__(self, bus: str, delivery: Delivery, spool: Spool, dead_letters: DeadLetters, clocks: Clocks) -> None:
        self._bus = bus
        self._delivery = delivery
        self._spool = spool
        self._dead_letters = dead_letters
        self._clocks = clocks
        self._log = telemetry.get_logger(f"eventbus.{bus}")
        self._state: BusState = "connecting"
        # What the counters of `telemetry` have already, by counter and payload case.
        self._exported: dict[tuple[str, str], int] = {}
        # The figures of the last summary.
        self._summarized: tuple[int, ...] = ()
        # When the next summary is due.
        self._next_summary_at: float | None = None
        # When each complaint about dead letters may be logged again.
        self._next_complaint_at: dict[str, float] = {}

    @property
    def receipt(self) -> Receipt:
        """The accounts as they are now."""
        return Receipt.of(self._bus, self._delivery.books, self._delivery.retried, self._last_error)

    @property
    def health(self) -> BusHealth:
        """The bus as it is now."""
        books, oldest_at = self._delivery.books, self._delivery.oldest_at
        is_waiting = oldest_at is not None and self._state != "closed"
        return BusHealth(
            bus=self._bus,
            state=self._state,
            queue_events=books.queued,
            queue_bytes=self._delivery.memory_bytes,
            in_flight_events=books.in_flight,
            spool_events=books.spooled,
            spool_bytes=self._spool.size_bytes,
            oldest_unconfirmed_seconds=self._age_of(oldest_at) if is_waiting else None,
            dropped_events=books.dropped,
            dead_lettered_events=books.dead_lettered,
            last_error=self._last_error,
        )

    @property
    def _last_error(self) -> str | None:
        """A server's own words may repeat what it was sent, a password too."""
        said = self._delivery.last_error
        return None if said is None else telemetry.redact(said)

    def _age_of(self, moment: float | None) -> float:
        return 0.0 if moment is None else self._clocks.now() - moment

    def note_state(self) -> None:
        """Logs a change of state, once."""
        delivery, before = self._delivery, self._state
        if delivery.is_paused:
            self._state = "paused"
        elif delivery.is_spooling:
            self._state = "spooling"
        elif delivery.failures and not (delivery.connected and delivery.is_idle):
            # Failures count until something is confirmed; where nothing waits, nothing will be.
            self._state = "retrying"
        elif delivery.connected:
            self._state = "connected"
        if self._state == before:
            return
        if self._state == "connected":
            self._log.info(
                {"connecting": "connected", "retrying": "recovered", "paused": "recovered"}.get(before, "drained"), bus=self._bus
            )
        else:
            log = self._log.error if self._state == "paused" else self._log.warning
            log(self._state, bus=self._bus, error=self._last_error)

    def note_closed(self) -> None:
        """The courier has let go of everything."""
        self._state = "closed"

    def note_dead_letters(self, count: int, reason: str) -> None:
        """Logs that there are some, not more often than summaries."""
        if self._may_complain("refused"):
            self._log.error("events went to the dead letters", bus=self._bus, events=count, reason=reason)

    def note_stuck_letters(self, count: int, error: BaseException) -> None:
        """Logs that they can't be written, not more often than summaries."""
        if self._may_complain("stuck"):
            self._log.error("dead letters wait, as they can't be written", bus=self._bus, events=count, error=str(error))

    def _may_complain(self, about: str) -> bool:
        now = self._clocks.now()
        if now < self._next_complaint_at.get(about, 0.0):
            return False
        self._next_complaint_at[about] = now + _SUMMARY_S
        return True

    def note_answer(self, batch: Batch) -> None:
        """A batch was answered."""
        telemetry.BATCH_RECORDS.labels(self._bus).observe(len(batch))
        # One observation for records that came together.
        now = self._clocks.now()
        together = {(group.arrival, group.records.routes[start].payload_case) for group, start, _ in batch.ranges}
        for arrival, case in together:
            telemetry.CONFIRM_SECONDS.labels(self._bus, case).observe(now - arrival.accepted_at)

    def look(self) -> None:
        """Brings metrics up to date, and logs a summary when it is time."""
        delivery = self._delivery
        for name, metric in _COUNTERS.items():
            for case, total in delivery.by_case[name].items():
                known = self._exported.get((name, case), 0)
                if total > known:
                    metric.labels(self._bus, case).inc(total - known)
                    self._exported[name, case] = total
        telemetry.QUEUE_BYTES.labels(self._bus).set(delivery.memory_bytes)
        telemetry.SPOOL_EVENTS.labels(self._bus).set(delivery.books.spooled)
        telemetry.SPOOL_BYTES.labels(self._bus).set(self._spool.size_bytes)
        telemetry.SPOOL_MAX_BYTES.labels(self._bus).set(self._spool.max_bytes)
        telemetry.DEAD_LETTER_BYTES.labels(self._bus).set(self._dead_letters.size_bytes)
        telemetry.DEAD_LETTER_MAX_BYTES.labels(self._bus).set(self._dead_letters.max_bytes)
        telemetry.BUS_PAUSED.labels(self._bus).set(int(delivery.is_paused))
        telemetry.OLDEST_UNCONFIRMED_SECONDS.labels(self._bus).set(self._age_of(delivery.oldest_at))
        self._summarize()

    def _summarize(self) -> None:
        now = self._clocks.now()
        if self._next_summary_at is None:
            self._next_summary_at = now + _SUMMARY_S
        books = self._delivery.books
        waiting = books.queued + books.in_flight
        retried = self._delivery.retried
        figures = (books.accepted, books.confirmed, retried, books.dropped, books.dead_lettered, waiting, books.spooled)
        if now < self._next_summary_at or figures == self._summarized:
            return
        self._next_summary_at, self._summarized = now + _SUMMARY_S, figures
        names = ("published", "confirmed", "retried", "dropped", "dead_lettered", "queued", "spooled")
        self._log.info("summary", bus=self._bus, state=self._state, **dict(zip(names, figures, strict=True)))
