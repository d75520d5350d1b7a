"""How a live stream is doing, as the server sees it: what it brought, and when not all of its connections did.

Invariant: plain counts and times; bounded, however long the stream lasts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["FeedHealth", "Outage"]

_OUTAGES = 100


class Outage:
    """A time in which not all connections brought data."""

    __slots__ = ("began_s", "ended_s")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.ended_s: float | None = None
        """None while it lasts."""


class FeedHealth:
    """One stream's. Times are seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.messages = 0
        """What clients got, counted once for each view of the stream."""
        self.last_message_s: float | None = None
        self.losses = 0
        self.outages: deque[Outage] = deque(maxlen=_OUTAGES)
        """The last ones."""
        self.is_hearing = False
        """Whether all connections bring data."""

    def count(self, messages: int) -> None:
        """Messages came."""
        self.messages += messages
        self.last_message_s = self._clock()

    def note_hearing(self, is_hearing: bool) -> None:
        """All connections bring data from now on, or not all of them any more."""
        if is_hearing is self.is_hearing:
            return
        self.is_hearing = is_hearing
        if not is_hearing:
            self.losses += 1
            self.outages.append(Outage(self._clock()))
        elif self.outages:
            self.outages[-1].ended_s = self._clock()
