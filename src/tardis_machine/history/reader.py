"""From the compressed bytes of a slice to its lines. Synchronous, made to run in worker processes and threads.

Invariant: what is returned is the whole data of the slice; anything less is a SliceError that names the slice and the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, TypeVar, cast

import zstandard
from isal import isal_zlib

from ..errors import SliceError
from ..recorded_line import MESSAGE_START, Lines, begins_with_time, split_lines, to_time
from .slice import Encoding, Slice

__all__ = [
    "check_lines",
    "decompress",
    "fits",
    "is_at_most",
    "is_unbroken",
    "lines_between",
    "load_slice",
    "read_lines",
    "read_slice",
    "split_lines",
]

_NOT_NEWLINE = re.compile(rb"[^\n]")
_GZIP = 31
"""zlib's window size that means: with a gzip header and trailer."""

_CORRUPT: tuple[type[Exception], ...] = (zstandard.ZstdError, cast(type[Exception], isal_zlib.error), BadGzipFile)

MAX_LINES_BYTES = 1 << 30
"""What a slice may have decompressed: several times the busiest minute of a whole exchange."""

_STEP_BYTES = 64 * 1024
"""What a decompressor is fed at a time: what it gets past the end of a frame it hands back as a copy."""

_LEAST_STEP_BYTES = 64

# What one byte can become at most: a block of one repeated byte has four bytes in zstd, and 128 KiB; deflate has two bits for 258.
_GROWTH: dict[Encoding, int] = {"zst": 32 * 1024, "gz": 1032}


def read_slice(item: Slice) -> bytes:
    """All lines of the slice, decompressed; an empty minute is empty."""
    data = decompress(_read(item), item.encoding, item.name)
    check_lines(data, item.name)
    if not item.partial:
        return data
    return b"".join([line + b"\n" for line in lines_between(split_lines(data), item.start_us, item.end_us)])


def is_at_most(item: Slice, size_bytes: int) -> bool:
    """Whether a slice has no more bytes, compressed as it is; one that can't be read has none to tell."""
    try:
        return (len(item.data or b"") if item.path is None else Path(item.path).stat().st_size) <= size_bytes
    except OSError:
        return False


def load_slice(item: Slice) -> Slice:
    """The same slice held in memory, compressed as it was, and known to be whole."""
    loaded = replace(item, path=None, data=_read(item))
    read_slice(loaded)
    return loaded


def is_unbroken(lines: bytes) -> bool:
    """Whether the recorder was connected all the time."""
    return not lines.startswith(b"\n") and b"\n\n" not in lines


def read_lines(item: Slice) -> list[bytes]:
    """The lines of the slice: `<timestamp> <message>`, or empty where the recorder lost its connection."""
    return split_lines(read_slice(item))


LinesT = TypeVar("LinesT", list[bytes], Sequence[bytes])


def lines_between(lines: LinesT, from_us: int, to_us: int) -> LinesT:
    """Of lines in time order, those recorded in [from_us, to_us); only lines at the edges are looked at.

    An empty line has no time of its own: it goes with the line before it.
    """
    # A line is its timestamp and more, so whole lines compare as their timestamps do.
    low, high = to_time(from_us), to_time(to_us)
    if isinstance(lines, Lines):
        if lines.are_between(low, high):
            return lines
        lines = lines.cut()
    count = len(lines)
    start = next((index for index, line in enumerate(lines) if line), count)
    if start < count and lines[start] < low:
        while start < count and lines[start] < low:
            start += 1
    else:
        start = 0
    end = count
    while end > start and (not lines[end - 1] or lines[end - 1] >= high):
        end -= 1
    while end < count and not lines[end]:
        end += 1
    return lines[start:end] if start or end < count else lines


def fits(data: bytes, from_us: int, to_us: int) -> bool:
    """Whether decompressed lines lie within [from_us, to_us), by the first and the last of them."""
    edges = _edges(data)
    return edges is None or (to_time(from_us) <= edges[0] and edges[1] < to_time(to_us))


def decompress(data: bytes, encoding: Encoding, name: str, limit_bytes: int = MAX_LINES_BYTES) -> bytes:
    """The whole data: every frame or member is complete, and checksums are right; `name` names the slice in errors.

    Data that grow beyond the limit are given up before they take much more memory than that.
    """
    if not data:
        raise SliceError(f"slice {name} is truncated: it is empty")
    try:
        parts = list(_parts(data, encoding, limit_bytes))
    except EOFError:
        raise SliceError(f"slice {name} is truncated: its {len(data)} bytes end inside of the {encoding} data") from None
    except OverflowError:
        raise SliceError(f"slice {name} is too large: its {len(data)} bytes become more than {limit_bytes}") from None
    except _CORRUPT as error:
        raise SliceError(f"slice {name} is corrupt: {error}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_lines(data: bytes, name: str) -> None:
    """Raises when decompressed data are something else than recorded lines, judged by the first and the last of them."""
    for edge in _edges(data) or ():
        if not begins_with_time(edge):
            raise SliceError(f"slice {name} is corrupt: a line begins with {edge!r}, not with a timestamp")


def _read(item: Slice) -> bytes:
    if item.path is None:
        return item.data or b""
    try:
        return Path(item.path).read_bytes()
    except OSError as error:
        raise SliceError(f"slice {item.name} can't be read from {item.path}: {error.strerror}") from error


def _parts(data: bytes, encoding: Encoding, limit_bytes: int) -> Iterator[bytes]:
    """The contents of all frames or members, piece by piece; OverflowError where they are more than the limit.

    The libraries' own ways to read many frames know no limit, and may end quietly where one is truncated.
    """
    view = memoryview(data)
    context = zstandard.ZstdDecompressor()
    left_bytes = limit_bytes
    position = 0
    while position < len(view):
        frame = context.decompressobj() if encoding == "zst" else _gzip_member(view[position:])
        while not frame.eof:
            # As long as what is left surely holds all that comes of it.
            step_bytes = min(max(left_bytes // _GROWTH[encoding], _LEAST_STEP_BYTES), _STEP_BYTES)
            step = view[position : position + step_bytes]
            if not step:
                raise EOFError
            part = frame.decompress(step)
            left_bytes -= len(part)
            if left_bytes < 0:
                raise OverflowError
            yield part
            position += len(step)
        position -= len(frame.unused_data)
        if encoding == "gz":
            # Zeros may fill up what follows a member.
            while position < len(view) and not view[position]:
                position += 1


def _gzip_member(data: memoryview) -> Any:
    """What decompresses the member that begins the data."""
    if data[:2] != b"\x1f\x8b"[: len(data)]:
        raise BadGzipFile(f"Not a gzipped file ({bytes(data[:2])!r})")
    return isal_zlib.decompressobj(wbits=_GZIP)


def _edges(data: bytes) -> tuple[bytes, bytes] | None:
    """How the first and the last line that is not empty begin; None when there is none. Copies nothing else, as data is large."""
    first = _NOT_NEWLINE.search(data)
    if first is None:
        return None
    start, end = first.start(), len(data)
    while data[end - 1] == ord("\n"):
        end -= 1
    last = max(data.rfind(b"\n", 0, end) + 1, start)
    return data[start : start + MESSAGE_START], data[last : last + MESSAGE_START]
