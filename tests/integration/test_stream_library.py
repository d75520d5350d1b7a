"""`stream_normalized` against an exchange that follows a script: connections, REST, limits, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tardis_machine import stream_normalized
from tardis_machine.errors import OptionsError
from tardis_machine.messages import UNSET, BookChange, Disconnect, Message, Trade
from tardis_machine.realtime.backoff import Timings
from tests.integration.leaks import nothing_leaks
from tests.integration.scripted_exchange import ScriptedExchange, scripted_exchange
from tests.integration.test_stream_server import trade

DAY_US = 86_400_000_000
TIMINGS = Timings(first_s=0.005, most_s=0.02, limited_s=0.02, close_timeout_s=0.1, refetch_s=0.01, connect_timeout_s=2.0)


class Reader:
    """Takes messages one by one; listens from the start."""

    def __init__(self, stream: AsyncGenerator[list[Message], None]) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen(stream))

    async def _listen(self, stream: AsyncGenerator[list[Message], None]) -> None:
        async for batch in stream:
            for message in batch:
                self._messages.put_nowait(message)

    async def take(self, count: int) -> list[Any]:
        return [await asyncio.wait_for(self._messages.get(), 10) for _ in range(count)]

    async def stop(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)


@asynccontextmanager
async def reader_of(stream: AsyncGenerator[list[Message], None]) -> AsyncIterator[Reader]:
    reader = Reader(stream)
    try:
        yield reader
    finally:
        await reader.stop()
        await stream.aclose()


def reading(exchange: ScriptedExchange, name: str = "bitmex", **options: Any) -> AbstractAsyncContextManager[Reader]:
    urls = {name: exchange.url} | ({f"{name}-rest": exchange.rest_url} if name.startswith("binance") else {})
    asked = {"exchange": name, "symbols": ["XBTUSD"], "data_types": ["trade"], "timeout_interval_ms": 0} | options
    shown = {"with_disconnect_messages": True, "with_error_messages": True}
    return reader_of(stream_normalized(**{"_timings": TIMINGS, **asked, **shown}, exchange_urls=urls))


def depth(first: int, final: int) -> dict[str, Any]:
    data = {"e": "depthUpdate", "E": 1, "s": "BTCUSDT", "U": first, "u": final, "b": [[str(first), "1"]], "a": []}
    return {"stream": "btcusdt@depth@100ms", "data": data}


def snapshot(number: int) -> web.Response:
    return web.json_response({"lastUpdateId": number, "bids": [["5", "7"]], "asks": []})


async def test_a_book_waits_for_a_snapshot_that_fits() -> None:
    answers = [
        web.json_response({"code": -1003, "msg": "too much"}, status=429, headers={"Retry-After": "0"}),
        web.Response(status=500, text="sorry"),
        snapshot(8),
        snapshot(12),
    ]
    asked: list[str] = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return answers.pop(0)

    async with scripted_exchange() as exchange:
        exchange.rest["/api/v3/depth"] = answer
        async with reading(exchange, "binance", symbols=["btcusdt"], data_types=["book_change"]) as reader:
            peer = await exchange.client()
            assert peer.request.path_qs == "/stream?timeUnit=MICROSECOND"
            call = await peer.hear()
            assert call["params"] == ["btcusdt@depth@100ms"]
            await peer.send(depth(10, 11), depth(12, 13), {"result": None, "id": call["id"]})
            limited, failed, book = await reader.take(3)
            assert (limited.code, limited.details.partition(":")[0]) == ("SOURCE_RATE_LIMIT", "btcusdt@depthSnapshot")
            assert "500 sorry" in failed.details
            assert book.is_snapshot
            assert [(level.price, level.amount) for level in book.bids] == [(5, 7), (12, 1)]
            assert asked == ["/api/v3/depth?symbol=BTCUSDT&limit=1000"] * 4
            await peer.send(depth(14, 15), depth(17, 18))
            after, lost = await reader.take(2)
            assert isinstance(after, BookChange)
            assert not after.is_snapshot
            assert isinstance(lost, Disconnect)
            assert lost.reason == "btcusdt: update 18 follows 16, but the last one was 15"


async def test_attempts_that_fail_are_told_once_and_counted() -> None:
    async with scripted_exchange() as exchange:
        exchange.refusals = [
            web.Response(status=429, headers={"Retry-After": "0"}),
            web.Response(status=403),
            *(web.Response(status=503) for _ in range(4)),
        ]
        async with reading(exchange) as reader:
            peer = await exchange.client()
            await peer.send(trade(1))
            limited, forbidden, refused, summary, first = await reader.take(5)
            assert [error.code for error in (limited, forbidden, refused, summary)] == [
                "SOURCE_RATE_LIMIT",
                "SOURCE_AUTH",
                "WS_CONNECT",
                "WS_CONNECT",
            ]
            assert (refused.subsequent_errors_count, summary.subsequent_errors_count) == (UNSET, 3)
            assert isinstance(first, Trade)


async def test_a_message_that_can_not_be_normalized_ends_the_connection_and_nothing_before_it_is_lost() -> None:
    recorded: list[bytes] = []
    async with scripted_exchange() as exchange:
        stream = stream_normalized(
            exchange="bitmex",
            symbols=["XBTUSD"],
            data_types=["trade"],
            with_disconnect_messages=True,
            exchange_urls={"bitmex": exchange.url},
            _timings=TIMINGS,
            _record=lambda name, number, lines: recorded.extend(lines),
        )
        async with reader_of(stream) as reader:
            peer = await exchange.client()
            await peer.send(trade(1), {"table": "trade", "action": "insert", "data": 5}, trade(2))
            first, lost = await reader.take(2)
            assert first.id == "1"
            assert "can't be normalized" in lost.reason
            again = await exchange.client()
            await again.send(gzip.compress(json.dumps(trade(3), indent=1).encode()))
            [after] = await reader.take(1)
            assert after.id == "3"
    assert [line[29:60] for line in recorded if line] == [
        json.dumps(trade(1)).encode()[:31],
        json.dumps(trade(3), indent=1).encode().replace(b"\n", b" ")[:31],
    ]
    assert recorded[1] == b""
    assert not any(b"\n" in line for line in recorded)


async def test_several_exchanges_come_in_the_order_of_arrival_and_do_not_hurt_each_other() -> None:
    async with scripted_exchange() as bitmex, scripted_exchange() as coinbase:
        requests: list[dict[str, Any]] = [
            {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "timeoutIntervalMS": 0},
            {"exchange": "coinbase", "symbols": ["BTC-USD"], "dataTypes": ["trade"], "withDisconnectMessages": True},
        ]
        urls = {"bitmex": bitmex.url, "coinbase": coinbase.url}
        stream = stream_normalized(*requests, exchange_urls=urls, _timings=TIMINGS)
        async with reader_of(stream) as reader:
            one, other = await bitmex.client(), await coinbase.client()
            match = {"type": "match", "product_id": "BTC-USD", "trade_id": 7, "price": "1", "size": "2", "side": "buy"}
            await one.send(trade(1))
            await reader.take(1)
            await other.send(match | {"time": "2026-01-01T00:00:00.000000Z"})
            await reader.take(1)
            one.cut()  # its disconnect was not asked for
            again = await bitmex.client()
            await other.close()
            [lost] = await reader.take(1)
            assert lost.exchange == "coinbase"
            await again.send(trade(2))
            [after] = await reader.take(1)
            assert (after.exchange, after.id) == ("bitmex", "2")


async def test_symbols_spread_over_connections() -> None:
    async with scripted_exchange() as exchange:
        symbols = [f"S{number}USDT" for number in range(1_500)]
        async with reading(exchange, "binance", symbols=symbols):
            first, second = await exchange.client(), await exchange.client()
            frames = [await peer.hear() for peer in (first, second)]
            assert sorted(frame["params"][0] for frame in frames) == ["s0usdt@trade", "s1000usdt@trade"]


async def test_options_are_checked_before_anything_is_connected() -> None:
    with pytest.raises(OptionsError, match="exchange-urls"):
        stream_normalized(exchange="bitmex", data_types=["trade"], exchange_urls={"nowhere": "ws://x"})
    with pytest.raises(OptionsError, match="symbols"):
        stream_normalized(exchange="deribit", data_types=["trade"])


async def test_hundreds_of_reconnects_leave_nothing_behind() -> None:
    rounds = 500

    async def serve(exchange: ScriptedExchange) -> None:
        for number in range(rounds + 1):
            peer = await exchange.client()
            await peer.send(trade(number))
            if number % 2:
                peer.cut()
            else:
                await peer.close(1001)

    logging.disable(logging.CRITICAL)  # what is captured of it would grow
    try:
        async with nothing_leaks(), scripted_exchange() as exchange:
            serving = asyncio.create_task(serve(exchange))
            stream = stream_normalized(
                exchange="bitmex",
                symbols=["XBTUSD"],
                data_types=["trade"],
                with_disconnect_messages=True,
                exchange_urls={"bitmex": exchange.url},
                _timings=Timings(first_s=0.0, most_s=0.0, close_timeout_s=0.1),
            )
            trades = losses = 0
            objects: dict[int, int] = {}
            async with aclosing(stream):
                while losses < rounds:
                    for message in await asyncio.wait_for(anext(stream), 10):
                        trades += isinstance(message, Trade)
                        losses += isinstance(message, Disconnect)
                        if losses in (100, rounds) and losses not in objects:
                            gc.collect()
                            objects[losses] = len(gc.get_objects())
            assert trades >= rounds
            serving.cancel()
        assert objects[rounds] - objects[100] < 400, objects  # less than one for each
    finally:
        logging.disable(logging.NOTSET)


async def test_who_does_not_read_holds_up_the_exchange_and_not_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.pipeline.stream.MAX_UNREAD", 1_000)
    async with scripted_exchange() as exchange:
        stream = stream_normalized(
            exchange="bitmex", symbols=["XBTUSD"], data_types=["trade"], exchange_urls={"bitmex": exchange.url}, _timings=TIMINGS
        )
        async with aclosing(stream):
            first = asyncio.ensure_future(anext(stream))
            peer = await exchange.client()
            await peer.send(trade(0))
            await first
            sent = 0

            async def flood() -> None:
                nonlocal sent
                while True:
                    await peer.send(trade(sent) | {"padding": "x" * 2_000})
                    sent += 1

            flooding = asyncio.create_task(flood())
            before = -1
            while before < sent:  # until nobody takes any more
                before = sent
                await asyncio.sleep(0.5)
            flooding.cancel()
            waiting = await anext(stream)
            assert 1_000 <= len(waiting) < 5_000
            assert sent < 50_000


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_connection_that_is_recorded_is_made_anew_each_day(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    clock = [DAY_US - 300_000]
    monkeypatch.setattr("tardis_machine.realtime.connection.now_us", lambda: clock[0])
    monkeypatch.setattr("tardis_machine.realtime.connection._CLOCK_CHECK_S", 0.02)
    recorded: list[bytes] = []
    options: dict[str, Any] = {"_timings": msgspec.structs.replace(TIMINGS, daily_s=0.01)}
    if is_recorded:
        options["_record"] = lambda exchange, connection, lines: recorded.extend(lines)
    async with scripted_exchange() as exchange, reading(exchange, **options) as reader:
        first = await exchange.client()
        await first.hear()
        await first.send(trade(1))
        await reader.take(1)
        clock[0] = DAY_US
        if is_recorded:
            second = await exchange.client()
            await second.hear()
            await second.send(trade(2))
            lost, after = await reader.take(2)
            assert isinstance(lost, Disconnect)
            assert lost.reason == "the recording of a new day begins with whole books"
            assert [bool(line) for line in recorded] == [True, False, True]
        else:
            await asyncio.sleep(0.2)
            await first.send(trade(2))
            [after] = await reader.take(1)
            assert exchange.connected == 1
        assert after.id == "2"
