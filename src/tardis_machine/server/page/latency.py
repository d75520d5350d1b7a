"""How long a bus takes to confirm, off the histogram that `/metrics` shows.

Invariant: of the last stretch of time only, as what was before says nothing of now.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ...telemetry import CONFIRM_SECONDS

__all__ = ["ConfirmLatency"]

_QUANTILES = {"p50": 0.5, "p99": 0.99}


class ConfirmLatency:
    """Remembers the counts of the last look."""

    def __init__(self) -> None:
        self._last: dict[str, dict[float, float]] = {}

    def look(self) -> dict[str, dict[str, float]]:
        """By bus that confirmed something since the last look, milliseconds: the upper end of the bucket that holds the quantile."""
        now = _counts()
        found = {}
        for bus, counts in now.items():
            before = self._last.get(bus, {})
            since = {bound: count - before.get(bound, 0.0) for bound, count in counts.items()}
            total = max(since.values(), default=0.0)
            if total > 0:
                found[bus] = {name: _bound_of(since, share * total) * 1000 for name, share in _QUANTILES.items()}
        self._last = now
        return found


def _counts() -> dict[str, dict[float, float]]:
    """By bus, how many confirmations took at most so many seconds."""
    counts: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for metric in CONFIRM_SECONDS.instrument.collect():
        for sample in metric.samples:
            if sample.name.endswith("_bucket"):
                counts[sample.labels["bus"]][float(sample.labels["le"])] += sample.value
    return counts


def _bound_of(counts: dict[float, float], wanted: float) -> float:
    """The smallest bound that holds so many; of those past the last bound, that one."""
    bounds = sorted(counts)
    for bound, following in pairwise(bounds):
        if counts[bound] >= wanted or following == float("inf"):
            return bound
    return bounds[-1]
