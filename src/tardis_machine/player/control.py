"""What a client says to steer its replay, as a frame of its WebSocket or the body of a POST.

Invariant: whatever comes is a control or one sentence about one field; an exchange's own subscription is neither.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..brief import brief
from ..dates import parse_date_us
from ..errors import OptionsError
from ..pipeline.playback import parse_speed

__all__ = ["CONTROLS", "Control", "is_control", "parse_control"]

CONTROLS = {
    "status": (),
    "pause": (),
    "resume": (),
    "seek": ("to",),
    "speed": ("speed",),
    "step": ("count",),
}
"""The controls, and the fields of each."""
MAX_STEPS = 10_000


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One of `CONTROLS`."""

    name: str
    to_us: int = 0
    """Of a seek."""
    speed: float = 0
    count: int = 1
    """Of a step: how many instants."""


def is_control(message: Any) -> bool:
    """Whether a message of a client is meant for the player."""
    return isinstance(message, dict) and "control" in message


def parse_control(message: Any) -> Control:
    """A control out of its JSON."""
    if not is_control(message):
        raise OptionsError(f'control: expected an object such as {{"control":"pause"}}, got {brief(message)}', "control")
    name = message["control"]
    if not isinstance(name, str) or name not in CONTROLS:
        raise OptionsError(f"control: expected {', '.join(CONTROLS)}, got {brief(name)}", "control")
    for field in message:
        if field != "control" and field not in CONTROLS[name]:
            takes = ", ".join(CONTROLS[name]) or "no other field"
            raise OptionsError(f"control: {name} takes {takes}, got {brief(field)}", "control")
    if name == "seek":
        return Control(name=name, to_us=_date_us(message.get("to")))
    if name == "speed":
        return Control(name=name, speed=parse_speed(message.get("speed"), "speed"))
    if name == "step":
        return Control(name=name, count=_count(message.get("count", 1)))
    return Control(name=name)


def _date_us(value: Any) -> int:
    try:
        if isinstance(value, str):
            return parse_date_us(value)
    except ValueError:
        pass
    raise OptionsError(f"to: expected an ISO 8601 date such as 2020-02-01T10:30:00Z, got {brief(value)}", "to")


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_STEPS:
        raise OptionsError(f"count: expected a whole number from 1 to {MAX_STEPS}, got {brief(value)}", "count")
    return value
