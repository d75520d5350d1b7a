"""Finished bytes for a client: JSON lines for HTTP, frames for WebSocket, made in bulk.

Invariant: what is made here is written to the socket as it is; nobody looks into it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from struct import pack
from typing import Literal

from ..messages import Message, to_json_lines
from ..recorded_line import MESSAGE_START
from .csv_rows import to_csv_rows
from .marks import MARK, instant_us

__all__ = [
    "LINES_TO_BYTES",
    "MESSAGES_TO_BYTES",
    "READS_ROWS",
    "Form",
    "to_json_frames",
    "to_json_lines",
    "to_marked_messages",
    "to_raw_frames",
    "to_raw_lines",
    "to_sized_lines",
    "to_sized_messages",
    "to_text_frames",
]

Form = Literal["lines", "frames", "csv", "arrow", "none"]
"""What a client is sent: lines over HTTP, frames over WebSocket, rows of a dataset, an Arrow stream (see
`arrow_stream`); none where only events are wanted."""

_TEXT = 0x81  # a whole text message in one frame


class _Headers(dict[int, bytes]):
    """The header of a frame as a server sends it, whole and unmasked, by the size of its payload (RFC 6455, 5.2)."""

    def __missing__(self, size: int) -> bytes:
        if size < 126:
            header = pack("!BB", _TEXT, size)
        elif size < 65_536:
            header = pack("!BBH", _TEXT, 126, size)
        else:
            return pack("!BBQ", _TEXT, 127, size)  # not kept: there is no end to such sizes
        self[size] = header
        return header


_HEADERS = _Headers()


def to_raw_lines(lines: Sequence[bytes]) -> bytes:
    """Recorded lines as `{"localTimestamp": …, "message": …}` lines; a disconnect is an empty line."""
    if not lines:
        return b""
    # The first space ends the timestamp, and what ends a line and begins the next stands between all of them.
    named = [line.replace(b" ", b'","message":', 1) for line in lines]
    if b"" not in named:
        return b'{"localTimestamp":"' + b'}\n{"localTimestamp":"'.join(named) + b"}\n"
    return b"".join([b'{"localTimestamp":"' + line + b"}\n" if line else b"\n" for line in named])


def to_text_frames(payloads: Iterable[bytes]) -> bytes:
    """Each in a frame of its own."""
    headers = _HEADERS
    return b"".join([part for payload in payloads for part in (headers[len(payload)], payload)])


def to_raw_frames(lines: Iterable[bytes]) -> bytes:
    """Recorded messages, each as the exchange sent it, in a frame of its own; a disconnect has none."""
    return to_text_frames([line[MESSAGE_START:] for line in lines if line])


def to_json_frames(messages: Iterable[Message]) -> bytes:
    """Normalized messages, each in a frame of its own."""
    # JSON holds no newline but between lines.
    return to_text_frames(to_json_lines(messages).split(b"\n")[:-1])


def to_sized_messages(messages: Sequence[Message], form: Form) -> tuple[bytes, list[int]]:
    """Normalized messages as finished bytes, and how many of these each of them has."""
    if form == "none":
        return b"", [0] * len(messages)
    data = to_json_lines(messages)
    payloads = data.split(b"\n")[:-1]
    if form == "lines":
        return data, [len(payload) + 1 for payload in payloads]
    return to_text_frames(payloads), [_framed_size(payload) for payload in payloads]


def to_marked_messages(messages: Sequence[Message], form: Form) -> tuple[bytes, bytes]:
    """Normalized messages as lines or frames, with their marks."""
    data, sizes = to_sized_messages(messages, form)
    marks = [
        MARK.pack(instant, sum(size for _, size in run), len(run))
        for instant, run in (
            (instant, list(run))
            for instant, run in groupby(
                zip([instant_us(message.local_timestamp) for message in messages], sizes, strict=True), itemgetter(0)
            )
        )
    ]
    return data, b"".join(marks)


def to_sized_lines(lines: Sequence[bytes], form: Form) -> tuple[bytes, list[int]]:
    """Recorded lines likewise."""
    if form == "none":
        return b"", [0] * len(lines)
    if form == "lines":
        data = to_raw_lines(lines)
        return data, [len(line) + 1 for line in data.split(b"\n")[:-1]]
    return to_raw_frames(lines), [_framed_size(line[MESSAGE_START:]) if line else 0 for line in lines]


def _framed_size(payload: bytes) -> int:
    size = len(payload)
    return size + len(_HEADERS[size])


READS_ROWS = False
"""Whether messages may hold levels as `LevelRows`."""

# Where it was compiled, messages are written there; unusual ones are left to the encoder.
with suppress(ImportError):
    from .frames_compiled import *  # noqa: F403

MESSAGES_TO_BYTES: Mapping[Form, Callable[[Sequence[Message]], bytes]] = {
    "lines": to_json_lines,
    "frames": to_json_frames,
    "csv": to_csv_rows,
    "none": lambda messages: b"",
}
LINES_TO_BYTES: Mapping[Form, Callable[[Sequence[bytes]], bytes]] = {
    "lines": to_raw_lines,
    "frames": to_raw_frames,
    "none": lambda lines: b"",
}
