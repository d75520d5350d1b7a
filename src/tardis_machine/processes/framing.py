"""What goes over the socket between the server and a child, as bytes: commands one way, outputs and log lines the other.

Invariant: a frame is a header (job, kind, size of the payload) and its payload. A chunk crosses as it is, everything else pickled; so is
one that is cut, which is in no hurry.
"""

from __future__ import annotations

import pickle
from struct import Struct
from typing import Any

from .child_log import Logged
from .jobs.contract import Chunk, Events, Output, PackedEvents

__all__ = [
    "HEADER",
    "NO_JOB",
    "parse_log",
    "parse_output",
    "take_commands",
    "to_command",
    "to_frame",
    "to_log_frame",
]

HEADER = Struct("<QBI")
"""Job, kind, payload bytes."""
NO_JOB = 0
"""Stands for the job where a log line is sent."""
_KIND_PICKLED, _KIND_CHUNK, _KIND_EVENTS = 0, 1, 2
# messages, request, reached_us, bytes of marks; these and the data follow
_CHUNK = Struct("<IHqI")


def to_command(job: int, name: str, arguments: tuple[Any, ...]) -> bytes:
    """A command for a child."""
    return _to_pickled(job, (name, arguments))


def take_commands(received: bytearray) -> list[tuple[int, str, tuple[Any, ...]]]:
    """The commands that were received as a whole, which are taken out: (job, name, arguments)."""
    commands = []
    start = 0
    while len(received) - start >= HEADER.size:
        job, _, size = HEADER.unpack_from(received, start)
        end = start + HEADER.size + size
        if end > len(received):
            break
        name, arguments = pickle.loads(received[start + HEADER.size : end])  # noqa: S301 - from our own parent process
        commands.append((job, name, arguments))
        start = end
    del received[:start]
    return commands


def to_frame(job: int, output: Output) -> bytes:
    """An output for the server."""
    if isinstance(output, Chunk) and not output.moments:
        head = HEADER.pack(job, _KIND_CHUNK, len(output.data) + len(output.marks) + _CHUNK.size)
        fields = _CHUNK.pack(output.messages, output.request, output.reached_us, len(output.marks))
        return b"".join((head, fields, output.marks, output.data))
    return _to_pickled(job, output, _KIND_EVENTS if isinstance(output, Events) else _KIND_PICKLED)


def parse_output(kind: int, payload: bytearray) -> Output:
    """The output of a frame."""
    if kind == _KIND_CHUNK:
        messages, request, reached_us, marks_size = _CHUNK.unpack_from(payload)
        content = memoryview(payload)[_CHUNK.size :]
        return Chunk(content[marks_size:], messages, request, reached_us, marks=content[:marks_size])
    if kind == _KIND_EVENTS:
        return PackedEvents(payload)
    output: Output = pickle.loads(payload)  # noqa: S301 - from our own child process
    return output


def to_log_frame(line: Logged) -> bytes:
    """A log line for the server."""
    return _to_pickled(NO_JOB, line)


def parse_log(payload: bytearray) -> Logged:
    """The log line of a frame."""
    line: Logged = pickle.loads(payload)  # noqa: S301 - from our own child process
    return line


def _to_pickled(job: int, content: Any, kind: int = _KIND_PICKLED) -> bytes:
    payload = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(job, kind, len(payload)) + payload
