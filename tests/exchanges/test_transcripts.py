"""Every exchange by its transcript: what mappers of each date make of messages, what is asked upstream, what clients' frames ask
for, and the live connection over real sockets, with faults. `transcript.py` says how a transcript is written."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tardis_machine import stream_normalized
from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import EXCHANGES, Feed, switch_dates_us
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, Message, to_json_lines, to_timestamp
from tardis_machine.pipeline import frames
from tardis_machine.pipeline.normalizer import Normalizer
from tardis_machine.realtime.backoff import Timings
from tests.exchanges import transcript_server
from tests.exchanges.transcript import (
    FOLDER,
    SUFFIX,
    Section,
    Step,
    Transcript,
    TranscriptError,
    difference,
    read_transcript,
    shown,
)
from tests.exchanges.transcript_server import LiveReader, Player, played_exchange

TRANSCRIPTS = [read_transcript(path) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))]
# Errors are told each time: a section may be played twice.
TIMINGS = Timings(
    first_s=0.005, most_s=0.02, limited_s=0.01, most_limited_s=0.02, close_timeout_s=0.1, refetch_s=0.01, summary_s=0.0
)


def sections(kind: str) -> list[Any]:
    return [
        pytest.param(transcript, section, id=f"{transcript.exchange}:{section.line}")
        for transcript in TRANSCRIPTS
        for section in transcript.of(kind)
    ]


def fail(transcript: Transcript, line: int, problem: str) -> None:
    pytest.fail(f"{transcript.place(line)}: {problem}", pytrace=False)


@pytest.mark.parametrize("name", EXCHANGES)
def test_every_exchange_has_a_transcript_of_all_that_it_does(name: str) -> None:
    transcript = next((one for one in TRANSCRIPTS if one.exchange == name), None)
    if transcript is None:
        pytest.fail(f"{name} has no transcript: {FOLDER.name}/{name}{SUFFIX} is missing", pytrace=False)
    exchange = EXCHANGES[name]
    missing = []
    for data_type in exchange.data_types:
        dates = switch_dates_us(exchange, [data_type])
        covered = {
            bisect_right(dates, parse_date_us(section.at))
            for section in transcript.of("history")
            if data_type in section.outputs and any(step.verb == "FILTER" for step in section.steps)
        }
        for version in set(range(len(dates) + 1)) - covered:
            since = "the beginning" if version == 0 else to_timestamp(dates[version - 1], milliseconds=True)
            missing.append(f"a history section with filters in which {data_type} comes out as of {since}")
    asked = "ALL" if exchange.subscribes_to_all else "FILTER"
    if not any(step.verb == asked for section in transcript.of("subscriptions") for step in section.steps):
        missing.append("a subscription with its filters")
    if not any(step.verb == "NONE" for section in transcript.of("subscriptions") for step in section.steps):
        missing.append("a frame that is no subscription")
    if exchange.live is not None:
        outputs = set().union(*(section.outputs for section in transcript.of("live")))
        needed = [kind for kind in (*exchange.data_types, "disconnect", "error") if kind not in outputs]
        missing += [f"a live section in which {kind} comes out" for kind in needed]
        if not any(step.verb == "PING" for section in transcript.of("live") for step in section.steps):
            missing.append("a live section with its ping")
    assert not missing, f"{FOLDER.name}/{name}{SUFFIX} has no\n  " + "\n  ".join(missing)


def test_every_transcript_is_of_an_exchange() -> None:
    assert {transcript.exchange for transcript in TRANSCRIPTS} <= set(EXCHANGES)


def recorded_time(section: Section) -> bytes:
    """A time of the section's date."""
    return to_timestamp(parse_date_us(section.at) + 123_456)[:-1].encode() + b"7Z"


def expectations(steps: Sequence[Step]) -> list[tuple[Step, list[Step]]]:
    """Each message, or lost connection, and what must come of it."""
    pairs: list[tuple[Step, list[Step]]] = []
    for step in steps:
        if step.verb in ("<", "CUT"):
            pairs.append((step, []))
        elif step.verb in ("=", "!"):
            pairs[-1][1].append(step)
    return pairs


@pytest.mark.parametrize(("transcript", "section"), sections("history"))
def test_history(transcript: Transcript, section: Section) -> None:
    at_us, clock = parse_date_us(section.at), recorded_time(section)
    normalizer = Normalizer(transcript.exchange, section.data_types, at_us)
    if asked := [step for step in section.steps if step.verb == "FILTER"]:
        check_filters(transcript, section.line, asked, normalizer.filters(list(section.symbols) or None))
    came: list[Message] = []
    for step, expected in expectations(section.steps):
        problem = None
        try:
            messages = normalizer.disconnect() if step.verb == "CUT" else normalizer.feed(clock, step.text.encode())
        except NormalizeError as error:
            messages, problem = list(error.emitted), str(error)  # type: ignore[arg-type]
        check_outcome(transcript, step, expected, messages, problem)
        came += messages
    check_batches(transcript, section, came)


SWITCHING = [one for one in TRANSCRIPTS if switch_dates_us(EXCHANGES[one.exchange], EXCHANGES[one.exchange].data_types)]
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


@pytest.mark.parametrize("transcript", SWITCHING, ids=lambda transcript: transcript.exchange)
def test_a_generation_ends_the_day_before_a_switch_and_the_next_begins_on_its_day(transcript: Transcript) -> None:
    """What a section's messages give on its date, they give on the first day of its generation, and on the last."""
    exchange = EXCHANGES[transcript.exchange]
    for kind in exchange.data_types:
        dates = switch_dates_us(exchange, [kind])
        played = set()
        for section in transcript.of("history"):
            if kind not in section.outputs:
                continue
            generation = bisect_right(dates, parse_date_us(section.at))
            for switch_us in dates[max(generation - 1, 0) : generation + 1]:
                for at_us in (switch_us, switch_us - DAY_US, switch_us - SECOND_US):
                    if bisect_right(dates, at_us) == generation:
                        check_kinds(transcript, section, kind, at_us)
                        played.add((switch_us, at_us < switch_us))
        assert played == {(switch_us, is_before) for switch_us in dates for is_before in (True, False)}, kind


def check_kinds(transcript: Transcript, section: Section, kind: str, at_us: int) -> None:
    """At another date, as many messages come of each: what they say of time depends on it."""
    normalizer = Normalizer(transcript.exchange, [kind], at_us)
    clock = recorded_time(replace(section, at=to_timestamp(at_us)))
    for step, expected in expectations(section.steps):
        try:
            messages = normalizer.disconnect() if step.verb == "CUT" else normalizer.feed(clock, step.text.encode())
        except NormalizeError as error:
            if any(one.verb == "!" for one in expected):
                continue
            fail(transcript, step.line, f"at {to_timestamp(at_us)}: {error}")
        wanted = sum(one.message_type == kind for one in expected)
        if len(messages) != wanted and not any(one.verb == "!" for one in expected):
            fail(transcript, step.line, f"at {to_timestamp(at_us)} expected {wanted} of {kind}\n     got {len(messages)}")


def check_outcome(transcript: Transcript, step: Step, expected: list[Step], messages: list[Message], problem: str | None) -> None:
    outputs = [one for one in expected if one.verb == "="]
    for one, message in zip(outputs, [*messages, *([None] * len(outputs))], strict=False):
        if told := difference(one, message):
            fail(transcript, one.line, told)
    if len(messages) > len(outputs):
        fail(transcript, step.line, f"expected nothing more\n     got {shown(messages[len(outputs)])}")
    errors = [one for one in expected if one.verb == "!"]
    if (problem is not None) is not bool(errors) or any(one.text not in str(problem) for one in errors):
        fail(transcript, step.line, f"expected {'an error with ' + errors[0].text if errors else 'no error'}\n     got {problem}")


def check_batches(transcript: Transcript, section: Section, came: list[Message]) -> None:
    """In one go the lines give the same, and the same again after the connection was lost."""
    if any(step.verb == "!" for step in section.steps):
        return
    clock = recorded_time(section)
    lines = [b"" if step.verb == "CUT" else clock + b" " + step.text.encode() for step, _ in expectations(section.steps)]
    normalizer = Normalizer(transcript.exchange, section.data_types, parse_date_us(section.at))
    for messages in (normalizer.feed_lines(lines), normalizer.feed_lines([b"", *lines])):
        if messages != came:
            fail(transcript, section.line, "fed in one go, or after a lost connection, its messages give something else")
    written = Normalizer(transcript.exchange, section.data_types, parse_date_us(section.at), only_written=True).feed_lines(lines)
    if frames.to_json_lines(written) != to_json_lines(came):
        fail(transcript, section.line, "only written, its messages give something else")


def check_filters(transcript: Transcript, line: int, steps: Sequence[Step], filters: Sequence[Filter]) -> None:
    expected = [step.text for step in steps]
    got = [show_filter(item) for item in filters]
    if got != expected:
        fail(transcript, steps[0].line if steps else line, f"expected filters {expected}\n     got {got}")


def show_filter(item: Filter) -> str:
    symbols = [item.symbols] if isinstance(item.symbols, str) else item.symbols
    if symbols is UNSET:
        return item.channel
    return " ".join([item.channel, *("[null]" if symbol is None else symbol for symbol in symbols or ["[]"])])


@pytest.mark.parametrize(("transcript", "section"), sections("subscriptions"))
def test_subscriptions(transcript: Transcript, section: Section) -> None:
    read = EXCHANGES[transcript.exchange].subscriptions
    frames: list[tuple[Step, list[Step]]] = []
    for step in section.steps:
        if step.verb == ">":
            frames.append((step, []))
        else:
            frames[-1][1].append(step)
    for step, expected in frames:
        filters = read(json.loads(step.text), parse_date_us(section.at))
        is_none = any(one.verb == "NONE" for one in expected)
        if is_none is not (filters is None):
            fail(transcript, step.line, f"expected {'no subscription' if is_none else 'a subscription'}\n     got {filters}")
        if filters is not None:
            is_all = not filters and EXCHANGES[transcript.exchange].subscribes_to_all
            if is_all is not any(one.verb == "ALL" for one in expected):
                fail(transcript, step.line, f"expected {'some' if is_all else 'all'} channels\n     got {filters}")
            check_filters(transcript, step.line, [one for one in expected if one.verb == "FILTER"], filters)


def never(feed: Feed) -> float:
    return 3600.0


def soon_then_never(feed: Feed) -> float:
    """One ping for each connection: one that is sent while the exchange hangs up would be an error of its own."""
    is_first = not vars(feed).get("has_pinged", False)
    vars(feed)["has_pinged"] = True
    return 0.03 if is_first else 3600.0


@pytest.mark.parametrize(("transcript", "section"), sections("live"))
async def test_live(transcript: Transcript, section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    name = transcript.exchange
    live = EXCHANGES[name].live
    assert live is not None, f"{name} has no live data"
    ping = next((step for step in section.steps if step.verb == "PING"), None)
    monkeypatch.setattr(live.feed, "subscribe_interval_s", 0.0)
    monkeypatch.setattr(live.feed, "ping_interval_s", property(soon_then_never if ping else never))
    async with played_exchange(ping) as exchange:
        urls = {name: f"ws://127.0.0.1:{exchange.port}"}
        if live.rest_url:
            urls[f"{name}-rest"] = f"http://127.0.0.1:{exchange.port}"
        reader = LiveReader(
            stream_normalized(
                exchange=name,
                symbols=list(section.symbols) or None,
                data_types=section.data_types,
                with_disconnect_messages=True,
                with_error_messages=True,
                timeout_interval_ms=0,
                exchange_urls=urls,
                exchange_credentials=dict(step.text.split("=", 1) for step in section.steps if step.verb == "WITH"),
                _timings=TIMINGS,
            )
        )
        try:
            await Player(transcript, section, exchange, reader).play_all()
        finally:
            await reader.stop()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("< {}", "x.transcript:1: a section must begin first"),
        ("== future 2020", "x.transcript:1: a section is one of history, subscriptions, live"),
        ("== history 2020-01-01 trades", "x.transcript:1: trades is no data type"),
        ("# why\n\n== history 2020-01-01 trade\nCONNECT /x", "x.transcript:4: CONNECT has no meaning in history"),
        ("== live trade X\n= trade {no", "x.transcript:2: "),
    ],
)
def test_what_can_not_be_read_is_said_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "x.transcript"
    path.write_text(text)
    with pytest.raises(TranscriptError) as raised:
        read_transcript(path)
    assert str(raised.value).startswith(problem)


TRADE = '{"table":"trade","action":"insert","data":[{"timestamp":"2026-06-01T00:00:00.050Z","symbol":"A","side":"Buy","size":1,"price":2}]}'
MESSAGE = 'trade {"symbol":"A","price":2,"amount":1,"side":"buy","timestamp":"2026-06-01T00:00:00.050Z"}'
OPENING = 'CONNECT /realtime\n> {"op":"subscribe","args":["trade:A"]}'


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("CONNECT /elsewhere", "(as it stands): expected CONNECT /elsewhere\n     got CONNECT /realtime"),
        ('CONNECT /realtime\n> {"op":"no"}', 'expected {"op":"no"}\n     got {"op":"subscribe","args":["trade:A"]}'),
        (f"{OPENING}\n< {TRADE}\n= {MESSAGE.replace('2,', '2.0,', 1)}", f"got {MESSAGE}"),
        (f"{OPENING}\n< {TRADE}", f"expected at the end: disconnect\n     got {MESSAGE}"),
        (f"{OPENING}\n< {TRADE}\n= {MESSAGE}\n= {MESSAGE}", "     got nothing"),
        ("CONNECT /realtime X-Size=1", "expected the header X-Size=1\n     got None"),
        ("CONNECT /realtime\nPING {}", 'expected a ping {}\n     got {"op":"subscribe","args":["trade:A"]}'),
        ("CONNECT /realtime\nGET /book\n200 {}", "expected GET /book\n     got nothing"),
        ("CONNECT /realtime\nON /other", "there is no connection to /other"),
        (
            f"{OPENING}\nPING\nCLOSE 1001 bye",
            'expected at the end: disconnect\n     got disconnect {"symbols":["A"],"reason":"closed by',
        ),
    ],
)
async def test_what_does_not_go_as_written_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str, problem: str
) -> None:
    """The player itself: a transcript that is wrong must not pass."""
    monkeypatch.setattr(transcript_server, "TIMEOUT_S", 0.3)
    path = tmp_path / "bitmex.transcript"
    path.write_text(f"== live trade A\n{steps}\n")
    transcript = read_transcript(path)
    with pytest.raises(pytest.fail.Exception) as raised:
        await test_live(transcript, transcript.sections[0], monkeypatch)
    assert problem in str(raised.value)
    assert f"bitmex.transcript:{len(steps.removesuffix(chr(10) + '200 {}').splitlines()) + 1}" in str(raised.value)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("FILTER quote", "expected filters ['quote']\n     got ['trade']"),
        (f"< {TRADE}", f"expected nothing more\n     got {MESSAGE}"),
        (f"< {TRADE}\n! KeyError", "got"),
        ("< {}\n! KeyError", "expected an error with KeyError\n     got None"),
        ('< {"table":"trade","action":"insert"}', "expected no error\n     got bitmex message"),
    ],
)
def test_history_that_is_not_as_written_fails(tmp_path: Path, steps: str, problem: str) -> None:
    path = tmp_path / "bitmex.transcript"
    path.write_text(f"== history 2026-06-01 trade\n{steps}\n")
    transcript = read_transcript(path)
    with pytest.raises(pytest.fail.Exception) as raised:
        test_history(transcript, transcript.sections[0])
    assert problem in str(raised.value)
