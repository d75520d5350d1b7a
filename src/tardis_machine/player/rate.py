"""How many messages a replay sends in a second, over the last few.

Invariant: pure, and of a fixed size.
"""

from __future__ import annotations

from collections import deque

__all__ = ["MessageRate"]

SECONDS = 5


class MessageRate:
    """Counts by the second."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        # Whole seconds and what was counted in each.
        self._counts: deque[tuple[int, int]] = deque(maxlen=SECONDS + 1)
        self.total = 0

    def count(self, now_s: float, messages: int) -> None:
        """So many more."""
        self.total += messages
        second = int(now_s)
        if self._counts and self._counts[-1][0] == second:
            second, before = self._counts.pop()
            messages += before
        self._counts.append((second, messages))

    def per_second(self, now_s: float) -> float:
        """The mean of the last seconds, or since the start."""
        since_s = max(self._began_s, int(now_s) - SECONDS)
        counted = sum(messages for second, messages in self._counts if second >= int(since_s))
        return counted / max(now_s - since_s, 1.0)
