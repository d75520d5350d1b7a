"""What a lake job tells while it runs: one line that is redrawn on a terminal, or printed now and then into a log.

Invariant: it writes to standard error only; standard output belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from .streams import Counts
from .tables import EVENTS, QUARANTINE

__all__ = ["ProgressLine", "StatusLine"]

_LOG_EVERY_S = 10.0
_REDRAW = "\r\x1b[2K"


class StatusLine:
    """A line on standard error, or wherever it is told to write."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._redraw = _REDRAW if self._out.isatty() else ""
        self._shown = time.monotonic()

    def show(self, text: Callable[[], str]) -> None:
        """Shows where a job is; into a log not each time."""
        if self._redraw:
            self._out.write(f"{self._redraw}{text()}")
        elif time.monotonic() - self._shown >= _LOG_EVERY_S:
            self._shown = time.monotonic()
            self._out.write(f"{text()}\n")
        self._out.flush()

    def end(self, text: str) -> None:
        """Shows where a job ended."""
        self._out.write(f"{self._redraw}{text}\n")
        self._out.flush()


class ProgressLine:
    """Rows so far, rows a second, how far behind the newest record is, and what is left."""

    def __init__(self, out: TextIO | None = None, *, is_remote: bool = False) -> None:
        """`is_remote`: batches run in a Spark Connect server, and what they count stays there."""
        self._line = StatusLine(out)
        self._is_remote = is_remote
        self._started = time.monotonic()

    def __call__(self, counts: list[Counts]) -> None:
        """Shows where the job is."""
        self._line.show(lambda: self.text(counts))

    def end(self, counts: list[Counts]) -> None:
        """Shows where the job ended."""
        self._line.end(self.text(counts))

    def text(self, counts: list[Counts]) -> str:
        """The line."""
        if self._is_remote:
            elapsed = f"{time.monotonic() - self._started:,.0f} s in the Spark Connect server, which alone counts rows"
            return " · ".join([elapsed, *_left(counts)])
        rows: dict[str, int] = {}
        for stream in counts:
            for table, count in stream.rows.items():
                rows[table] = rows.get(table, 0) + count
        bronze, quarantined = rows.get(EVENTS.name, 0), rows.get(QUARANTINE.name, 0)
        silver = sum(count for table, count in rows.items() if table.startswith("silver."))
        rate = bronze / max(time.monotonic() - self._started, 1e-3)
        gold = sum(count for table, count in rows.items() if table.startswith("gold."))
        parts = [f"bronze {bronze:,}", f"silver {silver:,}", *([f"gold {gold:,}"] if gold else []), f"{rate:,.0f} rows/s"]
        if quarantined:
            parts.append(f"quarantined {quarantined:,}")
        lost = sum(stream.lost for stream in counts)
        if lost:
            parts.append(f"lost {lost:,}")
        newest_us = counts[0].newest_us if counts else None
        if newest_us is not None:
            parts.append(f"lag {max(time.time() - newest_us / 1e6, 0):,.1f} s")
        return " · ".join([*parts, *_left(counts)])


def _left(counts: list[Counts]) -> list[str]:
    left = {what: count for stream in counts for what, count in stream.left.items()}
    some = [f"{count:,} {what}" for what, count in left.items() if count]
    return [f"left {', '.join(some)}"] if some else ["nothing left"] if left else []
