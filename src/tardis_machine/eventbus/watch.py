"""What one bus shows of itself while it works: metrics, a log line for each change of state, a summary now and then.

Invariant: it looks at the delivery, and changes nothing; nothing here is done for each event.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import telemetry
from .batching import Batch
from .delivery import Delivery
from .receipt import BusState

__all__ = ["Watch"]

_SUMMARY_S = 30.0

_COUNTERS: Mapping[str, telemetry.Metric] = {
    "published": telemetry.EVENTS_PUBLISHED,
    "confirmed": telemetry.EVENTS_CONFIRMED,
    "retried": telemetry.EVENTS_RETRIED,
    "dropped": telemetry.EVENTS_DROPPED,
    "dead_lettered": telemetry.EVENTS_DEAD_LETTERED,
    "spooled": telemetry.EVENTS_SPOOLED,
}


class Watch:
    """Watches the delivery to one bus."""

    def __init__(self, bus: str) -> None:
        self.state: BusState = "connecting"
        self._bus = bus
        self._log = telemetry.get_logger(f"eventbus.{bus}")
        # What the counters of `telemetry` have already.
        self._exported: dict[tuple[str, str], int] = {}
        self._summarized: tuple[int, ...] = ()
        self._next_summary_at: float | None = None
        self._next_complaint_at = 0.0

    def note_state(self, delivery: Delivery) -> None:
        """Logs a change of state, once."""
        before = self.state
        if delivery.is_spooling:
            self.state = "spooling"
        elif delivery.failures and not (delivery.connected and delivery.is_idle):
            # Failures count until something is confirmed; where nothing waits, nothing will be.
            self.state = "retrying"
        elif delivery.connected:
            self.state = "connected"
        if self.state == before:
            return
        if self.state == "connected":
            self._log.info({"connecting": "connected", "retrying": "recovered"}.get(before, "drained"), bus=self._bus)
        else:
            self._log.warning(self.state, bus=self._bus, error=delivery.last_error)

    def note_dead_letters(self, count: int, reason: str, now: float) -> None:
        """Logs that there are some, not more often than summaries."""
        if now >= self._next_complaint_at:
            self._next_complaint_at = now + _SUMMARY_S
            self._log.error("events went to the dead letters", bus=self._bus, events=count, reason=reason)

    def observe(self, batch: Batch, now: float) -> None:
        """A batch was answered."""
        telemetry.BATCH_RECORDS.labels(self._bus).observe(len(batch))
        # One observation for records that came together.
        together = {(chunk.arrival, chunk.records.routes[start].payload_case) for chunk, start, _ in batch.pieces}
        for arrival, case in together:
            telemetry.CONFIRM_SECONDS.labels(self._bus, case).observe(now - arrival.accepted_at)

    def look(self, delivery: Delivery, now: float, *, spool_bytes: int, spool_max_bytes: int) -> None:
        """Brings metrics up to date, and logs a summary when it is time."""
        for name, metric in _COUNTERS.items():
            for case, total in delivery.by_case[name].items():
                known = self._exported.get((name, case), 0)
                if total > known:
                    metric.labels(self._bus, case).inc(total - known)
                    self._exported[name, case] = total
        telemetry.QUEUE_BYTES.labels(self._bus).set(delivery.memory_bytes)
        telemetry.SPOOL_EVENTS.labels(self._bus).set(delivery.books.spooled)
        telemetry.SPOOL_BYTES.labels(self._bus).set(spool_bytes)
        telemetry.SPOOL_MAX_BYTES.labels(self._bus).set(spool_max_bytes)
        oldest_at = delivery.oldest_at
        telemetry.OLDEST_UNCONFIRMED_SECONDS.labels(self._bus).set(0.0 if oldest_at is None else now - oldest_at)
        self._summarize(delivery, now)

    def _summarize(self, delivery: Delivery, now: float) -> None:
        if self._next_summary_at is None:
            self._next_summary_at = now + _SUMMARY_S
        books = delivery.books
        waiting = books.queued + books.in_flight
        figures = (books.accepted, books.confirmed, delivery.retried, books.dropped, books.dead_lettered, waiting, books.spooled)
        if now < self._next_summary_at or figures == self._summarized:
            return
        self._next_summary_at, self._summarized = now + _SUMMARY_S, figures
        names = ("published", "confirmed", "retried", "dropped", "dead_lettered", "queued", "spooled")
        self._log.info("summary", bus=self._bus, state=self.state, **dict(zip(names, figures, strict=True)))
