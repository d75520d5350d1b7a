"""The clock of a replay: which local time it is in it, and when an instant is due.

Invariant: pure. It is told the time of the wall with each call, and what comes out depends on these calls alone.
"""

from __future__ import annotations

from math import inf

__all__ = ["PlayerClock"]

# What is later than this was not there in time, or not taken: the clock is set back to it instead of hurrying after it.
MAX_LATE_S = 1.0


class PlayerClock:
    """Runs at its speed from where it was put, unless it is paused; it waits until it is told to start.

    >>> clock = PlayerClock(speed=10, position_us=0)
    >>> clock.start(now_s=100)
    >>> clock.position_us(now_s=101), clock.due_s(30_000_000)
    (10000000, 103.0)
    >>> clock.pause(now_s=102)
    >>> clock.position_us(now_s=200), clock.due_s(30_000_000)
    (20000000, inf)
    """

    def __init__(self, speed: float, position_us: int) -> None:
        self._speed = speed
        # Local time and, while it runs, the time of the wall at which it was that.
        self._anchor_us = position_us
        self._anchor_s: float | None = None
        self._is_paused = False
        # The latest instant that was sent.
        self._reached_us = position_us
        # Paused, what is not later than this may be sent all the same: the instant that was stepped to, or where a seek led.
        self._released_us: float = -inf

    @property
    def speed(self) -> float:
        """Seconds of local time in a second; infinite: as fast as can be."""
        return self._speed

    @property
    def is_paused(self) -> bool:
        """Whether nothing is due."""
        return self._is_paused

    def position_us(self, now_s: float) -> int:
        """The local time now."""
        if self._anchor_s is None or self._is_paused or self._speed == inf:
            return self._anchor_us
        return self._anchor_us + round((now_s - self._anchor_s) * self._speed * 1e6)

    def due_s(self, instant_us: int) -> float:
        """When an instant is due, by the wall; minus infinity is at once, infinity never as things stand."""
        if self._is_paused or self._anchor_s is None:
            return -inf if instant_us <= self._released_us else inf
        if self._speed == inf:
            return -inf
        return self._anchor_s + (instant_us - self._anchor_us) / (self._speed * 1e6)

    @property
    def is_free(self) -> bool:
        """Whether everything is due at once."""
        return self._speed == inf and not self._is_paused and self._anchor_s is not None

    def start(self, now_s: float) -> None:
        """There is something to play: from here on time passes, where it did not yet."""
        if self._anchor_s is None:
            self._anchor_s = now_s

    def reach(self, now_s: float, instant_us: int) -> None:
        """An instant is sent now. Its being sent is what moves a clock without a speed, and what holds up one that is too fast."""
        if self._is_paused or instant_us < self._reached_us:
            return
        self._reached_us = instant_us
        if self._speed == inf:
            self._anchor_us = instant_us
        elif now_s - self.due_s(instant_us) > MAX_LATE_S:
            self._anchor_us, self._anchor_s = instant_us, now_s

    def pause(self, now_s: float) -> None:
        """Nothing is due any more."""
        if not self._is_paused:
            self._hold(now_s)
            self._is_paused, self._released_us = True, -inf

    def resume(self, now_s: float) -> None:
        """Time passes again."""
        if self._is_paused:
            self._hold(now_s)
            self._is_paused, self._released_us = False, -inf

    def set_speed(self, now_s: float, speed: float) -> None:
        """From here on it runs so fast."""
        self._hold(now_s)
        self._speed = speed

    def seek(self, position_us: int) -> None:
        """Goes elsewhere, and waits there until it is told to start; what is there is due even if paused."""
        self._anchor_us = self._reached_us = self._released_us = position_us
        self._anchor_s = None

    def step(self, instant_us: int) -> None:
        """Paused, goes on to an instant."""
        self._released_us = instant_us
        self._anchor_us = self._reached_us = max(self._anchor_us, instant_us)

    def _hold(self, now_s: float) -> None:
        """It is now what it is."""
        self._anchor_us = self.position_us(now_s)
        if self._anchor_s is not None:
            self._anchor_s = now_s
