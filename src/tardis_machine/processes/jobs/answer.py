"""The finished bytes of a replay on their way to its client: gathered into chunks, as many under way as the client can take.

Invariant: a job that may send no more chunks does no work. Where it is cut, a chunk says at which bytes each instant ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...pipeline.compression import compressor
from .contract import CHUNK_BYTES, Chunk, Moment, Output, ReplaySpec

__all__ = ["Answer"]


class Answer:
    """What was finished and has not left yet."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._compressor = None if spec.compression is None else compressor(spec.compression)
        # Without bytes nothing is gathered: each step says how far it came, and waits for who publishes its events.
        self._has_bytes = spec.form != "none"
        self.is_cut = spec.is_cut
        """Whether chunks say where they can be cut in time."""
        # Bytes, how many messages they are, the local time of the last of them, and where they can be cut.
        self._parts: deque[tuple[bytes, int, int, Sequence[Moment]]] = deque()
        # Of the parts that wait, where they are to be merged with those of others.
        self._marks: deque[bytes] = deque()
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

    def add(self, data: bytes, messages: int, reached_us: int, moments: Sequence[Moment] = ()) -> None:
        """More messages as finished bytes, and the local time of the last of them. They leave in one chunk, or with others in one."""
        self._parts.append((data, messages, reached_us, moments))
        self._pending_bytes += len(data)

    def add_marked(self, data: bytes, marks: bytes, messages: int, reached_us: int) -> None:
        """The same with its marks."""
        self._marks.append(marks)
        self.add(data, messages, reached_us)

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
        if self.is_cut:
            self._send_moments(outputs, is_last=is_last)
            return
        parts: list[bytes] = []
        marks: list[bytes] = []
        size_bytes = messages = 0
        while self._parts and size_bytes < CHUNK_BYTES:
            part, count, reached_us, _ = self._parts.popleft()
            if self._marks:
                marks.append(self._marks.popleft())
            parts.append(part)
            size_bytes += len(part)
            messages += count
            self._reached_us = reached_us or self._reached_us
        self._pending_bytes -= size_bytes
        data = b"".join(parts)
        if self._compressor is not None and (data or is_last):
            data = self._compressor(data, is_last)
        if data or marks or (messages and not self._has_bytes):
            self.send(Chunk(data, messages, reached_us=self._reached_us, marks=b"".join(marks)), outputs)

    def _send_moments(self, outputs: list[Output], *, is_last: bool) -> None:
        """The same, and each part can be read as soon as its moment has come."""
        compress = self._compressor
        parts: list[bytes] = []
        moments: list[Moment] = []
        end = size_bytes = messages = 0
        while self._parts and size_bytes < CHUNK_BYTES:
            part, count, reached_us, its_moments = self._parts.popleft()
            size_bytes += len(part)
            messages += count
            self._reached_us = reached_us or self._reached_us
            if compress is None and its_moments:
                parts.append(part)
                moments += [
                    (instant_us, end + stop, its_messages, request) for instant_us, stop, its_messages, request in its_moments
                ]
                end += len(part)
                continue
            start = 0
            for instant_us, stop, its_messages, request in its_moments or ((reached_us, len(part), count, 0),):
                piece = part[start:stop]
                start = stop
                if compress is not None and piece:
                    piece = compress(piece, False)
                parts.append(piece)
                end += len(piece)
                moments.append((instant_us, end, its_messages, request))
        self._pending_bytes -= size_bytes
        if compress is not None and is_last and not self._parts:
            parts.append(compress(b"", True))
            moments.append((0, end + len(parts[-1]), 0, 0))
        if moments:
            self.send(Chunk(b"".join(parts), messages, reached_us=self._reached_us, moments=moments), outputs)
