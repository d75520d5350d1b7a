"""What a machine and its processes hold, looked at again and again, and whether it stays flat.

Under faults a queue fills and is emptied again: of each round of faults the low water counts, which a leak raises and a full queue
does not.

Invariant: samples are of one life of the machine; when it is killed, those before are forgotten, all but the most it ever held.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["TOLERANCE", "Round", "Sample", "Samples", "children_of", "grown", "resident_mb"]

LOOK_INTERVAL_S = 0.1
_LOW_SHARE = 0.1
"""Of the samples of a round that may be below its low water."""


class Sample(NamedTuple):
    """What is held at one time."""

    memory_mb: float
    """Of the machine itself."""
    processes_mb: float
    """Of all processes that it started."""
    descriptors: float
    processes: float


TOLERANCE = Sample(memory_mb=16, processes_mb=64, descriptors=8, processes=1)
"""By how much low water may rise, besides a tenth of what it was."""


class Round(NamedTuple):
    """What samples of one round come to."""

    number: int
    low: Sample
    high: Sample


class Samples:
    """Looks in a thread, from `start` to `stop`, at the process that `pid` tells."""

    def __init__(self, pid: Callable[[], int | None]) -> None:
        self._pid = pid
        self._looked_at: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._taken: dict[int, list[Sample]] = {}
        self.round = 0
        """What is taken now belongs to; the caller counts."""
        self.peak_mb = 0.0

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """May be called in every state."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def rounds(self) -> list[Round]:
        """Of the machine that lived last, oldest first; the round in which it was started is not one of them."""
        found = []
        for number, samples in sorted(self._taken.items())[1:]:
            columns = [sorted(column) for column in zip(*samples, strict=True)]
            low = Sample(*(column[int(len(column) * _LOW_SHARE)] for column in columns))
            found.append(Round(number, low, Sample(*(column[-1] for column in columns))))
        return found

    def _run(self) -> None:
        while not self._over.wait(LOOK_INTERVAL_S):
            if (pid := self._pid()) is None:
                continue
            sample = _look(pid)
            if sample is None:
                continue
            if pid != self._looked_at:
                self._looked_at, self._taken = pid, {}
            self._taken.setdefault(self.round, []).append(sample)
            self.peak_mb = max(self.peak_mb, sample.memory_mb)


def grown(rounds: Sequence[Round]) -> list[str]:
    """What the low water of the last round is above that of the first, by more than is tolerated; a sentence each."""
    if len(rounds) < 2:
        return [f"there were {len(rounds)} rounds to compare: the run was too short to tell whether anything grows"]
    first, last = rounds[0].low, rounds[-1].low
    return [
        f"{name.replace('_', ' ')} grew from {before:.0f} to {after:.0f}, more than a tenth and {more:.0f}"
        for name, before, after, more in zip(Sample._fields, first, last, TOLERANCE, strict=True)
        if after > before * 1.1 + more
    ]


def children_of(pid: int) -> list[int]:
    """The processes that it started and that are not gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def resident_mb(pid: int) -> float:
    """What it holds in memory; nothing once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def _look(pid: int) -> Sample | None:
    memory_mb = resident_mb(pid)
    try:
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    children = children_of(pid)
    return Sample(memory_mb, sum(map(resident_mb, children)), descriptors, len(children)) if memory_mb else None
