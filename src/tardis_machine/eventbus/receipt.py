"""What a bus has to show for itself: a receipt when it is closed, its health at any time.

Invariant: plain data, ready to be printed or sent as JSON; no event and no secret is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from .delivery.accounts import Books

__all__ = ["BusHealth", "BusState", "Receipt", "undelivered"]

BusState = Literal["connecting", "connected", "retrying", "paused", "spooling", "closed"]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the events of one bus: `published + carried` = confirmed + dead-lettered + dropped + unconfirmed."""

    bus: str
    published: int
    carried: int
    """Found in the spool at start."""
    confirmed: int
    retried: int
    spooled: int
    """Of the unconfirmed: those that are in the spool, and are sent at the next start."""
    dead_lettered: int
    dropped: int
    unconfirmed: int
    last_error: str | None = None

    @classmethod
    def of(cls, bus: str, books: Books, retried: int, last_error: str | None) -> Receipt:
        """From the books as they are now."""
        return cls(
            bus=bus,
            published=books.accepted,
            carried=books.carried,
            confirmed=books.confirmed,
            retried=retried,
            spooled=books.spooled,
            dead_lettered=books.dead_lettered,
            dropped=books.dropped,
            unconfirmed=books.queued + books.in_flight + books.spooled,
            last_error=last_error,
        )

    @property
    def lost(self) -> int:
        """Unconfirmed and not in the spool either."""
        return self.unconfirmed - self.spooled

    @property
    def is_complete(self) -> bool:
        """Every event was confirmed by the bus."""
        return self.unconfirmed == self.dead_lettered == self.dropped == 0

    def __str__(self) -> str:
        counts = ("published", "confirmed", "retried", "spooled", "dead_lettered", "dropped", "unconfirmed")
        text = ", ".join(f"{getattr(self, name)} {name.replace('_', '-')}" for name in counts)
        found = f" ({self.carried} from the spool of an earlier run)" if self.carried else ""
        reason = f"; last error: {self.last_error}" if self.last_error and not self.is_complete else ""
        return f"{self.bus}: {text}{found}{reason}"


def undelivered(receipts: Iterable[Receipt]) -> str | None:
    """One sentence about everything that is unconfirmed, None where nothing is."""
    parts = []
    for receipt in receipts:
        if receipt.unconfirmed:
            safe = "all in the spool" if not receipt.lost else f"{receipt.spooled} in the spool, {receipt.lost} lost"
            reason = f": {receipt.last_error}" if receipt.last_error else ""
            parts.append(f"{receipt.unconfirmed} events to {receipt.bus} are unconfirmed ({safe}){reason}")
    return "; ".join(parts) or None


class BusHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One bus as `/health-check` shows it."""

    bus: str
    state: BusState
    queue_events: int
    queue_bytes: int
    in_flight_events: int
    spool_events: int
    spool_bytes: int
    oldest_unconfirmed_seconds: float | None
    dropped_events: int
    dead_lettered_events: int
    last_error: str | None
