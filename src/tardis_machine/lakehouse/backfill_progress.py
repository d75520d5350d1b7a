"""How far a backfill is, and how that is reported.

Invariant: a unit is counted once, whether it is in the lake or on its way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from .tasks import tasks_done

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BackfillProgress", "BackfillReporter"]

_REPORT_EVERY_S = 1.0


@dataclass
class BackfillProgress:
    """How far a backfill is."""

    total: int
    done: int = 0
    skipped: int = 0
    """Units that an earlier job brought."""
    fetched: int = 0
    """Units that were fetched since the last commit, and are in the lake with the next."""
    rows: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def text(self) -> str:
        """One line."""
        elapsed_s = max(time.monotonic() - self.started, 1e-3)
        width = 24
        done = self.done + self.fetched
        filled = width * done // max(self.total, 1)
        parts = [
            f"backfill [{'█' * filled}{'·' * (width - filled)}] {done} of {self.total} symbol days",
            f"{self.rows:,} rows",
            f"{self.rows / elapsed_s:,.0f} rows/s",
        ]
        if self.skipped < done < self.total:
            left_s = elapsed_s / (done - self.skipped) * (self.total - done)
            parts.append(f"about {left_s / 60:,.0f} min left")
        if self.skipped:
            parts.append(f"{self.skipped} were there already")
        return " · ".join(parts)


class BackfillReporter:
    """Reports after each commit, and every second how many tasks have ended; a Connect server does not tell that."""

    def __init__(
        self, spark: SparkSession, progress: BackfillProgress, report: Callable[[BackfillProgress], None] | None
    ) -> None:
        from pyspark.sql.utils import is_remote

        self._count_fetched: Callable[[], int] = (lambda: 0) if is_remote() else partial(tasks_done, spark)
        self._progress = progress
        self._report = report
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backfill-progress", daemon=True)

    def __enter__(self) -> Self:
        if self._report is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._report is not None:
            self._thread.join()
        self._progress.fetched = 0

    def add(self, units: int, rows: int) -> None:
        """These are in the lake."""
        with self._lock:
            self._progress.done += units
            self._progress.rows += rows
        self._report_now()

    def _run(self) -> None:
        while not self._is_over.wait(_REPORT_EVERY_S):
            self._report_now()

    def _report_now(self) -> None:
        if self._report is not None:
            with self._lock:
                # Spark knows a little later that a stage has ended.
                self._progress.fetched = min(self._count_fetched(), self._progress.total - self._progress.done)
                self._report(self._progress)
