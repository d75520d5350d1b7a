"""The two clocks of a courier: the event loop's, which never goes back, and the time of day.

Invariant: moments in memory are the loop's; moments on disk and in events are times of day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Clocks"]


class Clocks:
    """Both clocks. `wall_us` gives the time of day in microseconds."""

    def __init__(self, wall_us: Callable[[], int]) -> None:
        self.wall_us = wall_us

    def now(self) -> float:
        """Seconds of the event loop."""
        return asyncio.get_running_loop().time()

    def to_wall_us(self, moment: float) -> int:
        """The time of day of a moment of the event loop."""
        return self.wall_us() - int((self.now() - moment) * 1e6)

    def from_wall_us(self, moment_us: int) -> float:
        """The moment of the event loop that a time of day was; now for one that is yet to come."""
        return self.now() - max(self.wall_us() - moment_us, 0) / 1e6
