"""Where the records of one bus are, in numbers.

Invariant: every record is counted in exactly one place.
"""

from __future__ import annotations

import msgspec

__all__ = ["Books", "DropReport"]


class Books(msgspec.Struct, frozen=True):
    """Where all records are: `accepted + carried` is the sum of the rest."""

    accepted: int
    carried: int
    """Found in the spool at start."""
    queued: int
    in_flight: int
    spooled: int
    """On disk only; those that are also in memory count there."""
    confirmed: int
    dead_lettered: int
    dropped: int

    @property
    def balanced(self) -> bool:
        places = self.queued + self.in_flight + self.spooled + self.confirmed + self.dead_lettered + self.dropped
        return self.accepted + self.carried == places


class DropReport(msgspec.Struct):
    """What was dropped since the last report."""

    count: int
    first_at: float
    last_at: float
