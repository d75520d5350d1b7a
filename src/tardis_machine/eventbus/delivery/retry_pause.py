"""How long something that failed is left alone.

Invariant: it has no clock of its own; whoever asks says what time it is.
"""

from __future__ import annotations

from collections.abc import Callable

from ..policy import Policy

__all__ = ["RetryPause"]


class RetryPause:
    """The pause before something is tried again. It grows with each failure in a row."""

    __slots__ = ("_policy", "_random", "failures", "until")

    def __init__(self, policy: Policy, random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        # How often it failed since it last succeeded.
        self.failures = 0
        # When it may be tried again.
        self.until = 0.0

    def allows(self, now: float) -> bool:
        """Whether the pause is over."""
        return now >= self.until

    def note_failure(self, now: float) -> None:
        """It failed once more."""
        self.failures += 1
        self.until = now + self._policy.backoff_s(self.failures, self._random)

    def note_success(self) -> None:
        """The next failure is a first one again."""
        self.failures = 0

    def end(self) -> None:
        """It may be tried at once."""
        self.until = 0.0
