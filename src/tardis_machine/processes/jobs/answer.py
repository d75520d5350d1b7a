"""The finished bytes of a replay on their way to its client: gathered into chunks, as many under way as the client can take.

Invariant: a job that may send no more chunks does no work.
"""

from __future__ import annotations

from ...messages import parse_timestamp_us
from ...pipeline.compression import Compression, compressor
from ...pipeline.frames import Form
from .contract import Chunk, Output

__all__ = ["Answer", "instant_us"]

# Large enough that a chunk's costs vanish, small enough that a slow reader holds little.
CHUNK_BYTES = 256 * 1024
# Chunks that may be on their way to the client before the job pauses.
CHUNK_WINDOW = 4


class Answer:
    """What was finished and has not left yet."""

    def __init__(self, form: Form, compression: Compression | None) -> None:
        self._compressor = None if compression is None else compressor(compression)
        # Without bytes nothing is gathered: each step says how far it came, and waits for who publishes its events.
        self._has_bytes = form != "none"
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._pending_messages = 0
        # Local time of the last message that was added.
        self._reached_us = 0
        # Chunks that may still leave before the client has taken some.
        self._window = CHUNK_WINDOW

    def grant(self, chunks: int) -> None:
        """The client took this many chunks."""
        self._window += chunks

    @property
    def may_send(self) -> bool:
        """Whether the client can take more."""
        return self._window > 0

    @property
    def is_pending(self) -> bool:
        """Whether something waits to leave."""
        return self._pending_messages > 0

    def add(self, data: bytes, messages: int, reached_us: int) -> None:
        """More messages as finished bytes, and the local time of the last of them."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._pending_messages += messages
        self._reached_us = reached_us or self._reached_us

    def send(self, chunk: Chunk, outputs: list[Output]) -> None:
        """A chunk that waits for nothing."""
        outputs.append(chunk)
        self._window -= 1

    def flush_full(self, outputs: list[Output]) -> None:
        """Sends what waits, where it is enough for a chunk."""
        if self._pending_bytes >= CHUNK_BYTES or not self._has_bytes:
            self.flush(outputs)

    def flush(self, outputs: list[Output], *, is_last: bool = False) -> None:
        """Sends what waits; with the last, what the compressor held back too."""
        data = b"".join(self._pending)
        messages = self._pending_messages
        self._pending, self._pending_bytes, self._pending_messages = [], 0, 0
        if self._compressor is not None and (data or is_last):
            data = self._compressor(data, is_last)
        if data or (messages and not self._has_bytes):
            self.send(Chunk(data, messages, reached_us=self._reached_us), outputs)


def instant_us(clock: str) -> int:
    """When that is; 0 where it is no time, as a recording may hold anything."""
    try:
        return parse_timestamp_us(clock)
    except ValueError:
        return 0
