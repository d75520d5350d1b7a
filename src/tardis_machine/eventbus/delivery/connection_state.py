"""Whether the bus is connected, and when to try.

Invariant: one `connect` at a time, never while something is in flight, and after a failure not before its pause is over.
"""

from __future__ import annotations

from .retry_pause import RetryPause

__all__ = ["ConnectionState"]


class ConnectionState:
    """The connection to one bus as its delivery knows it."""

    def __init__(self, pause: RetryPause) -> None:
        # Failures of the bus as a whole.
        self._pause = pause
        # A `connect` is running.
        self._is_connecting = False
        self.is_connected = False

    @property
    def failures(self) -> int:
        """How often the bus as a whole failed since something was last confirmed."""
        return self._pause.failures

    def connect_at(self, sends: int) -> float | None:
        """When to connect, with so many sends still running; None where there is nothing to wait for."""
        return None if self.is_connected or self._is_connecting or sends else self._pause.until

    def start(self, now: float, sends: int) -> bool:
        """Whether a `connect` is to start now; if so, it is running from now on."""
        at = self.connect_at(sends)
        if at is None or now < at:
            return False
        self._is_connecting = True
        return True

    def note_connected(self) -> None:
        """The `connect` succeeded; failures count on until something is confirmed."""
        self._is_connecting = False
        self.is_connected = True

    def note_failure(self, now: float) -> None:
        """A `connect` or a whole `send` failed: the bus is to be connected again, after a pause."""
        self._is_connecting = False
        self.is_connected = False
        self._pause.note_failure(now)

    def note_confirmed(self) -> None:
        """The bus works."""
        self._pause.note_success()
