"""How large a batch may be.

Invariant: within the options and what the service takes. After a failure of a whole batch it is half of that batch, in case its
size was the reason; each success doubles it again.
"""

from __future__ import annotations

from ..contract import Limits
from ..policy import Policy

__all__ = ["BatchSize"]


class BatchSize:
    """The size of the next batch of one bus."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self._policy = policy
        # How many records a batch may hold when all is well.
        self._most_records = min(policy.batch_records, limits.batch_records)
        # How many it may hold now.
        self.records = self._most_records
        # How many bytes it may hold.
        self.bytes = min(policy.batch_bytes, limits.batch_bytes)

    def adopt(self, limits: Limits) -> None:
        """Takes over what the service said of itself when it was connected."""
        was_whole = self.records == self._most_records
        self._most_records = min(self._policy.batch_records, limits.batch_records)
        self.records = self._most_records if was_whole else min(self.records, self._most_records)
        self.bytes = min(self._policy.batch_bytes, limits.batch_bytes)

    def shrink(self, failed: int) -> None:
        """A batch of so many records failed as a whole."""
        self.records = max(1, failed // 2)

    def grow(self) -> None:
        """Records were confirmed."""
        self.records = min(self.records * 2, self._most_records)
