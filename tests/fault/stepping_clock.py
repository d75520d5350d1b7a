"""A clock that can be stepped back under a program and the processes it starts, while the machine's own stays as it is.

A small library, compiled where the test runs, stands before the system's time of day in that program alone; how wrong it is, is read
from a file that both have mapped.

Invariant: only the time of day moves; clocks that never go back do not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SteppingClock", "why_no_clock"]

SOURCE = Path(__file__).with_suffix(".c")
_SECONDS_BYTES = 8


def why_no_clock() -> str | None:
    """Why a clock can't be stepped here; None where it can."""
    if not sys.platform.startswith("linux"):
        return "a clock can be stepped for one program only on Linux"
    return None if shutil.which("cc") else "there is no C compiler (cc) for what stands before the clock"


class SteppingClock:
    """Starts at the right time. `environ` gives it to a program."""

    def __init__(self, folder: Path) -> None:
        library = folder / "stepping_clock.so"
        self._file = folder / "clock-seconds"
        self._seconds = 0
        self._write()
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
        self.environ: Mapping[str, str] = {"LD_PRELOAD": str(library), "STEPPING_CLOCK_FILE": str(self._file)}

    def step(self, seconds: int) -> None:
        """Back where it is less than none."""
        self._seconds += seconds
        self._write()

    def _write(self) -> None:
        # In place: the program has this very file mapped.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(self._seconds.to_bytes(_SECONDS_BYTES, sys.byteorder, signed=True))
