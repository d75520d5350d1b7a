"""What the options of a bus say about delivery: batches, bounds, retries.

Invariant: plain numbers; whoever asks brings the clock and the dice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from .contract import Limits

__all__ = ["Overflow", "Policy"]

Overflow = Literal["spool", "block", "drop"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of a bus say about delivery, within its limits."""

    batch_records: int
    batch_bytes: int
    batch_delay_s: float
    queue_bytes: int
    overflow: Overflow = "spool"
    write_ahead: bool = False
    max_retries: int = 10
    backoff_base_s: float = 0.1
    backoff_max_s: float = 30.0
    max_refusals: int = 1000

    @classmethod
    def from_options(cls, options: Mapping[str, Any], limits: Limits, *, write_ahead: bool) -> Policy:
        """From what `Settings.for_bus` gives."""
        return cls(
            batch_records=options["max_batch_size"],
            batch_bytes=options.get("max_batch_bytes") or limits.batch_bytes,
            batch_delay_s=options["max_batch_delay_ms"] / 1000,
            queue_bytes=options["queue_max_bytes"],
            overflow=options["overflow"],
            write_ahead=write_ahead,
            max_retries=options["max_retries"],
            backoff_base_s=options["retry_backoff_ms"] / 1000,
            backoff_max_s=options["retry_backoff_max_ms"] / 1000,
            max_refusals=options["max_refusals"],
        )

    def backoff_s(self, attempt: int, random: Callable[[], float]) -> float:
        """Exponential, bounded, and spread over its upper half, so that many clients do not come back at once."""
        longest = min(self.backoff_max_s, self.backoff_base_s * 2.0 ** min(attempt - 1, 32))
        return longest * (0.5 + 0.5 * random())

    @property
    def spills(self) -> bool:
        """Whether what comes may go to disk."""
        return self.write_ahead or self.overflow == "spool"

    @property
    def tail_memory_bytes(self) -> int:
        """How much may wait to be written to disk."""
        return self.queue_bytes // 8

    @property
    def send_memory_bytes(self) -> int:
        """How much may wait to be sent, or be in flight."""
        return self.queue_bytes - self.tail_memory_bytes if self.spills else self.queue_bytes
