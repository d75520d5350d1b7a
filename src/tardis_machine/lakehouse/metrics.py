"""`/metrics` of a lake job: what its streams have written, how old that is, and what they have not read yet.

Invariant: reports are of everything since the start of a job; what was counted is not counted again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..errors import LakeError
from ..telemetry import (
    LAKE_BATCHES,
    LAKE_COMMIT_AGE_SECONDS,
    LAKE_LAG_SECONDS,
    LAKE_LEFT,
    LAKE_LOST,
    LAKE_QUARANTINED,
    LAKE_ROWS,
    serve_metrics,
)
from .streams import Counts
from .tables import EVENTS, QUARANTINE

__all__ = ["LakeMetrics", "served_metrics"]


@contextmanager
def served_metrics(port: int | None, host: str) -> Iterator[LakeMetrics]:
    """What a job reports to; `port` None: nobody asks for it."""
    if port is None:
        yield LakeMetrics()
        return
    try:
        stop = serve_metrics(host, port)
    except OSError as error:
        raise LakeError(
            f"metrics can't be served at {host}:{port}: {error.strerror}; name another port with --metrics-port"
        ) from None
    try:
        yield LakeMetrics()
    finally:
        stop()


class LakeMetrics:
    """Keeps metrics as the reports of a job say."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def __call__(self, counts: list[Counts]) -> None:
        """How far the streams of a job are."""
        rows: Counter[str] = Counter()
        now = time.monotonic()
        for stream in counts:
            rows.update(stream.rows)
            LAKE_BATCHES.labels(stream.stream).inc(self._new(f"batches of {stream.stream}", stream.batches))
            if stream.committed is not None:
                LAKE_COMMIT_AGE_SECONDS.labels(stream.stream).set(now - stream.committed)
            for what, left in stream.left.items():
                LAKE_LEFT.labels(stream.stream, what).set(left)
        self.add_rows(rows)
        LAKE_LOST.labels().inc(self._new("lost", sum(stream.lost for stream in counts)))
        if counts:
            LAKE_LAG_SECONDS.labels().set(_lag_s(counts[0]))

    def add_rows(self, rows: Mapping[str, int]) -> None:
        """How many rows each table was given since the start."""
        for table, count in rows.items():
            new = self._new(table, count)
            LAKE_ROWS.labels(table).inc(new)
            if table == QUARANTINE.name:
                LAKE_QUARANTINED.labels().inc(new)

    def backfilled(self, rows: int) -> None:
        """How many rows a backfill has brought to bronze since its start."""
        self.add_rows({EVENTS.name: rows})

    def _new(self, what: str, count: int) -> int:
        new = count - self._counted[what]
        self._counted[what] = count
        return new


def _lag_s(first: Counts) -> float:
    """How far the first stream, which reads the source, is behind."""
    is_through = bool(first.left) and not any(first.left.values())
    return 0.0 if first.newest_us is None or is_through else max(time.time() - first.newest_us / 1e6, 0.0)
