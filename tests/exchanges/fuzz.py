"""Every exchange with what it never sends: its transcript's messages, mutated, to its mappers and to its feed.

    python -m tests.exchanges.fuzz                                   10,000 messages to the mappers and to the feed of each exchange
    python -m tests.exchanges.fuzz --messages 500 --seed 7 huobi     fewer, others, of one

What must hold: a message gives normalized messages or a NormalizeError. What comes out has the kinds that the contract names, in JSON
without a NaN or an Infinity, and is the same again after it was an event; nothing that is computed of it raises. A frame is one of the
kinds that there are, or ends the connection; a complaint is always told in words.

Invariant: the same seed gives the same messages.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from tardis_machine.bronze.decoding import decode
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.computed import Computer
from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError, OptionsError
from tardis_machine.exchanges import EXCHANGES, BookStep, Feed, Fetch, FrameKind
from tardis_machine.filters import Filter
from tardis_machine.messages import Message, to_json, to_timestamp
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.transcript import FOLDER, SUFFIX, Section, Transcript, read_transcript

MESSAGES = 10_000
_COMPUTED = (
    "trade_bar_1s",
    "trade_bar_10vol",
    "trade_bar_5ticks",
    "book_snapshot_5_0ms",
    "book_snapshot_5_grouped10_10s",
    "quote",
)
_SESSION = 60
"""Messages until the connection is a new one, about."""


@dataclass
class Outcome:
    """What came of the messages of one exchange."""

    exchange: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What must not be, each with the message that did it."""

    def fault(self, what: str, raw: bytes) -> None:
        self.counts["faults"] += 1
        if len(self.faults) < 5:
            self.faults.append(f"{what}\n    {raw[:1500]!r}")


class Mutator:
    """Makes odd messages of good ones, by a seed."""

    def __init__(self, seed: str, words: Sequence[Any]) -> None:
        self.random = Random(seed)
        # What is at home in this exchange's messages: symbols, names of channels, numbers.
        self._words = words

    def raw(self, raw: bytes) -> bytes:
        """The bytes of an odd message; one in eight is good, and one in ten no JSON at all."""
        random = self.random
        if random.random() < 1 / 8:
            return raw
        if random.random() < 0.1:
            return self._bytes(raw)
        try:
            message = json.loads(raw)
        except ValueError:
            return self._bytes(raw)
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            message = self._changed(message)
        return json.dumps(message, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")

    def _bytes(self, raw: bytes) -> bytes:
        random = self.random
        place = random.randrange(len(raw) + 1)
        match random.randrange(5):
            case 0:
                return raw[:place]
            case 1:
                return (
                    raw[:place] + random.choice((b"\xff", b"\x00", b'"', b"{", b"]", b",", b"1e999", b"NaN")) + raw[place + 1 :]
                )
            case 2:
                return raw[:place] + raw[place : place + 20] + raw[place:]
            case 3:
                return random.choice((b"", b" ", b"[" * 300 + b"]" * 300, b"nul", b'"\\ud800"', b"PONG", b"\x1f\x8b\x00", b"-"))
            case _:
                return raw[place:]

    def _changed(self, message: Any) -> Any:
        """The message with one place of it changed."""
        places = list(_places(message))
        if not places:
            return self._odd()
        container, key = self.random.choice(places)
        value = container[key]
        match self.random.randrange(9):
            case 0:
                del container[key]
            case 1 if isinstance(container, list):
                container.insert(key, deepcopy(value))
            case 1 | 2:
                other, place = self.random.choice(places)
                container[key], other[place] = deepcopy(other[place]), deepcopy(value)
            case 3:
                container[key] = self.random.choice(self._words)
            case 4:
                container[key] = self._similar(value)
            case 5 if isinstance(value, list):
                container[key] = value[: self.random.randrange(len(value) + 1)] * self.random.choice((0, 1, 3))
            case 6 if isinstance(container, dict):
                container[self.random.choice(("new", "", "data", "symbol"))] = self._odd()
            case 7:
                container[key] = [value]
            case _:
                container[key] = self._odd()
        return message

    def _similar(self, value: Any) -> Any:
        """The same in another type, or a little off."""
        random = self.random
        if isinstance(value, bool) or value is None:
            return random.choice((True, False, None, "true", 0, 1))
        if isinstance(value, int | float):
            return random.choice(
                (str(value), -value, value + 1, value - 1, value * 10**9, value / 7, f"{value}0000000000000000001")
            )
        if isinstance(value, str):
            choices: list[Any] = [
                f"{value}é",
                value[:-1],
                value.upper(),
                value.lower(),
                f" {value} ",
                f"-{value}",
                [value],
                value * 40,
            ]
            with suppress(ValueError, OverflowError):
                choices += [float(value), int(float(value))]
            return random.choice(choices)
        return self._odd()

    def _odd(self) -> Any:
        return deepcopy(self.random.choice(_ODD))


_ODD: Sequence[Any] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        0.0,
        -0.0,
        1e-7,
        1e21,
        1e300,
        -1e300,
        5e-324,
        2**53,
        2**53 + 1,
        2**63,
        2**64,
        10**25,
        -(2**63),
    ),
    *(
        "",
        " ",
        "0",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e400",
        "1e-400",
        "0x10",
        "abc",
        "null",
        "1_000",
        "１２",
        "\u0000",
    ),
    *(
        "2024-02-30T00:00:00Z",
        "0000-00-00",
        "+275760-09-13T00:00:00.001Z",
        "-000001-01-01T00:00:00Z",
        "9" * 400,
        "X" * 2000,
        "\ud800",
    ),
    *(1_780_272_000_000, 1_780_272_000_000_000, 1_780_272_000_000_000_000, 253_402_300_800_000, -62_167_219_200_001, 8.64e15 + 1),
    *([], {}, [[]], [None], [[None, None]], {"a": None}, ["1", "2"], [["1", "2"]], [[1, "x"]], {"price": "1", "size": None}),
)


def _places(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a message that holds a value."""
    waiting = [message]
    while waiting:
        container = waiting.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container) if isinstance(container, list) else ()
        for key, value in items:
            yield container, key
            waiting.append(value)


@cache
def transcript_of(exchange: str) -> Transcript:
    return read_transcript(FOLDER / f"{exchange}{SUFFIX}")


def raws_of(section: Section) -> list[bytes]:
    """What the exchange says in a section."""
    return [step.text.encode() for step in section.steps if step.verb == "<"]


def _words_of(raws: Sequence[bytes]) -> list[Any]:
    """What stands in messages, each once."""
    words: dict[str, Any] = {}
    for raw in raws:
        try:
            message = json.loads(raw)
        except ValueError:
            continue
        for container, key in _places(message):
            value = container[key]
            if not isinstance(value, dict | list):
                words[repr(value)] = value
            if isinstance(key, str):
                words[repr(key)] = key
    return list(words.values()) or [""]


def fuzz_mappers(exchange: str, count: int, seed: int) -> Outcome:
    """Mappers of all dates and data types, with messages of all sections: mostly of one at a time, in their order."""
    outcome = Outcome(exchange)
    sections = [(parse_date_us(section.at), raws_of(section)) for section in transcript_of(exchange).of("history")]
    sections = [(at_us, raws) for at_us, raws in sections if raws]
    all_raws = [raw for _, raws in sections for raw in raws]
    mutator = Mutator(f"{seed} {exchange} mappers", _words_of(all_raws))
    random, data_types = mutator.random, EXCHANGES[exchange].data_types
    left = count
    while left > 0:
        at_us, raws = random.choice(sections)
        normalizer = Normalizer(exchange, data_types, at_us, realtime=random.random() < 0.5)
        check = MessageCheck(outcome)
        for _ in range(random.randrange(1, 2 * _SESSION)):
            raw = mutator.raw(random.choice(all_raws if random.random() < 0.1 else raws))
            at_us += random.choice((0, 1, 1000, 250_000, 60_000_000))
            _normalize(normalizer, at_us, raw, check)
            left -= 1
    return outcome


def _normalize(normalizer: Normalizer, at_us: int, raw: bytes, check: MessageCheck) -> bool:
    """Whether the message was taken; what came of it is checked either way."""
    taken = True
    try:
        messages = normalizer.feed(to_timestamp(at_us)[:-1].encode() + b"7Z", raw)
    except NormalizeError as error:
        messages, taken = list(error.emitted), False  # type: ignore[arg-type]
        check.outcome.counts[f"raised {type(error.__cause__).__name__}"] += 1
    except Exception:
        check.outcome.fault(f"normalizing raised {traceback.format_exc(limit=-3)}", raw)
        return False
    check.take(messages, raw)
    return taken


class MessageCheck:
    """What must be true of every message of a session."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._encoder = BronzeEncoder(session_id="fuzz", origin="replay", clock_us=lambda: 0)
        self._computer = Computer(_COMPUTED, keep_sources=True)

    def take(self, messages: list[Message], raw: bytes) -> None:
        self.outcome.counts["messages"] += len(messages)
        for message in messages:
            try:
                text = to_json(message)
                printed = json.loads(text, parse_constant=_no_constant)
            except Exception as error:
                self.outcome.fault(f"JSON of {message} raised {error!r}", raw)
                continue
            self._check_form(message, printed, raw)
            try:
                events = self._encoder.encode([message]).events
            except NormalizeError:
                self.outcome.counts["refused by bronze"] += 1
            except Exception:
                self.outcome.fault(f"bronze of {text[:600]!r} raised {traceback.format_exc(limit=-3)}", raw)
            else:
                self._check_events([event.value for event in events], text, raw)
        try:
            computed = self._computer.feed(messages)
            for message in computed:
                json.loads(to_json(message), parse_constant=_no_constant)
            self._encoder.encode(computed)
        except NormalizeError:
            self.outcome.counts["refused by bronze"] += 1
        except Exception:
            self.outcome.fault(f"computing raised {traceback.format_exc(limit=-3)}", raw)

    def _check_events(self, events: Sequence[bytes], text: bytes, raw: bytes) -> None:
        try:
            back = [to_json(decode(event)) for event in events]
        except Exception as error:
            self.outcome.fault(f"the event of {text[:600]!r} can't be read: {error!r}", raw)
        else:
            if back != [text]:
                self.outcome.fault(f"bronze gives {back} for {text[:600]!r}", raw)

    def _check_form(self, message: Message, printed: Any, raw: bytes) -> None:
        """Fields have the kind that they have in the contract, or are null where JavaScript has no number, text or date."""
        for name, value in printed.items():
            if problem := _problem_of(name, value):
                self.outcome.fault(f"a {type(message).__name__} has {problem}", raw)


_TEXTS = frozenset(
    [
        "type",
        "symbol",
        "exchange",
        "side",
        "timestamp",
        "localTimestamp",
        "fundingTimestamp",
        "optionType",
        "expirationDate",
        "underlyingIndex",
    ]
)


def _problem_of(name: str, value: Any) -> str | None:
    match name, value:
        case (("bids" | "asks"), list(levels)):
            return next((f"{name} {level}" for level in levels if not all(_is_number(number) for number in level.values())), None)
        case "isSnapshot", (bool() | None):
            return None
        case "id", (str() | None):
            return None
        case _:
            is_sound = isinstance(value, str | None) if name in _TEXTS else _is_number(value)
            return None if is_sound else f"{name} {value!r}"


def _is_number(value: Any) -> bool:
    """Null is what JavaScript prints for a number that is none."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def fuzz_feed(exchange: str, count: int, seed: int) -> Outcome:
    """The feed and the mappers behind it, frame by frame, as `realtime.connection` runs them."""
    outcome = Outcome(exchange)
    live = EXCHANGES[exchange].live
    if live is None:
        return outcome
    sections = [(section, _frames_of(section)) for section in transcript_of(exchange).of("live")]
    sections = [(section, frames) for section, frames in sections if frames]
    mutator = Mutator(f"{seed} {exchange} feed", _words_of([raw for _, frames in sections for raw, _ in frames]))
    random, left = mutator.random, count
    while left > 0:
        section, frames = random.choice(sections)
        connection = FuzzedConnection(exchange, section, random, outcome)
        # In their order or in any: some can only be reached behind others.
        in_order = random.random() < 0.5
        for number in range(random.randrange(1, 2 * _SESSION)):
            raw, packing = frames[number % len(frames)] if in_order else random.choice(frames)
            left -= 1
            if not connection.hear(mutator.raw(raw) if packing != "hex" else _damaged(raw, random), packing):
                outcome.counts["connections lost"] += 1
                break
    return outcome


def _damaged(raw: bytes, random: Random) -> bytes:
    data = bytearray(raw)
    for _ in range(random.choice((0, 1, 2, 5))):
        if data:
            data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data[: random.randrange(len(data) + 1)] if random.random() < 0.2 else data)


def _frames_of(section: Section) -> list[tuple[bytes, str]]:
    return [
        (bytes.fromhex(step.text) if step.packing == "hex" else step.text.encode(), step.packing)
        for step in section.steps
        if step.verb == "<"
    ]


class FuzzedConnection:
    """One of the connections that a section's request makes."""

    def __init__(self, exchange: str, section: Section, random: Random, outcome: Outcome) -> None:
        self._normalizer = Normalizer(exchange, section.data_types, realtime=True)
        self._outcome = outcome
        self._check = MessageCheck(outcome)
        self._now_us = 1_780_272_000_000_000
        live = EXCHANGES[exchange].live
        assert live is not None
        plans: list[Sequence[Filter]] = live.feed.split(exchange, self._normalizer.filters(list(section.symbols) or None))
        self._feed: Feed = live.feed(exchange, random.choice(plans))
        try:
            self._fetches = [action for action in self._feed.subscribe(self._now_us) if isinstance(action, Fetch)]
        except OptionsError:
            self._fetches = []  # it wants an account
        self._random = random

    def hear(self, raw: bytes, packing: str) -> bool:
        """Whether the connection goes on."""
        feed, counts = self._feed, self._outcome.counts
        self._now_us += 1000
        if self._fetches and self._random.random() < 0.1:
            return self._fetch(self._random.choice(self._fetches), raw)
        try:
            text = raw if not packing else feed.to_text(gzip.compress(raw) if packing == "gzip" else raw)
            message = feed.decode(text)
            kind: Any = feed.classify(message)
            if isinstance(kind, BookStep):
                kind = feed.books.take(kind)
            elif not isinstance(kind, FrameKind):
                kind = feed.books.take_all(kind)
        except Exception as error:
            counts[f"not understood {type(error).__name__}"] += 1
            return False
        counts[str(kind)] += 1
        if kind is FrameKind.DATA:
            return _normalize(self._normalizer, self._now_us, text, self._check)
        if kind is FrameKind.GAP:
            if not feed.books.gap:
                self._outcome.fault("a gap that is not told in words", raw)
            return False
        if kind is FrameKind.ERROR:
            return self._complain(message, raw)
        if not isinstance(kind, FrameKind):
            self._outcome.fault(f"a frame is {kind!r}", raw)
        try:
            actions = feed.reply(message, self._now_us)
        except Exception as error:
            counts[f"not understood {type(error).__name__}"] += 1
            return False
        for action in actions:
            if isinstance(action, Fetch):
                self._fetches.append(action)
            elif not isinstance(action, str):
                self._outcome.fault(f"says {action!r}", raw)
        return True

    def _complain(self, message: Any, raw: bytes) -> bool:
        try:
            error = self._feed.complaint(message)
        except Exception:
            self._outcome.fault(f"a complaint is not told: {traceback.format_exc(limit=-2)}", raw)
            return False
        if not (isinstance(error.details, str) and error.details) or error.kind not in ("auth", "rate_limit", "other"):
            self._outcome.fault(f"a complaint is told as {error}", raw)
        return error.kind != "rate_limit" and not error.is_final

    def _fetch(self, fetch: Fetch, raw: bytes) -> bool:
        """What is fetched is anything: what is heard, or the answer it should be is not known here."""
        try:
            raws = fetch.to_messages(raw)
        except Exception as error:
            self._outcome.counts[f"not understood {type(error).__name__}"] += 1
            return False
        return all(_normalize(self._normalizer, self._now_us, one, self._check) for one in raws or ())


FUZZES: Sequence[tuple[str, Callable[[str, int, int], Outcome]]] = (("mappers", fuzz_mappers), ("feed", fuzz_feed))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exchanges.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("exchanges", nargs="*", help="all, if none is named")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="how many for the mappers and for the feed of each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    faults = 0
    for exchange in options.exchanges or EXCHANGES:
        for what, fuzz in FUZZES:
            began_s = time.process_time()
            outcome = fuzz(exchange, options.messages, options.seed)
            counts = ", ".join(f"{count} {name}" for name, count in outcome.counts.most_common())
            print(f"{exchange} {what} ({time.process_time() - began_s:.1f} s): {counts or 'none'}", flush=True)
            for fault in outcome.faults:
                faults += 1
                print(f"  FAULT {fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
