"""What simulated exchanges can be told to do wrong, on the object or over HTTP as JSON with its `kind`.

Invariant: a misbehaviour is a deviation from the right course; whatever it does not name stays right.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "ClockSkew",
    "Close",
    "DropUpdates",
    "ErrorFrame",
    "ErrorKind",
    "Faults",
    "Garbage",
    "HalfFrame",
    "Misbehaviour",
    "Refuse",
    "Reset",
    "Silence",
    "Snapshot",
]

ErrorKind = Literal["rate_limit", "auth", "server"]


class _Struct(msgspec.Struct, frozen=True, tag_field="kind", rename="camel", forbid_unknown_fields=True):
    """All of them name their kind in JSON."""


class Silence(_Struct, tag="silence", frozen=True):
    """Nothing is sent on open connections, not even a pong; what is due meanwhile comes afterwards."""

    seconds: float | None = None
    """None: for good."""
    new_too: bool = False
    """Connections that are made meanwhile are silent too."""


class Close(_Struct, tag="close", frozen=True):
    """Open connections are closed in an orderly way."""

    code: int = 1001
    reason: str = ""


class Reset(_Struct, tag="reset", frozen=True):
    """Open connections end with a TCP reset."""


class HalfFrame(_Struct, tag="half_frame", frozen=True):
    """Half of a message is sent, and then no more."""

    then: Literal["close", "reset", "hang"] = "close"


class Garbage(_Struct, tag="garbage", frozen=True):
    """A message that makes no sense: no JSON, JSON of an unknown shape, no UTF-8, or no WebSocket frame."""

    form: Literal["text", "shape", "utf8", "frame"] = "text"


class Refuse(_Struct, tag="refuse", frozen=True):
    """New connections and requests are refused: with an HTTP status, or without one by a TCP reset."""

    status: int | None = None
    times: int | None = 1
    """None: until told to recover."""
    retry_after_s: int | None = None
    target: Literal["socket", "rest", "both"] = "socket"


class ErrorFrame(_Struct, tag="error_frame", frozen=True):
    """An error in the exchange's own words: at once, or in place of the answers to the next requests to subscribe or log in."""

    error: ErrorKind = "rate_limit"
    instead_of_answers: int = 0


class DropUpdates(_Struct, tag="drop_updates", frozen=True):
    """Open connections miss the next updates of a book."""

    count: int = 1
    symbol: str | None = None


class Snapshot(_Struct, tag="snapshot", frozen=True):
    """The next snapshots come late, or are older than they should be; over REST and WebSocket alike."""

    late_s: float = 0.0
    old_s: float = 0.0
    times: int = 1


class ClockSkew(_Struct, tag="clock_skew", frozen=True):
    """The times in all messages are off, until told otherwise."""

    ms: int = 0


Misbehaviour = Silence | Close | Reset | HalfFrame | Garbage | Refuse | ErrorFrame | DropUpdates | Snapshot | ClockSkew


class Faults:
    """What an exchange was told and has still to do."""

    def __init__(self) -> None:
        self.skew_ms = 0
        # Until when new connections are silent, by the timer.
        self.silent_until_s = 0.0
        self._refusals: list[tuple[Refuse, int | None]] = []
        self._denials: list[ErrorKind] = []
        self._snapshots: list[Snapshot] = []

    def plan(self, what: Refuse | ErrorFrame | Snapshot) -> None:
        """Notes what is to happen to requests that are still to come."""
        if isinstance(what, Refuse):
            self._refusals.append((what, what.times))
        elif isinstance(what, Snapshot):
            self._snapshots += [what] * what.times
        else:
            self._denials += [what.error] * what.instead_of_answers

    def take_refusal(self, target: Literal["socket", "rest"]) -> Refuse | None:
        """How this new connection or request is to be refused."""
        for place, (refusal, left) in enumerate(self._refusals):
            if refusal.target in (target, "both"):
                if left == 1:
                    del self._refusals[place]
                elif left is not None:
                    self._refusals[place] = (refusal, left - 1)
                return refusal
        return None

    def take_denial(self) -> ErrorKind | None:
        """The error that this request is to be answered with."""
        return self._denials.pop(0) if self._denials else None

    def take_snapshot(self) -> Snapshot:
        """How the next snapshot is to be wrong."""
        return self._snapshots.pop(0) if self._snapshots else _RIGHT


_RIGHT = Snapshot()
