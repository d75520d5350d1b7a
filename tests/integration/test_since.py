"""History, then live, in one request: nothing is missing and nothing is told twice, by ids of trades and numbers of the book's changes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tardis_machine import Normalizer, TardisMachine, replay_normalized
from tardis_machine.computed.order_book import OrderBook
from tardis_machine.errors import OptionsError
from tardis_machine.filters import optimize_filters
from tardis_machine.history.recordings import RecordedFeed
from tardis_machine.messages import BookChange, Disconnect, Message, Trade, parse_timestamp_us, to_timestamp
from tardis_machine.pipeline.live_buffer import LiveBuffer
from tardis_machine.pipeline.recorded import RecordedHistory
from tardis_machine.recorded_line import TIME_LENGTH, to_time
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.live import SimulatedExchanges
from tardis_machine.sample.live.misbehaviour import Reset
from tardis_machine.sample.market import SampleMarket
from tests.integration.seam_market import DAY_US, MINUTE_US, TIMINGS, SeamMarket, seam_market
from tests.integration.served import gone_within
from tests.integration.test_publishing import published

SYMBOLS = {"bitmex": "XBTUSD", "binance-futures": "BTCUSDT", "deribit": "BTC-PERPETUAL"}
DATA_TYPES = ["trade", "book_change"]


def request(exchange: str, **options: Any) -> dict[str, Any]:
    """From when there is history, with the shortest wait for the last of it."""
    asked = {"exchange": exchange, "symbols": [SYMBOLS[exchange]], "data_types": DATA_TYPES, "from_": to_timestamp(DAY_US)}
    return asked | {"wait_when_data_not_yet_available": 6} | options


def is_heard(message: Message, market: SeamMarket) -> bool:
    """Whether it came live: what is heard has our clock's time, which is far from the market's."""
    return abs(parse_timestamp_us(message.local_timestamp) - market.now_us) > 60 * MINUTE_US


async def read_past_the_seam(
    market: SeamMarket, exchange: str, then: Callable[[], None] = lambda: None, **options: Any
) -> list[Message]:
    """All messages until the market is half a minute past where live data began to be told; `then` is called after a while of history."""
    messages: list[Message] = []
    end_us = None
    batches = replay_normalized(**request(exchange, **options), **market.options)
    async with asyncio.timeout(60), aclosing(batches):
        async for batch in batches:
            if not messages:
                asyncio.get_running_loop().call_later(1.0, then)
            messages += batch
            if end_us is None and is_heard(batch[-1], market):
                end_us = market.now_us + MINUTE_US // 2
            if end_us is not None and market.now_us > end_us:
                return messages
    raise AssertionError("the replay ended")


def levels_of(change: BookChange) -> tuple[Any, ...]:
    sides = (tuple((level.price, level.amount) for level in side) for side in (change.bids, change.asks))
    return change.timestamp, *sides


def book_of(changes: list[BookChange]) -> tuple[Any, ...]:
    """The levels of whoever applied them."""
    book = OrderBook()
    for change in changes:
        book.update(change)
    return tuple([(level.price, level.amount) for level in side] for side in (book.bids(), book.asks()))


def check(market: SeamMarket, exchange: str, messages: list[Message]) -> None:
    """Compares with what history says once all of it is past."""
    recorded = list(market.recorded(exchange, SYMBOLS[exchange], DATA_TYPES))
    known = [message for _, each in recorded for message in each]
    ids = [message.id for message in messages if isinstance(message, Trade)]
    assert ids == [message.id for message in known if isinstance(message, Trade)][: len(ids)]
    changes = [message for message in messages if isinstance(message, BookChange)]
    # A book that goes on live is told whole once; history's own first is one too.
    assert [change.is_snapshot for change in changes].count(True) == 2
    known_changes = [message for message in known if isinstance(message, BookChange)]
    if exchange != "deribit":  # which tells some changes together, on each connection others
        told = [levels_of(change) for change in changes if not change.is_snapshot]
        assert told == [levels_of(change) for change in known_changes if not change.is_snapshot][: len(told)]
    last = changes[-1].timestamp or ""
    assert book_of(changes) == book_of([change for change in known_changes if (change.timestamp or "") <= last])
    assert is_heard(changes[-1], market)
    assert not is_heard(changes[0], market)


def numbers_of(raw: dict[str, Any]) -> tuple[int, int] | None:
    """The number that a change of Binance's book follows, and its own."""
    data = raw["data"]
    return (data["pu"], data["u"]) if "pu" in data else None


async def test_nothing_is_missing_and_nothing_is_told_twice(tmp_path: Path) -> None:
    async with seam_market(tmp_path, *SYMBOLS) as market:
        told = await asyncio.gather(*(read_past_the_seam(market, exchange) for exchange in SYMBOLS))
        for exchange, messages in zip(SYMBOLS, told, strict=True):
            check(market, exchange, messages)
        numbers = {
            levels_of(message): found
            for raw, each in market.recorded("binance-futures", "BTCUSDT", DATA_TYPES)
            for message in each
            if isinstance(message, BookChange) and (found := numbers_of(raw))
        }
        changes = [message for message in told[1] if isinstance(message, BookChange) and not message.is_snapshot]
        assert all(before[1] == after[0] for before, after in pairwise(numbers[levels_of(change)] for change in changes))


async def test_a_connection_that_is_lost_before_the_seam_leaves_no_hole(tmp_path: Path) -> None:
    async with seam_market(tmp_path, "binance-futures") as market:
        lost = []
        messages = await read_past_the_seam(
            market,
            "binance-futures",
            lambda: lost.append(market.exchanges.misbehave("binance-futures", Reset())),
            with_disconnect_messages=True,
        )
        assert lost == [1]
        assert {message.__class__.__name__ for message in messages} == {"Trade", "BookChange"}
        check(market, "binance-futures", messages)


async def test_a_connection_that_is_lost_while_another_request_is_replayed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose own history has ended: nobody would replay what it misses."""
    async with seam_market(tmp_path, "binance-futures", "bitmex") as market:
        asked = [
            {"exchange": exchange, "symbols": [SYMBOLS[exchange]], "dataTypes": ["trade"], "from": to_timestamp(DAY_US)}
            | {"waitWhenDataNotYetAvailable": 6, "withDisconnectMessages": True}
            for exchange in ("binance-futures", "bitmex")
        ]
        ended = asyncio.Event()
        open_buffer = LiveBuffer.open

        def note(buffer: LiveBuffer) -> None:
            open_buffer(buffer)
            ended.set()

        monkeypatch.setattr(LiveBuffer, "open", note)

        async def lose() -> int:
            while not ended.is_set():
                # Until then the other is to be replayed further and further, as it loses what it has heard.
                market.exchanges.misbehave("bitmex", Reset())
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), 2.0)
            assert market.exchanges.misbehave("binance-futures", Reset()) == 1
            return market.now_us

        losing = asyncio.create_task(lose())
        messages: list[Message] = []
        batches = replay_normalized(*asked, **market.options)
        async with asyncio.timeout(60), aclosing(batches):
            async for batch in batches:
                messages += [message for message in batch if message.exchange == "binance-futures"]
                if losing.done() and any(isinstance(message, Disconnect) for message in messages):
                    break
        lost_us = await losing
        [place] = [place for place, message in enumerate(messages) if isinstance(message, Disconnect)]
        ids = [message.id for message in messages[:place] if isinstance(message, Trade)]
        recorded = market.recorded("binance-futures", SYMBOLS["binance-futures"], ["trade"])
        known = [message for _, each in recorded for message in each if isinstance(message, Trade)]
        assert ids == [trade.id for trade in known[: len(ids)]]
        # All that was heard until then.
        assert parse_timestamp_us(known[len(ids) - 1].local_timestamp) > lost_us - MINUTE_US


async def trades_until_live(lines: AsyncIterator[bytes], market: SeamMarket) -> list[dict[str, Any]]:
    """All trades until some came live."""
    trades: list[dict[str, Any]] = []
    live = 0
    async with asyncio.timeout(60):
        async for line in lines:
            trades.append(json.loads(line))
            live += abs(parse_timestamp_us(trades[-1]["localTimestamp"]) - market.now_us) > 60 * MINUTE_US
            if live == 20:
                break
    return trades


def served(**fields: Any) -> dict[str, str]:
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "from": to_timestamp(DAY_US)}
    return {"options": json.dumps(asked | {"waitWhenDataNotYetAvailable": 6} | fields)}


async def test_http_websocket_and_buses_get_the_same(tmp_path: Path) -> None:
    async with seam_market(tmp_path, "bitmex") as market:
        bus = {"file": {"dir": tmp_path / "events"}, "spool_dir": tmp_path / "spool"}
        machine = TardisMachine(
            api_url=market.api.url,
            cache_dir=tmp_path / "cache",
            exchange_urls=market.exchanges.urls,
            workers=0,
            _history=market.history,
            _timings=TIMINGS,
            **bus,
        )
        await machine.start(port=0)
        async with aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{machine.port}/{{}}-normalized"

            async def over_http() -> list[dict[str, Any]]:
                query = served(dataTypes=["trade", "trade_bar_100ticks"], to="live", publish=False)
                async with http.get(url.format("replay"), params=query) as response:
                    assert response.status == 200, await response.text()
                    return await trades_until_live(response.content, market)

            async def over_websocket() -> list[dict[str, Any]]:
                async with http.ws_connect(url.format("ws-replay"), params=served()) as socket:
                    return await trades_until_live((frame.data async for frame in socket), market)

            got = await asyncio.gather(over_http(), over_websocket())
        await machine.stop()
        recorded = market.recorded("bitmex", "XBTUSD", ["trade"])
        known = [message.id for _, each in recorded for message in each if isinstance(message, Trade)]
        for messages in got:
            ids = [message["id"] for message in messages if message["type"] == "trade"]
            assert ids == known[: len(ids)]
        bars = [message for message in got[0] if message["type"] == "trade_bar"]
        # What is computed goes on through the seam.
        assert [bar["trades"] for bar in bars] == [100] * len(bars)
        events = published(tmp_path / "events")
        told = [event for event in events if event.HasField("trade")]
        assert [event.trade.trade_id for event in told] == known[: len(told)]
        assert [event.origin for event in told] == sorted((event.origin for event in told), reverse=True)
        ends = [event.session_end for event in events if event.HasField("session_end")]
        assert [(end.complete, sum(entry.count for entry in end.entries)) for end in ends] == [
            (True, sum(event.origin == origin for event in told)) for origin in (2, 1)
        ]


async def test_what_is_missing_at_the_seam_is_told_to_who_does_not_wait(tmp_path: Path) -> None:
    async with (
        SimulatedExchanges(7, ["bitmex"], speed=1.0, activity=0.2) as simulated,
        SampleHistoryApi(SampleMarket(7, 0.2)) as api,
    ):
        options = {"api_url": api.url, "cache_dir": tmp_path, "exchange_urls": simulated.urls, "_timings": TIMINGS}
        machine = TardisMachine(workers=1, **options)
        await machine.start(port=0)
        start = to_timestamp(simulated.clock.now_us - 8 * MINUTE_US)
        query = served(**{"from": start, "waitWhenDataNotYetAvailable": False})
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"http://127.0.0.1:{machine.ws_port}/ws-replay-normalized", params=query) as socket,
        ):
            messages: list[dict[str, Any]] = []
            async with asyncio.timeout(30):
                async for frame in socket:
                    messages.append(json.loads(frame.data))
                    if len(messages) > 2 and messages[-3]["type"] == "disconnect":
                        break
        await machine.stop()
    kinds = [message["type"] for message in messages]
    assert kinds[-4:] == ["trade", "disconnect", "trade", "trade"]
    assert kinds.count("disconnect") == 1
    gap = messages[-3]
    assert gap["symbols"] == ["XBTUSD"]
    last = messages[-4]["localTimestamp"]
    assert re.search(r"^history from (\S+) to \S+ is not there yet", gap["reason"])
    assert last[:16] < gap["reason"].split()[2][:16] <= messages[-2]["localTimestamp"][:16]


async def test_a_process_that_dies_ends_its_own_request_and_no_other(tmp_path: Path) -> None:
    async with (
        SimulatedExchanges(7, ["bitmex"], speed=1.0, activity=0.2) as simulated,
        SampleHistoryApi(SampleMarket(7, 0.2)) as api,
    ):
        options = {"api_url": api.url, "cache_dir": tmp_path, "exchange_urls": simulated.urls, "_timings": TIMINGS}
        machine = TardisMachine(workers=1, max_live_requests=2, **options)
        await machine.start(port=0)
        query = served(**{"from": to_timestamp(simulated.clock.now_us - 8 * MINUTE_US), "waitWhenDataNotYetAvailable": False})
        url = f"http://127.0.0.1:{machine.port}/replay-normalized"
        async with aiohttp.ClientSession() as http, asyncio.timeout(30):
            async with http.get(url, params=query) as first, http.get(url, params=query) as second:
                await asyncio.gather(first.content.readline(), second.content.readline())
                async with http.get(url, params=query) as third:
                    assert third.status == 503
                    assert "max-live-requests: 2" in await third.text()
                pids = machine.live_pids
                assert len(pids) == 2
                os.kill(pids[0], signal.SIGKILL)
                endings = [asyncio.create_task(answer.read()) for answer in (first, second)]
                ended, others = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
                assert [type(task.exception()) for task in ended] == [aiohttp.ClientPayloadError]
                assert len(others) == 1
                for task in others:
                    task.cancel()
            while machine.live_pids:
                await asyncio.sleep(0.02)
        await machine.stop()
    assert gone_within(pids, 5)


async def test_the_command_begins_with_history(tmp_path: Path) -> None:
    async with (
        SimulatedExchanges(7, ["bitmex"], speed=1.0, activity=0.2) as simulated,
        SampleHistoryApi(SampleMarket(7, 0.2)) as api,
    ):
        start_us = simulated.clock.now_us - 8 * MINUTE_US
        asked = json.loads(served(**{"from": to_timestamp(start_us), "waitWhenDataNotYetAvailable": False})["options"])
        command = [sys.executable, "-m", "tardis_machine", "stream", "--api-url", api.url, "--cache-dir", str(tmp_path)]
        urls = ",".join(f"{name}:{url}" for name, url in simulated.urls.items())
        process = await asyncio.create_subprocess_exec(
            *command, "--exchange-urls", urls, "--options", json.dumps(asked), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        messages: list[dict[str, Any]] = []
        async with asyncio.timeout(30):
            async for line in process.stdout:
                messages.append(json.loads(line))
                if len(messages) > 2 and messages[-3]["type"] == "disconnect":
                    process.send_signal(signal.SIGTERM)
                    break
            rest = await process.stdout.read()
            assert await process.wait() == 0
    assert rest == b"" or rest.endswith(b"\n")
    assert parse_timestamp_us(messages[0]["localTimestamp"]) - start_us < MINUTE_US
    assert [message["type"] for message in messages].count("disconnect") == 1


@pytest.mark.parametrize("began_s", [0, 160])
async def test_what_was_recorded_is_not_waited_for(tmp_path: Path, began_s: int) -> None:
    """The minutes that upstream does not have yet come from own recordings; those in which the recorder began are upstream's."""
    async with seam_market(tmp_path, "bitmex") as market:
        folder = tmp_path / "recordings"
        filters = Normalizer("bitmex", ["trade"]).filters(["XBTUSD"])
        feed = RecordedFeed(folder, "bitmex", tuple(optimize_filters(filters)))
        assert feed.claim()
        began_us = DAY_US + began_s * 1_000_000

        async def record() -> None:
            """Each minute of the market as soon as it is over."""
            for index in range(began_us // MINUTE_US, DAY_US // MINUTE_US + 60):
                while market.now_us < (index + 1) * MINUTE_US:
                    await asyncio.sleep(0.01)
                lines = market.api.recording.minute("bitmex", index, filters)
                if index * MINUTE_US < began_us:
                    later = [line for line in lines.splitlines(keepends=True) if line[:TIME_LENGTH] >= to_time(began_us)]
                    assert 10 < len(later) < lines.count(b"\n")
                    lines = b"\n" + b"".join(later)
                feed.append(index * MINUTE_US, lines)
                feed.seal(index * MINUTE_US)

        recording = asyncio.create_task(record())
        asked = request("bitmex", data_types=["trade"], wait_when_data_not_yet_available=6 if began_s else 60)
        history = {**market.history, "find_recorded": RecordedHistory(folder).find}
        batches = replay_normalized(**asked, **(market.options | {"_history": history}))
        trades: list[Message] = []
        async with asyncio.timeout(60), aclosing(batches):
            async for batch in batches:
                trades += batch
                if is_heard(batch[-1], market):
                    break
        recording.cancel()
        minutes = [(came.start_us - DAY_US) // MINUTE_US + place for came in market.api.requests for place in range(came.minutes)]
        assert sorted(minutes) == list(range(-(-began_s // 60)))
        known = [message.id for _, each in market.recorded("bitmex", "XBTUSD", ["trade"]) for message in each]
        assert [trade.id for trade in trades] == known[: len(trades)]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"speed": 2}, "speed"),
        ({"exchange": "ftx"}, "exchange"),
        ({"from": "2999-01-01"}, "from"),
        ({"symbols": "XBTUSD"}, "symbols"),
    ],
)
async def test_a_mistake_is_named(tmp_path: Path, options: dict[str, Any], field: str) -> None:
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "from": "2020-01-01", "to": "live"} | options
    with pytest.raises(OptionsError) as caught:
        await anext(replay_normalized(asked, cache_dir=tmp_path))
    assert caught.value.field == field


def test_all_requests_go_on_live_or_none() -> None:
    ends = {"exchange": "bitmex", "dataTypes": ["trade"], "from": "2020-01-01", "to": "2020-01-02"}
    with pytest.raises(OptionsError, match=r"\[1\]\.to: expected a date as in the other requests"):
        replay_normalized(ends, {name: ends[name] for name in ("exchange", "dataTypes", "from")})
