"""A folder on a disk that can be filled up: a small one of its own, mounted where that is allowed.

Where it is not, the program's files may not grow any more while the disk is to be full: it gets an error for every write, but never half
a one, and folders and empty files can still be made. `how` says which of the two it is.

Invariant: what was mounted is unmounted, and no other disk is ever filled.
"""

from __future__ import annotations

import errno
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

__all__ = ["SmallDisk"]

_STEP_BYTES = 64 * 1024


class SmallDisk:
    """Makes the folder. `fill` and `empty` may be called in every state; `close` at last."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._filler = folder / "filler"
        options = ["-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "tmpfs", str(folder)]
        program = shutil.which("mount")
        self._is_mounted = (
            program is not None and not subprocess.run([program, *options], capture_output=True, check=False).returncode
        )
        self.how = (
            f"a disk of {size_bytes >> 20} MB, mounted for it"
            if self._is_mounted
            else "its files could not grow, as no disk may be mounted here"
        )

    @property
    def is_own(self) -> bool:
        """Whether it was mounted: then it is full for every program."""
        return self._is_mounted

    def fill(self, pid: int) -> None:
        """Nothing more has room, but for what fits into what is begun; `pid` is the program that is to notice."""
        if not self._is_mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with self._filler.open("ab", buffering=0) as filler:
            step = _STEP_BYTES
            while step:
                try:
                    filler.write(bytes(step))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def empty(self, pid: int) -> None:
        """There is room again."""
        if self._is_mounted:
            self._filler.unlink(missing_ok=True)
        else:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def close(self) -> None:
        """What was on it is gone, unless it is an ordinary folder."""
        if self._is_mounted:
            self._filler.unlink(missing_ok=True)
            # Lazily: a program that was killed may hold it for a moment more.
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
            self._is_mounted = False
            with suppress(OSError):
                self._folder.rmdir()
