"""How a replay is to be played: how fast, whether what is published keeps to that, and with which faults.

Invariant: a replay has one playback, whichever of its requests says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from ..brief import brief
from ..errors import OptionsError
from .faults import BadDay, parse_faults

__all__ = ["FIELDS", "MAX", "Playback", "agreed_playback", "parse_playback", "parse_speed", "speed_to_json"]

FIELDS = ("speed", "paceEvents", "faults")
"""Of a request."""
MAX = "max"
"""The speed of what is sent as fast as it is read."""
SLOWEST, FASTEST = 0.01, 100_000.0


class Playback(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of it."""

    speed: float | None = None
    """Seconds of local time in a second; infinite is as fast as can be, as is None, which was not said."""
    pace_events: bool = False
    faults: BadDay | None = None

    @property
    def is_paced(self) -> bool:
        """Whether it is a matter of time when something is sent."""
        return self.speed is not None and self.speed != inf


def parse_playback(options: Mapping[str, Any], prefix: str = "") -> Playback:
    """What the options of a request say."""
    pace_events = options.get("paceEvents")
    if pace_events is not None and not isinstance(pace_events, bool):
        field = f"{prefix}paceEvents"
        raise OptionsError(f"{field}: expected true or false, got {brief(pace_events)}", field)
    speed = options.get("speed")
    return Playback(
        speed=None if speed is None else parse_speed(speed, f"{prefix}speed"),
        pace_events=bool(pace_events),
        faults=parse_faults(options.get("faults"), f"{prefix}faults"),
    )


def parse_speed(value: Any, field: str) -> float:
    """A speed, as a number or its text.

    >>> parse_speed("0.5", "speed"), parse_speed("max", "speed")
    (0.5, inf)
    """
    if value == MAX:
        return inf
    try:
        speed = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except (OverflowError, ValueError):
        speed = 0.0
    if not SLOWEST <= speed <= FASTEST:
        raise OptionsError(f"{field}: expected max or a number from {SLOWEST:g} to {FASTEST:.0f}, got {brief(value)}", field)
    return speed


def speed_to_json(speed: float) -> float | str:
    """As a client would write it."""
    return MAX if speed == inf else int(speed) if speed == int(speed) else speed


def agreed_playback(playbacks: Sequence[Playback]) -> Playback:
    """The one of a replay of several requests: one may say it, or all the same."""

    def agreed(name: str, read: Callable[[Playback], Any], unsaid: Any) -> Any:
        said: list[Any] = []
        for playback in playbacks:
            value = read(playback)
            if value != unsaid and value not in said:
                said.append(value)
        if len(said) > 1:
            raise OptionsError(
                f"{name}: expected the same in all requests that are played together, got {len(said)} that differ", name
            )
        return said[0] if said else unsaid

    if len(playbacks) == 1:
        return playbacks[0]
    return Playback(
        speed=agreed("speed", lambda playback: playback.speed, None),
        pace_events=agreed("paceEvents", lambda playback: playback.pace_events, False),
        faults=agreed("faults", lambda playback: playback.faults, None),
    )
