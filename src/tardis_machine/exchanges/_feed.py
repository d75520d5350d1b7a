"""What a feed is: how to talk to an exchange's live connection, and what to make of what it says.

Invariant: pure. Bytes, decoded JSON and the time come in, frames and requests go out; no clock, socket or environment.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, TypeVar, final

import msgspec
import orjson

from ..brief import brief
from ..errors import OptionsError
from ..filters import Filter
from ..messages import UNSET
from ._decoding import decode_messages
from ._mapper import Json
from ._remembered import bound_symbols


class FrameKind(Enum):
    """What a frame from the exchange is."""

    DATA = "data"
    """Recorded and delivered."""
    ANSWER = "answer"
    """To a frame of ours, or a greeting. Goes to `Feed.reply`, and is not delivered."""
    HEARTBEAT = "heartbeat"
    """The connection lives, which says nothing of its data. Goes to `Feed.reply`, and is not delivered."""
    ERROR = "error"
    """A complaint. Goes to `Feed.error`, and is not delivered."""
    EARLY = "early"
    """Of a book that is not known yet. Not delivered. Only a gate says so."""
    GAP = "gap"
    """Something is missing before it. The connection is given up. Only a gate says so."""


@final
class BookStep(msgspec.Struct, gc=False):
    """One message of one book, as the exchange counts them."""

    book: str
    """What tells this book from the others of the connection; gaps are told by it."""
    is_snapshot: bool
    number: int = 0
    """Its own number, or the last one where it holds several; 0 where the exchange does not count."""
    previous: int | None = None
    """The number of the message before it; None where that is not to be checked."""
    first: int = 0
    """The first number that it holds, where it holds several."""
    content: Json = None
    """What a gate of the feed's own needs, where it checks more than numbers."""


Heard = FrameKind | BookStep | Sequence[BookStep]


_UNKNOWN = object()
_DATA = FrameKind.DATA


class BookGate:
    """Lets the messages of each book pass from its snapshot on, for as long as none is missing."""

    def __init__(self) -> None:
        # The number of each book's last message: of bounded many, as each that is new asks for room.
        self._last: dict[str, int] = {}
        self.gap = ""
        """What is missing, in words, once there was a GAP."""

    def take(self, step: BookStep) -> FrameKind:
        """DATA, EARLY or GAP. Called for every book message: keep it short."""
        book, known = step.book, self._last
        if step.is_snapshot:
            if book not in known:
                bound_symbols(known)
        else:
            last, previous = known.get(book, _UNKNOWN), step.previous
            if last is _UNKNOWN:
                return FrameKind.EARLY
            if previous is not None and previous != last:
                return self.miss(f"{book}: update {step.number} follows {previous}, but the last one was {last}")
        known[book] = step.number
        return _DATA

    def take_all(self, steps: Sequence[BookStep]) -> FrameKind:
        """Of a message with several: EARLY only if none of their books is known, a GAP if one of them has one."""
        kinds = [self.take(step) for step in steps]
        return next((kind for kind in (FrameKind.GAP, FrameKind.DATA) if kind in kinds), FrameKind.EARLY)

    def miss(self, what: str) -> FrameKind:
        """A gap, and what is missing in words."""
        self.gap = what
        return FrameKind.GAP


ErrorKind = Literal["auth", "rate_limit", "other"]


class FeedError(NamedTuple):
    """What an exchange complained of."""

    kind: ErrorKind
    """`rate_limit`: the connection is given up, and the next one waits longer."""
    details: str
    is_final: bool = False
    """The connection is of no more use, and is given up."""


NOTHING: Mapping[str, str] = MappingProxyType({})


class HttpRequest(NamedTuple):
    """What is asked over REST."""

    path: str
    """With its query; the exchange's REST address goes before it."""
    method: Literal["GET", "POST"] = "GET"
    headers: Mapping[str, str] = NOTHING


class Handshake(NamedTuple):
    """What a connection is opened with."""

    path: str
    """With its query; the exchange's WebSocket address goes before it."""
    base_url: str = ""
    """In place of that address, where the exchange has several, or names one as it is asked for access."""
    headers: Mapping[str, str] = NOTHING


class Fetch(NamedTuple):
    """What is fetched over REST beside a connection, and delivered among what is heard on it."""

    name: str
    """What errors call it."""
    path: str
    """With its query; the exchange's REST address goes before it."""
    to_messages: Callable[[bytes], Sequence[bytes] | None]
    """An answer's body to messages as the recorder has them. None: it is of no use (yet). It is then fetched again after a second,
    and after ten in a row the connection is given up."""
    every_s: float | None = None
    """How long after an answer it is fetched again; None: once for each connection."""


Action = str | Fetch
"""A frame to send, or something to fetch."""


class Credentials(dict[str, str]):
    """What an account proves itself with, and what it may use, by the name of its environment variable; never shown."""

    def __repr__(self) -> str:
        return f"<credentials {', '.join(self)}>" if self else "<no credentials>"

    __str__ = __repr__


class Feed(ABC):
    """One attempt to keep a connection to an exchange, without I/O: what to say to it, and what to make of what it says.

    `realtime.connection` runs it. Times are microseconds since 1970.

    1. It makes one for each attempt, for the filters that the connection is to serve (`split` says which go together). A feed never
       sees messages of two connections.
    2. It fetches `access_request`, if there is one, and connects as `handshake` says. If either fails, the attempt is over.
    3. It sends the frames of `subscribe`, `subscribe_interval_s` apart, and begins what is to be fetched. From then on it sends a
       `ping` every `ping_interval_s`.
    4. Of each frame, in order, it asks what it is: `to_text` if it is binary, `decode`, `classify`. Steps of books go to `books`,
       the gate, which says DATA, EARLY or GAP. `FrameKind` says what each kind causes. `decode_all` and `hear` do so for many frames.
    5. What is fetched goes through `Fetch.to_messages`, and is delivered without being classified. `pause_after_s` says how long the
       next fetch has to wait.

    A method may raise on a message that it does not understand: the connection is then given up. Whenever one is given up, its end
    is told, and after a wait the next attempt begins with 1.
    """

    max_subscriptions: ClassVar[int] = 1_000
    """Channels times symbols that one connection may serve."""
    subscribe_interval_s: ClassVar[float] = 0.0
    """Least time between two frames of `subscribe` or of one `reply`."""
    ping_interval_s: ClassVar[float] = 5.0
    needs_symbols: ClassVar[bool] = True
    """Whether all symbols of a channel can't be asked for at once."""
    credential_names: ClassVar[tuple[str, ...]] = ()
    """Secrets that it may find in `credentials`."""
    account_flags: ClassVar[tuple[str, ...]] = ()
    """What it may find there that is no secret: set where the account may use something."""

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        self.exchange = exchange
        self.filters = filters
        self.credentials = Credentials() if credentials is None else credentials
        """Those that were given; a feed must do without those that were not, or refuse with an OptionsError."""
        self.books = BookGate()
        """What book messages have to pass."""

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        """The filters of each connection, where an exchange serves them at several addresses. What is nowhere live is left out."""
        return [filters]

    def access_request(self, now_us: int) -> HttpRequest | None:
        """What must be asked before connecting, such as a token; None where nothing must."""
        return None

    @abstractmethod
    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        """Where to connect, and with what. `access` is the body that answered the `access_request`."""

    @abstractmethod
    def subscribe(self, now_us: int) -> Sequence[Action]:
        """The frames that ask for what the filters say, and what is fetched from the start."""

    def ping(self, now_us: int) -> str | None:
        """A frame that keeps the connection open; None where a WebSocket ping does."""
        return None

    def to_text(self, frame: bytes) -> bytes:
        """The text of a binary frame, which is what is recorded: it is text already, or packed by gzip, or by deflate without a
        header. A feed whose frames are of another format makes the text itself."""
        if frame[:2] == b"\x1f\x8b":
            return inflate(frame, 31)
        return frame if frame[:1] in (b"{", b"[") else inflate(frame, -15)

    decode: Callable[[bytes], Json] = staticmethod(orjson.loads)
    """The message of a frame's text, which need not be JSON."""

    def decode_all(self, texts: Sequence[bytes]) -> tuple[list[Json], Exception | None]:
        """The messages of the first texts, and why what follows them is none. Of a feed that decodes in its own way there is one: it may
        have to classify a message before it sees the next."""
        if self.decode is orjson.loads:
            return decode_messages(texts)
        try:
            return [self.decode(texts[0])], None
        except Exception as error:
            return [], error

    def hear(self, messages: Sequence[Json], start: int) -> tuple[int, FrameKind | Exception]:
        """The place, from the start on, of the first message that is not DATA, and what it is, or why nobody knows."""
        classify, gate = self.classify, self.books
        take, data = gate.take, FrameKind.DATA
        place = start
        try:
            for place in range(start, len(messages)):
                heard = classify(messages[place])
                if heard is data:
                    continue
                # Most often; and to ask an enum for its instances takes longer than all else here.
                if type(heard) is BookStep:
                    kind = take(heard)
                else:
                    kind = heard if isinstance(heard, FrameKind) else gate.take_all(heard)
                if kind is not data:
                    return place, kind
        except Exception as error:
            return place, error
        return len(messages), data

    @abstractmethod
    def classify(self, message: Json) -> Heard:
        """What the message is; of a book message, the step that it is, or the steps. Called for every message: keep it short."""

    @abstractmethod
    def error(self, message: Json) -> FeedError:
        """What an ERROR complains of; it may raise where that is told in another form than usual."""

    def complaint(self, message: Json) -> FeedError:
        """The same, in words whatever the form: in the feed's, or else in the exchange's own."""
        try:
            error = self.error(message)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            error = FeedError("other", "")
        if type(error.details) is str and error.details:
            return error
        said = brief(message)
        return FeedError(kind_of_error(said), said, error.is_final)

    def reply(self, message: Json, now_us: int) -> Sequence[Action]:
        """What an ANSWER, a HEARTBEAT or an EARLY message asks for."""
        return ()

    def pause_after_s(self, headers: Mapping[str, str]) -> float:
        """How long the next fetch must wait, as an answer's headers tell how much of a limit is used."""
        return 0.0

    def symbols(self, item: Filter) -> Sequence[str]:
        """The symbols of a filter, which must have some."""
        if item.symbols is UNSET or not item.symbols:
            raise OptionsError(f"symbols: expected at least one, as {self.exchange} does not stream all symbols live", "symbols")
        return item.symbols


# A whole market's book in one message has tens of megabytes.
MAX_TEXT_BYTES = 256 * 1024 * 1024


def inflate(packed: bytes, wbits: int, limit_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """The text of a packed frame; `wbits` is zlib's. ValueError where it is longer than the limit, or has no end."""
    unpacking = zlib.decompressobj(wbits)
    text = unpacking.decompress(packed, limit_bytes)
    if not unpacking.eof:
        raise ValueError(f"a packed frame of {len(packed)} bytes is cut, or becomes more than {limit_bytes} bytes")
    return text


_TOO_MUCH = re.compile(r"too.?(many|frequent)|rate.?limit|msg rate|throttl|\b(429|418)\b", re.IGNORECASE)
_NOT_ALLOWED = re.compile(r"auth|log.?in|api.?key|credential|signature|permission|forbidden|\b(401|403)\b", re.IGNORECASE)


def kind_of_error(text: str) -> ErrorKind:
    """What an exchange's own words say."""
    if _TOO_MUCH.search(text):
        return "rate_limit"
    return "auth" if _NOT_ALLOWED.search(text) else "other"


Item = TypeVar("Item")


def in_batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items, at most so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def to_frame(message: Json) -> str:
    """The text of a frame."""
    return orjson.dumps(message).decode()


class LiveApi(NamedTuple):
    """Where an exchange's live data is, and the feed that speaks to it."""

    feed: type[Feed]
    socket_url: str
    """What the path of a handshake follows."""
    rest_url: str = ""
    """What the path of a request follows; empty where there is none."""
