"""Where the lines of `replay` and `stream` go: standard output, or a file that appears when it is whole.

Invariant: a file under its own name is complete; what is being written is beside it under another name, and goes when it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..errors import SettingsError, TardisMachineError
from ..pipeline.compression import Compression, compressor

__all__ = ["STDOUT", "LineOutput"]

STDOUT = Path("-")

_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}


class LineOutput:
    """Writes bytes to a file, or to standard output where `target` is `-`. `open` it, then `finish` or `abandon` it."""

    def __init__(self, target: Path) -> None:
        self._is_stdout = target == STDOUT
        self._target = target if self._is_stdout else target.resolve()
        # A pipe or a device is written to as it is: there is nothing to rename it over.
        self._is_regular = not self._is_stdout and (self._target.is_file() or not self._target.exists())
        self._unfinished = self._target.with_name(f".{self._target.name}.new")
        kind = None if self._is_stdout else _COMPRESSIONS.get(self._target.suffix)
        self._compress = None if kind is None else compressor(kind)
        self._fd = -1
        self._work: SimpleQueue[tuple[Callable[[], None], asyncio.Future[None]]] = SimpleQueue()

    async def open(self) -> None:
        """Raises where it can't be written at all."""
        # A thread that nobody waits for: a write to a pipe that is not read may never end, and must not hold up our own end.
        threading.Thread(target=self._run, name="output", daemon=True).start()
        await self._do(self._open)

    async def write(self, data: bytes | memoryview) -> None:
        """Returns when it is written; BrokenPipeError where nobody reads any more."""
        await self._do(lambda: self._write(bytes(data) if self._compress is None else self._compress(bytes(data), False)))

    async def finish(self) -> None:
        """All was written: the file appears."""
        await self._do(self._finish)

    def abandon(self) -> None:
        """What was written so far is not wanted; after `finish`, nothing."""
        if self._is_regular and self._fd >= 0:
            with contextlib.suppress(OSError):
                self._unfinished.unlink(missing_ok=True)

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            try:
                work()
            except BaseException as error:
                outcome: tuple[Callable[[Any], None], Any] = (done.set_exception, error)
            else:
                outcome = (done.set_result, None)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                done.get_loop().call_soon_threadsafe(_settle, done, *outcome)

    async def _do(self, work: Callable[[], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._work.put((work, done))
        try:
            await done
        except BrokenPipeError:
            raise
        except OSError as error:
            where = "standard output" if self._is_stdout else str(self._target)
            raise TardisMachineError(f"--output: can't write to {where}: {error.strerror or error}") from error

    def _open(self) -> None:
        if self._is_stdout:
            self._fd = sys.stdout.fileno()
            return
        if self._target.is_dir():
            raise self._refused("it is a folder; expected a file or -")
        try:
            place = self._unfinished if self._is_regular else self._target
            self._fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if self._is_regular:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(self._fd, 0)  # what a replay that was killed had written
        except BlockingIOError:
            os.close(self._fd)
            self._fd = -1
            raise self._refused("another replay is writing to it") from None
        except OSError as error:
            raise self._refused(f"{error.strerror}") from None

    def _refused(self, why: str) -> SettingsError:
        return SettingsError([f"--output: can't write to {str(self._target)!r}: {why}"])

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _finish(self) -> None:
        if self._compress is not None:
            self._write(self._compress(b"", True))
        if self._is_regular:
            os.fsync(self._fd)
            self._unfinished.rename(self._target)
            folder = os.open(self._target.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        if not self._is_stdout:
            os.close(self._fd)
            self._fd = -1


def _settle(done: asyncio.Future[None], set_outcome: Callable[[Any], None], outcome: Any) -> None:
    if not done.done():
        set_outcome(outcome)
