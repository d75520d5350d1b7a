"""Files whose content survives a full disk and a power cut.

Invariant: a file of lines holds whole lines only. What a full disk cut short is cut off; what a dead process left torn is cut off
before the next line is written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["append_lines", "sync_folder", "write_all"]

_LOOK_BACK_BYTES = 64 * 1024


def write_all(fd: int, data: bytes) -> None:
    """Writes all of it; OSError where only a part of it fits."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Adds lines, durably: all of them or, with an OSError, none."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size_bytes = _cut_torn_line(fd)
        try:
            write_all(fd, b"".join(line + b"\n" for line in lines))
            os.fdatasync(fd)
        except OSError:
            os.ftruncate(fd, size_bytes)
            raise
    finally:
        os.close(fd)
    if size_bytes == 0:
        sync_folder(path.parent)


def _cut_torn_line(fd: int) -> int:
    """Cuts off what follows the last whole line; returns the size of the file then."""
    size_bytes = end = os.fstat(fd).st_size
    while end:
        start = max(end - _LOOK_BACK_BYTES, 0)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        end = start + found + 1 if found >= 0 else start
        if found >= 0:
            break
    if end < size_bytes:
        os.ftruncate(fd, end)
    return end


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in the folder is so after a power cut too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
