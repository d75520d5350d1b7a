"""The transcript of an exchange: what is said and fetched, beside what must come out. One file for each exchange, of its name.

A line that begins with `#` is a comment; one that begins with a space goes on with the line before. `==` begins a section:

    == history 2019-06-01 trade,book_change XBTUSD ETHUSD     what mappers of a date make of messages; without symbols: of all
    == subscriptions 2019-06-01                               what a client's frame to /ws-replay asks for
    == live trade,book_change XBTUSD                          a live connection, played over real sockets

In all of them `>` goes to the exchange and `<` comes from it:

    FILTER trade XBTUSD ETHUSD      what is asked upstream: channel, symbols; none where all are meant, `[]` for an empty list,
                                    `[null]` for the symbol that a frame did not name.
                                    In a history section it is for the section's symbols, in subscriptions for the frame before.
    < {"table":"trade", …}          a message. What it must give stands below it; nothing, if nothing does
    = trade {"symbol":"XBTUSD", …}  a normalized message, complete but for `exchange` and `localTimestamp`. Levels are pairs. A
                                    `timestamp` of "local" is the local one. Numbers must have the same digits.
    ! KeyError                      the message before can't be normalized, with an error that says so (history alone)
    > {"op":"subscribe", …}         a frame that must be sent next, in live; in subscriptions, what the client says
    NONE                            the frame before is no subscription
    ALL                             it asks for all channels, without a filter

Only in live; the server does what it says, and fails where the next thing is another one:

    WITH OKX_API_KEY=k              a credential that the user gave; before all else
    CONNECT /realtime X-Size=1      a handshake, of that path and with that header. A status below it refuses it
    GET /api/v3/depth?symbol=A      a request, which the status below it answers; so does POST
    200 {"lastUpdateId":7}          an answer: status, headers as `Retry-After=0`, the body
    ON /ws/v5/business              what follows is of that connection
    PING {"op":"ping"}              this frame comes by itself, once for each connection; without a frame, a WebSocket ping
    <gzip {…}                       a binary frame, of the same text packed; <deflate, <binary (not packed), <hex 0a1b too
    CUT                             the exchange hangs up without a word
    CLOSE 1012 restarting           it closes the connection
    = disconnect {"reason":"…"}     the connection was lost; of this and of `error` the fields are checked that stand here

In a frame to the exchange and in a path `*` stands for anything, such as a clock: `{"id":"*"}`, `/?token=abc&id=*`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tardis_machine.exchanges import DATA_TYPES
from tardis_machine.messages import Message, to_json

FOLDER = Path(__file__).parent / "transcripts"
SUFFIX = ".transcript"
KINDS = {
    "history": ("FILTER", "<", "=", "!", "CUT"),
    "subscriptions": (">", "FILTER", "NONE", "ALL"),
    "live": ("WITH", ">", "<", "=", "CONNECT", "GET", "POST", "STATUS", "ON", "PING", "CUT", "CLOSE"),
}
PACKINGS = ("gzip", "deflate", "binary", "hex")
_STATUS = re.compile(r"[1-5]\d\d")


class RawNumber(str):
    """A number's own digits; never the same as a text of these."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawNumber) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return str(self)


def parse_json(text: str | bytes) -> Any:
    """JSON, with the digits of its numbers kept."""
    return json.loads(text, parse_int=RawNumber, parse_float=RawNumber, parse_constant=RawNumber)


@dataclass(frozen=True)
class Step:
    """One line of a section."""

    line: int
    verb: str
    text: str
    packing: str = ""
    """How a binary frame is packed; empty for text."""

    @property
    def message_type(self) -> str:
        """Of what must come out."""
        return self.text.partition(" ")[0]

    @property
    def fields(self) -> dict[str, Any]:
        """Of what must come out."""
        return dict(parse_json(self.text.partition(" ")[2] or "{}"))


@dataclass(frozen=True)
class Section:
    """What a heading begins."""

    line: int
    kind: str
    at: str
    """The date of history and subscriptions."""
    data_types: tuple[str, ...]
    symbols: tuple[str, ...]
    steps: list[Step] = field(default_factory=list)

    @property
    def outputs(self) -> set[str]:
        """The types of what must come out."""
        return {step.message_type for step in self.steps if step.verb == "="}


@dataclass(frozen=True)
class Transcript:
    """All of one exchange's."""

    exchange: str
    path: Path
    sections: list[Section]

    def of(self, kind: str) -> list[Section]:
        return [section for section in self.sections if section.kind == kind]

    def place(self, line: int) -> str:
        """Where to look."""
        return f"{self.path.parent.name}/{self.path.name}:{line}"


class TranscriptError(ValueError):
    """A transcript that can't be read: where, and why."""


def read_transcript(path: Path) -> Transcript:
    """What a file says."""
    sections: list[Section] = []
    for number, text in _whole_lines(path):
        try:
            if text.startswith("=="):
                sections.append(_section(number, text.removeprefix("==").split()))
            elif not sections:
                raise ValueError("a section must begin first: == history, == subscriptions or == live")
            else:
                step = _step(number, text)
                if step.verb not in KINDS[sections[-1].kind]:
                    raise ValueError(f"{step.verb} has no meaning in {sections[-1].kind}")
                sections[-1].steps.append(step)
        except ValueError as error:
            raise TranscriptError(f"{path.name}:{number}: {error}\n  {text[:200]}") from None
    return Transcript(path.stem, path, sections)


def _whole_lines(path: Path) -> list[tuple[int, str]]:
    """Lines with those that go on with them, and the number of the first."""
    whole: list[tuple[int, str]] = []
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        if text[:1] == " " and whole:
            first, begun = whole[-1]
            whole[-1] = (first, f"{begun}{text.strip()}")
        elif text.strip() and not text.startswith("#"):
            whole.append((number, text.rstrip()))
    return whole


def _section(line: int, words: list[str]) -> Section:
    kind, *rest = words or [""]
    if kind not in KINDS:
        raise ValueError(f"a section is one of {', '.join(KINDS)}")
    at = "" if kind == "live" else rest.pop(0)
    data_types = () if kind == "subscriptions" else tuple(rest.pop(0).split(","))
    for name in data_types:
        if name not in DATA_TYPES:
            raise ValueError(f"{name} is no data type")
    return Section(line, kind, at, data_types, tuple(rest))


def _step(line: int, text: str) -> Step:
    verb, _, rest = text.partition(" ")
    rest = rest.strip()
    if verb[0] == "<" and verb[1:] in PACKINGS:
        return Step(line, "<", rest, verb[1:])
    if _STATUS.fullmatch(verb):
        return Step(line, "STATUS", text)
    step = Step(line, verb, rest)
    if verb == "=" and not isinstance(step.fields, dict):
        raise ValueError("what comes out is a type and an object")
    return step


def comparable(message: Message) -> tuple[str, dict[str, Any]]:
    """A normalized message as a transcript has it: its type and its fields."""
    fields = parse_json(to_json(message))
    kind = fields.pop("type")
    fields.pop("exchange")
    local = fields.pop("localTimestamp")
    if fields.get("timestamp") == local:
        fields["timestamp"] = "local"
    for side in ("bids", "asks"):
        if side in fields:
            fields[side] = [[level.get("price"), level.get("amount")] for level in fields[side]]
    return kind, fields


def difference(step: Step, message: Message | None) -> str | None:
    """What is other than the step says; None where nothing is."""
    if message is None:
        return f"expected {step.text}\n     got nothing"
    kind, fields = comparable(message)
    expected = step.fields
    checked = {name: fields.get(name) for name in expected} if kind in ("disconnect", "error") else fields
    if (kind, checked) == (step.message_type, expected):
        return None
    return f"expected {step.text}\n     got {kind} {_shown(fields)}"


def shown(message: Message) -> str:
    """A message as a transcript would have it."""
    kind, fields = comparable(message)
    return f"{kind} {_shown(fields)}"


def _shown(value: Any) -> str:
    if isinstance(value, RawNumber):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_shown, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def matches(expected: Any, got: Any) -> bool:
    """Whether what was sent is what a transcript says, where `*` stands for anything."""
    if expected == "*":
        return True
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(matches(expected[name], got[name]) for name in expected)
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(matches, expected, got))
    return bool(expected == got and type(expected) is type(got))


def frame_matches(expected: str, got: str) -> bool:
    """The same of a frame's text, which need not be JSON."""
    if expected[:1] in "{[" and got[:1] in ("{", "["):
        return matches(parse_json(expected), parse_json(got))
    return expected == got


def path_matches(expected: str, got: str) -> bool:
    """The same of a path with its query."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("*"))), got) is not None
