"""Finished bytes for a client: JSON lines for HTTP, frames for WebSocket, made in bulk.

Invariant: what is made here is written to the socket as it is; nobody looks into it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack

from .messages import Message, to_json, to_json_lines

__all__ = ["to_json_frames", "to_json_lines", "to_raw_frames", "to_raw_lines", "to_text_frame"]

_TEXT = 0x81  # a whole text message in one frame


def to_raw_lines(lines: Sequence[bytes]) -> bytes:
    """Recorded lines as `{"localTimestamp": …, "message": …}` lines; a disconnect is an empty line."""
    if b"" not in lines:
        # A replacement at C speed: the timestamp is 28 bytes, so the first space ends it.
        return b"".join([b'{"localTimestamp":"' + line[:28] + b'","message":' + line[29:] + b"}\n" for line in lines])
    return b"".join(
        [b'{"localTimestamp":"' + line[:28] + b'","message":' + line[29:] + b"}\n" if line else b"\n" for line in lines]
    )


def to_text_frame(payload: bytes) -> bytes:
    """One WebSocket text frame, as a server sends it: whole and unmasked (RFC 6455, 5.2)."""
    size = len(payload)
    if size < 126:
        return pack("!BB", _TEXT, size) + payload
    if size < 65_536:
        return pack("!BBH", _TEXT, 126, size) + payload
    return pack("!BBQ", _TEXT, 127, size) + payload


def to_raw_frames(lines: Iterable[bytes]) -> bytes:
    """Recorded messages, each as the exchange sent it, in a frame of its own; a disconnect has none."""
    return b"".join([to_text_frame(line[29:]) for line in lines if line])


def to_json_frames(messages: Iterable[Message]) -> bytes:
    """Normalized messages, each in a frame of its own."""
    return b"".join([to_text_frame(to_json(message)) for message in messages])
