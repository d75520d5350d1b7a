"""Records that wait to be written to the dead letters.

Invariant: one write at a time; what could not be written waits, and is tried again after a pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .disk_work import Undeliverable
from .retry_pause import RetryPause

__all__ = ["UndeliverableQueue"]


class UndeliverableQueue:
    """The undeliverable records of one bus."""

    def __init__(self, pause: RetryPause) -> None:
        # Failures of writing.
        self._pause = pause
        # Still to be written.
        self._waiting: list[Undeliverable] = []
        # Being written.
        self._writing: list[Undeliverable] = []

    def __iter__(self) -> Iterator[Undeliverable]:
        yield from self._writing
        yield from self._waiting

    @property
    def retry_at(self) -> float | None:
        """When writing may be tried again, where something waits for that."""
        return self._pause.until if self._waiting else None

    def push(self, found: Iterable[Undeliverable]) -> None:
        """They are to be written."""
        self._waiting.extend(found)

    def start(self, now: float) -> list[Undeliverable]:
        """What is to be written now; `take_written` or `note_failure` must follow."""
        if self._writing or not self._waiting or not self._pause.allows(now):
            return []
        self._writing, self._waiting = self._waiting, []
        return self._writing

    def take_written(self) -> list[Undeliverable]:
        """They are dead letters now, and no longer here."""
        self._pause.note_success()
        written, self._writing = self._writing, []
        return written

    def note_failure(self, now: float) -> None:
        """They could not be written."""
        self._waiting, self._writing = self._writing + self._waiting, []
        self._pause.note_failure(now)
