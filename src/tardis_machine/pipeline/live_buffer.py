"""What live connections bring while nobody takes it: in memory at first, then on disk.

Invariant: what is taken is in the order in which it was heard. Until `open`, a connection that is lost leaves nothing behind: what it
had brought is passed over, as history is to tell it.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from ..messages import Disconnect, ErrorMessage, Message

__all__ = ["LiveBuffer"]

MAX_BYTES = 2 << 30
"""On disk; then listening pauses, which an exchange answers by hanging up: what it would have said is then told by history."""
MEMORY_BYTES = 4 << 20

MARGIN_US = 10_000_000
"""A connection subscribes to one channel after the other: how long after its first message all of them are heard."""
QUIET_US = 30_000_000
"""A connection that has had neither data nor trouble for so long is heard, and there is nothing to hear."""


@dataclass(slots=True)
class _Ear:
    """One connection."""

    since_us: int
    """When it was asked for, or last had trouble."""
    first_us: int | None = None
    """When its first message came since then."""
    number: int = 0
    """How often it was lost: what came before is not taken."""


class LiveBuffer:
    """An Outlet. `changed` is set when there is more to take, `clock` gives microseconds since 1970."""

    def __init__(self, changed: asyncio.Event, clock: Callable[[], int], max_bytes: int = MAX_BYTES) -> None:
        self._changed = changed
        self._clock = clock
        self._max_bytes = max_bytes
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by close
        # Where the next batch is read, and written.
        self._read_at = self._write_at = 0
        self._ears: list[_Ear] = []
        self._is_open = False
        # Set when something was taken.
        self._taken = asyncio.Event()

    def listen(self, connections: int) -> None:
        """Connections are being made."""
        self._ears = [_Ear(self._clock()) for _ in range(connections)]

    def covered_us(self) -> int:
        """From when on all connections are heard; later, where one has not been heard yet."""
        return max((ear.since_us + QUIET_US if ear.first_us is None else ear.first_us) + MARGIN_US for ear in self._ears)

    def open(self) -> None:
        """From now on all that is heard is kept."""
        self._is_open = True

    def deliver(self, connection: int, messages: list[Message]) -> None:
        """See Outlet."""
        ear = self._ears[connection]
        if isinstance(messages[-1], (Disconnect, ErrorMessage)) and not self._is_open:
            ear.since_us, ear.first_us = self._clock(), None
            if isinstance(messages[-1], Disconnect):
                ear.number += 1
                return
            messages = messages[:-1]
        if not messages:
            return
        if ear.first_us is None:
            ear.first_us = self._clock()
        self._file.seek(self._write_at)
        pickle.dump((connection, ear.number, messages), self._file, pickle.HIGHEST_PROTOCOL)
        self._write_at = self._file.tell()
        self._changed.set()

    @property
    def is_full(self) -> bool:
        """See Outlet."""
        return self._write_at - self._read_at >= self._max_bytes

    async def ready(self) -> None:
        """See Outlet."""
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    def take(self) -> list[Message]:
        """The next batch; none while there is nothing more."""
        while self._read_at < self._write_at:
            self._file.seek(self._read_at)
            connection, number, messages = pickle.load(self._file)  # noqa: S301 - written above, in a file that only we have
            self._read_at = self._file.tell()
            if self._read_at == self._write_at:
                self._file.seek(0)
                self._file.truncate()
                self._read_at = self._write_at = 0
            self._taken.set()
            # Of what came before the seam, only what came since the connection was last lost.
            if number == self._ears[connection].number:
                batch: list[Message] = messages
                return batch
        return []

    def close(self) -> None:
        """What is left is forgotten."""
        self._file.close()
