"""The simulated exchanges as they run: by the clock, under load, told from other processes."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise

import aiohttp
import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.messages import parse_timestamp_us
from tardis_machine.sample.live import Close, SimulatedExchanges
from tardis_machine.sample.live.separate_process import serve_exchanges_in_process
from tests.unit.sample.live_client import connected, reader_of, until

BOOK = "/realtime?subscribe=orderBookL2:XBTUSD"


async def test_a_running_market_keeps_real_time_and_stands_when_paused() -> None:
    simulated = SimulatedExchanges(exchanges=["bitmex"])
    async with simulated, connected(simulated, "bitmex", BOOK) as client:
        reader = reader_of("bitmex", "")
        started_s = time.time()
        while time.time() < started_s + 0.5:
            message = await client.read()
            reader.take(message)
        assert abs(parse_timestamp_us(message["data"][0]["timestamp"]) / 1e6 - time.time()) < 0.5
        simulated.pause()
        stands = simulated.clock.position
        await asyncio.sleep(0.02)
        for message in await client.read_all():
            reader.take(message)
        assert simulated.clock.position == stands
        assert (reader.bids["XBTUSD"], reader.asks["XBTUSD"]) == simulated.true_book("bitmex", "XBTUSD")
        simulated.resume()
        await until(lambda: simulated.clock.position > stands)
        assert (simulated.clock.position - stands) / 1e7 < 0.5


async def test_speed_and_activity_scale_the_rate_of_messages() -> None:
    """Sixty seconds of market in one: over the ends of minutes, too, which are made while others are sent."""
    start_us = 1_790_812_840_000_000
    simulated = SimulatedExchanges(exchanges=["bitmex"], speed=60.0, start_us=start_us)
    async with simulated, connected(simulated, "bitmex", BOOK) as client:
        reader = reader_of("bitmex", "")
        while simulated.clock.now_us < start_us + 85_000_000:
            reader.take(await client.read())
        simulated.pause()
        await asyncio.sleep(0.02)
        for message in await client.read_all():
            reader.take(message)
        assert (reader.bids["XBTUSD"], reader.asks["XBTUSD"]) == simulated.true_book("bitmex", "XBTUSD")
        assert client.received > 5_000
        # Minutes that lie behind are not kept.
        broadcast = simulated.venue("bitmex").broadcast
        assert {index for _, index in broadcast._rows} <= set(range(29_846_880, 29_846_890))
        assert len(broadcast._rows) <= 5


async def test_what_was_sent_is_kept_in_order_within_bounds() -> None:
    simulated = SimulatedExchanges(exchanges=["bitmex", "binance"], speed=None, keep_sent=50)
    async with simulated, connected(simulated, "bitmex", BOOK) as client, aiohttp.ClientSession() as session:
        await simulated.advance(5_000)
        assert len(simulated.sent) == 50
        assert all(
            before.sent_ns <= after.sent_ns and before.position_us <= after.position_us
            for before, after in pairwise(simulated.sent)
        )
        assert simulated.sent[-1].connection == client.identity
        async with session.get(f"{simulated.urls['binance-rest']}/api/v3/depth?symbol=BTCUSDT") as answer:
            body = await answer.read()
        assert (simulated.sent[-1].exchange, simulated.sent[-1].connection, simulated.sent[-1].message) == ("binance", 0, body)


async def test_control_over_http() -> None:
    simulated = SimulatedExchanges(exchanges=["bitmex", "binance"], speed=None)
    async with simulated, connected(simulated, "bitmex", BOOK) as client, aiohttp.ClientSession() as session:

        async def ask(path: str, body: object = None) -> tuple[int, str]:
            method = "GET" if body is None else "POST"
            async with session.request(method, f"{simulated.control_url}/{path}", data=json.dumps(body or {})) as answer:
                return answer.status, await answer.text()

        assert json.loads((await ask("urls"))[1]) == simulated.urls
        position_us = simulated.clock.now_us
        assert json.loads((await ask("advance?ms=1500", {}))[1]) == {} or simulated.clock.now_us == position_us + 1_500_000
        book = json.loads((await ask("book?exchange=bitmex&symbol=xbtusd"))[1])
        bids, asks = simulated.true_book("bitmex", "XBTUSD")
        assert (dict(book["bids"]), dict(book["asks"])) == (bids, asks)
        assert json.loads((await ask("connections?exchange=bitmex"))[1]) == {"open": 1, "accepted": 1}
        lines = (await ask("sent?exchange=bitmex&last=3"))[1].splitlines()
        assert [json.loads(line)["message"].encode() for line in lines] == [each.message for each in list(simulated.sent)[-3:]]
        status, answer = await ask("misbehave?exchange=bitmex", {"kind": "close", "code": 1012, "reason": "restart"})
        assert (status, json.loads(answer)) == (200, {"connections": 1})
        await client.closing()
        assert client.socket.close_code == 1012
        for path, body, problem in (
            ("misbehave?exchange=bitmex", {"kind": "nothing"}, "nothing"),
            ("misbehave?exchange=bitmex", {"kind": "close", "nothing": 1}, "nothing"),
            ("misbehave?exchange=nothing", {"kind": "close"}, "exchange"),
            ("misbehave", {"kind": "close"}, "exchange"),
            ("book?exchange=bitmex&symbol=nothing", None, "XBTUSD"),
        ):
            status, answer = await ask(path, body)
            assert status == 400
            assert problem in json.loads(answer)["message"]


def test_unknown_exchanges_are_refused() -> None:
    with pytest.raises(OptionsError, match="expected bitmex"):
        SimulatedExchanges(exchanges=["nothing"])


async def test_a_process_of_their_own_keeps_up_with_load() -> None:
    """Tens of thousands of messages a second, and still the true book."""
    with serve_exchanges_in_process(["bitmex"], speed=60.0, activity=2.5) as apart:
        await asyncio.to_thread(apart.prepare, "bitmex", ["orderBookL2"], 3)
        reader = reader_of("bitmex", "")
        async with aiohttp.ClientSession() as session, session.ws_connect(apart.urls["bitmex"] + BOOK, max_msg_size=0) as client:
            started_s = time.monotonic()
            messages = []
            while time.monotonic() < started_s + 1.0:
                messages.append(await client.receive_str())
            await asyncio.to_thread(apart.pause)
            truth = await asyncio.to_thread(apart.true_book, "bitmex", "XBTUSD")
            while True:
                try:
                    messages.append(await asyncio.wait_for(client.receive_str(), 0.5))
                except TimeoutError:
                    break
        for message in messages:
            reader.take(json.loads(message))
        assert (reader.bids["XBTUSD"], reader.asks["XBTUSD"]) == truth
        assert len(messages) > 5_000
        assert await asyncio.to_thread(apart.misbehave, "bitmex", Close()) == 0
        with pytest.raises(OptionsError, match="exchange"):
            apart.recover("nothing")
