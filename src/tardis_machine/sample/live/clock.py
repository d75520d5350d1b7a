"""The one clock of all simulated exchanges: where the market stands, and how long exchanges wait for their clients.

Invariant: the market's position never goes back, and moves only in `tick`: between two ticks every exchange stands at one moment.
"""

from __future__ import annotations

from time import monotonic

from ..venues._contract import SECOND

__all__ = ["Clock"]


class Clock:
    """Market time at a speed, or standing until it is stepped (speed None). Timers run in real time, faster on demand."""

    def __init__(self, start_us: int, speed: float | None, timer_speed: float = 1.0) -> None:
        self.position = start_us * 10
        """In 100 ns since 1970: all that arrived until then was sent."""
        self._speed = speed
        self._timer_speed = timer_speed
        self._ticked_s = self._started_s = monotonic()
        self._start = self.position
        self.paused = False

    @property
    def stepped(self) -> bool:
        """Whether only `tick` with a step moves it."""
        return self._speed is None

    @property
    def now_us(self) -> int:
        """The market's time."""
        return self.position // 10

    @property
    def timer_s(self) -> float:
        """What heartbeats and time-outs go by: the market's own time when it is stepped, so that a test needs not wait."""
        if self._speed is None:
            return (self.position - self._start) / SECOND
        return (monotonic() - self._started_s) * self._timer_speed

    @property
    def real_s(self) -> float:
        """Real time: how fast clients ask has nothing to do with the market."""
        return monotonic() - self._started_s

    def tick(self, step: int = 0) -> int:
        """Moves the market on, by a step or as its speed says, and returns where it stands."""
        now_s = monotonic()
        if self._speed is not None and not self.paused:
            step += int((now_s - self._ticked_s) * self._speed * SECOND)
        self._ticked_s = now_s
        self.position += step
        return self.position

    def pause(self) -> None:
        """The market stands still; timers go on."""
        self.tick()
        self.paused = True

    def resume(self) -> None:
        """The market goes on from where it stood."""
        self.tick()
        self.paused = False
