"""What a feed is: how to talk to an exchange's live connection, and what to make of what it says.

Invariant: pure. Bytes and decoded JSON come in, frames and requests go out; no clock, socket or environment.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import ClassVar, Literal, NamedTuple, TypeVar

import orjson

from ..errors import OptionsError
from ..filters import Filter
from ..messages import UNSET
from ._mapper import Json


class FrameKind(Enum):
    """What a frame from the exchange is."""

    DATA = "data"
    HEARTBEAT = "heartbeat"
    """The connection lives, which says nothing of its data."""
    ERROR = "error"
    IGNORED = "ignored"
    """An answer, or a change of something of which the state is not known yet."""


ErrorKind = Literal["auth", "rate_limit", "other"]


class FeedError(NamedTuple):
    """What an exchange complained of."""

    kind: ErrorKind
    details: str


class HttpRequest(NamedTuple):
    """What a feed needs beside its connection."""

    path: str
    """With its query; the exchange's REST address goes before it."""
    stream: str
    """What the recorder calls the answer."""
    every_s: float | None = None
    """None: once for each connection, as often as it takes to get one that fits."""


class Feed(ABC):
    """One live connection to an exchange, without I/O: what to say to it, and what to make of what it says.

    One is made for each attempt to connect, for the filters that this connection is to serve; it never sees messages of two
    connections. Who runs it connects to `path`, sends `subscribe()`, fetches `requests(None)`, and from then on for each frame:
    `plain` (binary ones), `decode`, `classify`. DATA goes to `follow`, and unless that finds something missing it is delivered;
    of an ERROR `error` tells more; HEARTBEAT and IGNORED have `replies` to send and `requests` to fetch. Every method may raise on
    a message that it does not understand: the connection is then given up, and a new one made.
    """

    max_subscriptions: ClassVar[int] = 1_000
    """Channels times symbols that one connection may serve."""
    subscribe_interval_s: ClassVar[float] = 0.0
    """Least time between two frames of `subscribe`."""
    ping_interval_s: ClassVar[float] = 15.0
    needs_symbols: ClassVar[bool] = True
    """Whether all symbols of a channel can't be asked for at once."""

    def __init__(self, exchange: str, filters: Sequence[Filter]) -> None:
        self.exchange = exchange
        self.filters = filters

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        """The filters of each connection, where an exchange serves them at several addresses."""
        return [filters]

    @property
    @abstractmethod
    def path(self) -> str:
        """What follows the exchange's address, with its query."""

    @abstractmethod
    def subscribe(self) -> Sequence[str]:
        """The frames that ask for what the filters say."""

    def ping(self) -> str | None:
        """A frame that keeps the connection open; None where a WebSocket ping does."""
        return None

    def plain(self, frame: bytes) -> bytes:
        """The text that a binary frame holds: as it is, gzip, or deflate without a header."""
        if frame[:2] == b"\x1f\x8b":
            return zlib.decompress(frame, wbits=31)
        return frame if frame[:1] in (b"{", b"[") else zlib.decompress(frame, wbits=-15)

    decode: Callable[[bytes], Json] = staticmethod(orjson.loads)
    """The message of a frame's text."""

    @abstractmethod
    def classify(self, message: Json) -> FrameKind:
        """What the message is; may depend on those before it."""

    def follow(self, message: Json) -> str | None:
        """Takes note of a DATA message's number: what is missing before it, in words; None where nothing is."""
        return None

    @abstractmethod
    def error(self, message: Json) -> FeedError:
        """What an ERROR complains of."""

    def replies(self, message: Json) -> Sequence[str]:
        """The frames that a HEARTBEAT or IGNORED message asks for."""
        return ()

    def requests(self, answer: Json | None) -> Sequence[HttpRequest]:
        """What to fetch on account of a HEARTBEAT or IGNORED message, or (None) as the connection is there."""
        return ()

    def answer(self, request: HttpRequest, body: bytes) -> bytes | None:
        """What was fetched as the recorder has it among the messages; None where it does not fit, and is to be fetched again."""
        raise NotImplementedError

    def spare_s(self, headers: Mapping[str, str]) -> float:
        """How long to wait before the next fetch, as the headers of an answer tell how much of a limit is used."""
        return 0.0

    def symbols(self, item: Filter) -> Sequence[str]:
        """The symbols of a filter, which must have some."""
        if item.symbols is UNSET or not item.symbols:
            raise OptionsError(f"symbols: got nothing, live data of {self.exchange} takes at least one symbol", "symbols")
        return item.symbols


_TOO_MUCH = re.compile(r"too.?(many|frequent)|rate.?limit|msg rate|throttl|\b(429|418)\b", re.IGNORECASE)
_NOT_ALLOWED = re.compile(r"auth|log.?in|api.?key|credential|signature|permission|forbidden|\b(401|403)\b", re.IGNORECASE)


def kind_of_error(text: str) -> ErrorKind:
    """What an exchange's own words say."""
    if _TOO_MUCH.search(text):
        return "rate_limit"
    return "auth" if _NOT_ALLOWED.search(text) else "other"


Item = TypeVar("Item")


def portions(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items, at most so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def to_frame(message: Json) -> str:
    """The text of a frame."""
    return orjson.dumps(message).decode()


class Live(NamedTuple):
    """Where an exchange's live data is, and how it is spoken to."""

    feed: type[Feed]
    socket_url: str
    """What the feed's path follows."""
    rest_url: str = ""
