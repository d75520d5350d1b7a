"""Ends of sessions that wait until their ledger is on disk.

Invariant: an end that was sent is one that the next start finds, whatever happens: else it would send another one that says less.
One write at a time; one that failed is tried again after a pause.
"""

from __future__ import annotations

from collections.abc import Iterable

from .retry_pause import RetryPause

__all__ = ["LedgerWait"]


class LedgerWait:
    """The sessions of one bus whose end is not on disk yet."""

    def __init__(self, pause: RetryPause) -> None:
        # Failures of writing.
        self._pause = pause
        # Ended, and not on disk.
        self._sessions: set[str] = set()
        self._is_writing = False

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    @property
    def retry_at(self) -> float | None:
        """When writing may be tried again, where something waits for that."""
        return self._pause.until if self._sessions and not self._is_writing else None

    def add(self, session_id: str) -> None:
        """The session ended."""
        self._sessions.add(session_id)

    def start(self, now: float) -> bool:
        """Whether the ledger is to be written now; if so, `note_written` or `note_failure` must follow."""
        if self._is_writing or not self._sessions or not self._pause.allows(now):
            return False
        self._is_writing = True
        return True

    def note_written(self, session_ids: Iterable[str]) -> None:
        """The ends of these sessions are on disk, whoever wrote them."""
        self._is_writing = False
        self._sessions.difference_update(session_ids)
        self._pause.note_success()

    def note_failure(self, now: float) -> None:
        """They are not."""
        self._is_writing = False
        self._pause.note_failure(now)
