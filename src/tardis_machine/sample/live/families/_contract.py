"""How an exchange talks to a client: what it says when one connects, what it answers, what it says by the clock.

Invariant: no I/O here. Text comes in, frames go out; time and market are those of the client's subscriptions.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ....messages import to_timestamp
from ...venues import Venue
from ..misbehaviour import ErrorKind
from ..subscriptions import Subscriptions
from ..venue import LiveVenue

__all__ = ["Dialogue", "Family", "Frame", "Hangup", "Json", "Ping", "Rest", "RestAnswer", "as_list", "parse", "to_json"]

Json = Any


class Ping(NamedTuple):
    """A ping of the WebSocket protocol."""

    payload: bytes


class Hangup(NamedTuple):
    """The exchange closes the connection."""

    code: int
    reason: str = ""


Frame = str | bytes | Ping | Hangup
"""Text, or one of the above."""


def parse(text: str) -> Json:
    """What a client sent; None when it is no JSON object."""
    try:
        request = json.loads(text)
    except ValueError:
        return None
    return request if isinstance(request, dict) else None


def to_json(value: Json) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"))


def as_list(value: Json) -> list[Json]:
    """What a client sent as a list, or alone."""
    return value if isinstance(value, list) else [] if value is None else [value]


class Dialogue(ABC):
    """One client's talk with an exchange."""

    deflate: ClassVar[bool] = False
    """Whether the exchange compresses messages (permessage-deflate) when a client asks for it."""

    def __init__(self, subscriptions: Subscriptions, path: str, query: Mapping[str, str]) -> None:
        self.subscriptions = subscriptions
        self.path = path
        self.query = query
        self.opened_s = self.heard_s = self.sent_s = self.timer_s

    @property
    def timer_s(self) -> float:
        """What time-outs go by."""
        return self.subscriptions.venue.clock.timer_s

    @property
    def venue(self) -> LiveVenue:
        """The exchange."""
        return self.subscriptions.venue

    @property
    def time(self) -> str:
        """The exchange's time as text, with milliseconds."""
        return to_timestamp(self.venue.now_us, milliseconds=True)

    @staticmethod
    @abstractmethod
    def serves(path: str) -> bool:
        """Whether there is a WebSocket at a path."""

    def greet(self) -> list[Frame]:
        """What a client that connects gets."""
        return []

    @abstractmethod
    def hear(self, text: str) -> list[Frame]:
        """The answers to what a client sent."""

    @abstractmethod
    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        """How the exchange says no: for no reason, or to a request."""

    def tick(self) -> list[Frame]:
        """What is to be said by the clock: heartbeats, time-outs."""
        return []

    def hear_pong(self) -> None:
        """The client answered a ping."""
        self.heard_s = self.timer_s


@dataclass(frozen=True)
class RestAnswer:
    """What a request gets."""

    body: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    late_s: float = 0.0


class Rest(ABC):
    """An exchange's answers over HTTP."""

    def __init__(self, venue: LiveVenue) -> None:
        self.venue = venue

    @abstractmethod
    def answer(self, path: str, query: Mapping[str, str]) -> RestAnswer:
        """The answer to a GET."""


class Family(NamedTuple):
    """All that makes one simulated exchange."""

    venue: Venue
    dialogue: type[Dialogue]
    times: re.Pattern[bytes]
    """The times in its messages: the one group."""
    rest: type[Rest] | None = None
