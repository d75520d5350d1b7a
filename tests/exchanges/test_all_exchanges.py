"""What is true of each of the 64, shown by its transcript: it is registered, its messages stay what they are in an event, and clients of
`/ws-replay` get what they subscribe to. That each data type has its section, and is live where it can be, is in test_transcripts.py; that
the lake takes them is in tests/spark/test_all_exchanges.py."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tardis_machine import TardisMachine
from tardis_machine.bronze.decoding import decode
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError, OptionsError
from tardis_machine.exchanges import EXCHANGES, make_mappers, switch_dates_us
from tardis_machine.filters import Filter, optimize_filters, to_compact_json
from tardis_machine.messages import UNSET, BookLevel, Message, from_json, to_json, to_timestamp
from tardis_machine.pipeline.request import parse_stream_request
from tests.exchanges.fuzz import transcript_of
from tests.exchanges.transcript import RawNumber, Section, Step
from tests.servers.http_site import http_site

SIDES = ("buy", "sell", "unknown", None, UNSET)
LOCAL = "2026-06-01T00:00:00.123456Z"


def test_there_are_64(vectors: Path) -> None:
    assert set(EXCHANGES) == set(json.loads((vectors / "exchanges.json").read_text()))
    assert len(EXCHANGES) == 64


@pytest.mark.parametrize("name", EXCHANGES)
def test_it_says_what_it_is(name: str) -> None:
    exchange = EXCHANGES[name]
    assert exchange.about.books
    assert exchange.about.note.endswith(".")
    if exchange.live is not None:
        assert not exchange.about.closed
        assert not exchange.has_history_only
        return
    with pytest.raises(OptionsError) as raised:
        parse_stream_request({"exchange": name, "dataTypes": ["trade"], "symbols": ["A"]})
    assert str(raised.value) == f"exchange: {exchange.has_history_only}"
    # AscendEX is open, but nobody recorded how it is heard live.
    assert bool(exchange.about.closed) is (name != "ascendex")


def test_why_there_is_no_live_data() -> None:
    said = {name: EXCHANGES[name].has_history_only for name in ("ftx", "huobi-dm-options", "ascendex")}
    assert said == {
        "ftx": "ftx closed in 2022-11: it has history only",
        "huobi-dm-options": "huobi-dm-options closed on 2021-06-26: it has history only",
        "ascendex": "ascendex has no live data: it has history only",
    }


def message_of(exchange: str, step: Step) -> Message:
    """What must come out, as a message."""
    fields: dict[str, Any] = {"type": step.message_type, "exchange": exchange, "localTimestamp": LOCAL}
    fields |= {name: value for name, value in step.fields.items() if value != "local"}
    if step.fields.get("timestamp") == "local":
        fields["timestamp"] = LOCAL
    for side in ("bids", "asks"):
        if side in fields:
            fields[side] = [{"price": level[0], "amount": level[1]} for level in fields[side]]
    return from_json(_text(fields))


def _text(value: Any) -> str:
    """JSON with the digits that the transcript has."""
    if isinstance(value, RawNumber):
        return str.__str__(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_text(item)}" for name, item in value.items()) + "}"
    return "[" + ",".join(map(_text, value)) + "]" if isinstance(value, list) else json.dumps(value)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_message_is_the_same_after_it_was_an_event(exchange: str) -> None:
    steps = [
        step
        for kind in ("history", "live")
        for section in transcript_of(exchange).of(kind)
        for step in section.steps
        if step.verb == "=" and step.message_type not in ("disconnect", "error")
    ]
    assert {step.message_type for step in steps} == set(EXCHANGES[exchange].data_types)
    encoder = BronzeEncoder(session_id="s", origin="replay")
    messages = [message_of(exchange, step) for step in steps]
    for odd in [message for message in messages if getattr(message, "side", None) not in SIDES]:
        # JSON has it as the exchange sent it; an event can't.
        with pytest.raises(NormalizeError, match="side is"):
            encoder.encode([odd])
        messages.remove(odd)
    events = encoder.encode(messages).events
    for message, event in zip(messages, events, strict=True):
        back = decode(event.value)
        assert back == message
        assert to_json(back) == to_json(message)


def test_a_message_of_a_transcript_keeps_its_digits() -> None:
    text = 'book_change {"symbol":null,"isSnapshot":true,"bids":[[1e-7,2]],"asks":[],"timestamp":"local"}'
    change = message_of("bitmex", Step(1, "=", text))
    assert change.bids == [BookLevel(1e-7, 2)]  # type: ignore[union-attr]
    assert change.timestamp == LOCAL


def understood(section: Section) -> list[str]:
    """What the exchange says in a section, but for what no mapper understands."""
    texts: list[str] = []
    for step in section.steps:
        if step.verb == "<":
            texts.append(step.text)
        elif step.verb == "!":
            texts.pop()
    return texts


@pytest.mark.parametrize("name", EXCHANGES)
def test_mappers_of_each_date_stand_what_was_recorded_at_any(name: str) -> None:
    """On the day of a switch both generations may be recorded: a mapper passes over what is not its own."""
    exchange = EXCHANGES[name]
    messages = [json.loads(text) for section in transcript_of(name).of("history") for text in understood(section)]
    for at_us in (0, *switch_dates_us(exchange, exchange.data_types)):
        for mapper in make_mappers(exchange, exchange.data_types, at_us):
            for message in messages:
                assert mapper.accepts(message) in (True, False), (type(mapper), message)


class AskedHistory:
    """A history API in which nothing was recorded: what it was asked for, by exchange."""

    def __init__(self) -> None:
        self.filters: dict[str, set[str]] = defaultdict(set)

    async def answer(self, request: web.Request) -> web.Response:
        self.filters[request.path.rpartition("/")[2]].add(request.query.get("filters", "[]"))
        return web.Response(body=gzip.compress(b""), headers={"X-Slice-Size": "1", "Content-Encoding": "gzip"})


def frames_of(section: Section) -> list[tuple[str, list[Filter] | None]]:
    """What clients say in a section, and the filters that come of it; None: it is no subscription."""
    frames: list[tuple[str, list[Filter] | None]] = []
    for step in section.steps:
        if step.verb == ">":
            frames.append((step.text, []))
        elif step.verb == "FILTER":
            channel, *symbols = step.text.split(" ")
            given = [] if symbols == ["[]"] else symbols
            filters = frames[-1][1]
            assert filters is not None
            # Null, which stands for the symbol that a client did not name, is every symbol.
            filters.append(Filter(channel, given) if symbols and symbols != ["[null]"] else Filter(channel))
        elif step.verb == "NONE":
            frames[-1] = (frames[-1][0], None)
    return frames


async def test_clients_of_ws_replay_get_what_they_subscribe_to(tmp_path: Path) -> None:
    """All exchanges at once, each with the frames of its first section of subscriptions."""
    history = AskedHistory()
    async with http_site(history.answer) as port:
        machine = TardisMachine(api_url=f"http://127.0.0.1:{port}/v1", cache_dir=tmp_path / "cache", workers=1)
        await machine.start(port=0)
        try:
            async with aiohttp.ClientSession() as http:
                codes = await asyncio.gather(*(subscribe(http, machine.ws_port, exchange) for exchange in EXCHANGES))
        finally:
            await machine.stop()
    assert set(codes) == {1000}
    for exchange in EXCHANGES:
        frames = frames_of(transcript_of(exchange).of("subscriptions")[0])
        asked = optimize_filters(item for _, filters in frames for item in filters or ())
        assert history.filters[exchange] == {to_compact_json(asked).decode()}, exchange


async def subscribe(http: aiohttp.ClientSession, port: int, exchange: str) -> int | None:
    """Says what a client says; how its replay ended."""
    section = transcript_of(exchange).of("subscriptions")[0]
    start_us = parse_date_us(section.at)
    query = {"exchange": exchange, "from": to_timestamp(start_us), "to": to_timestamp(start_us + 60_000_000)}
    async with http.ws_connect(f"http://127.0.0.1:{port}/ws-replay", params=query) as socket:
        for text, _ in frames_of(section):
            await socket.send_str(text)
        async for _ in socket:
            pass
        return socket.close_code
