"""The number of events at each stage of the demo.

Invariant: a stage agrees when it has what the first one had, of every kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["KINDS", "StageCounts"]

KINDS = ("trade", "book_change", "derivative_ticker", "disconnect")


@dataclass
class StageCounts:
    """Events by stage and kind."""

    counts: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def agrees(self, stage: str) -> bool:
        """Whether a stage has what the first one had."""
        first = next(iter(self.counts.values()))
        return all(self.counts[stage].get(kind, 0) == first.get(kind, 0) for kind in KINDS)

    @property
    def all_agree(self) -> bool:
        """Whether all stages have."""
        return all(self.agrees(stage) for stage in self.counts)
