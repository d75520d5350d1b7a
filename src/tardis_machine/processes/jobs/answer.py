"""The finished bytes of a replay on their way to its client: gathered into chunks, as many under way as the client can take.

Invariant: a job that may send no more chunks does no work.
"""

from __future__ import annotations

from collections import deque

from ...messages import parse_timestamp_us
from ...pipeline.compression import compressor
from .contract import CHUNK_BYTES, Chunk, Output, ReplaySpec

__all__ = ["Answer", "instant_us"]


class Answer:
    """What was finished and has not left yet."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._compressor = None if spec.compression is None else compressor(spec.compression)
        # Without bytes nothing is gathered: each step says how far it came, and waits for who publishes its events.
        self._has_bytes = spec.form != "none"
        # Bytes, how many messages they are, and the local time of the last of them.
        self._parts: deque[tuple[bytes, int, int]] = deque()
        self._pending_bytes = 0
        # Local time of the last message that left.
        self._reached_us = 0
        # Chunks that may still leave before the client has taken some.
        self._window = spec.window

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
        return bool(self._parts)

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing more is to be made."""
        return self._pending_bytes >= CHUNK_BYTES

    def add(self, data: bytes, messages: int, reached_us: int) -> None:
        """More messages as finished bytes, and the local time of the last of them. They leave in one chunk, or with others in one."""
        self._parts.append((data, messages, reached_us))
        self._pending_bytes += len(data)

    def send(self, chunk: Chunk, outputs: list[Output]) -> None:
        """A chunk that waits for nothing."""
        outputs.append(chunk)
        self._window -= 1

    def flush_full(self, outputs: list[Output]) -> None:
        """Sends what waits, as far as it is enough for chunks and the client can take them."""
        if not self._has_bytes:
            self.flush(outputs)
        while self.is_full and self.may_send:
            self._send_chunk(outputs, is_last=False)

    def flush(self, outputs: list[Output], *, is_last: bool = False) -> None:
        """Sends what waits and is less than a chunk; with the last, what the compressor held back too."""
        while self.is_full:
            self._send_chunk(outputs, is_last=False)
        self._send_chunk(outputs, is_last=is_last)

    def _send_chunk(self, outputs: list[Output], *, is_last: bool) -> None:
        """Sends the parts of one chunk, or all that is left."""
        parts: list[bytes] = []
        size_bytes = messages = 0
        while self._parts and size_bytes < CHUNK_BYTES:
            part, count, reached_us = self._parts.popleft()
            parts.append(part)
            size_bytes += len(part)
            messages += count
            self._reached_us = reached_us or self._reached_us
        self._pending_bytes -= size_bytes
        data = b"".join(parts)
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
