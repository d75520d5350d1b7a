"""What became of the records of one send.

Invariant: every record of the batch is in exactly one of the three lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .disk_work import Undeliverable
from .record_groups import RecordRange

__all__ = ["SendOutcome"]


class SendOutcome(msgspec.Struct):
    """Confirmed, to be sent again, or a dead letter."""

    confirmed: Sequence[RecordRange] = ()
    confirmed_count: int = 0
    """How many records are confirmed."""
    confirmed_bytes: int = 0
    """Their size as limits count it."""
    retried: list[RecordRange] = []
    undeliverable: list[Undeliverable] = []
    error: str | None = None
    """The last error among them."""
