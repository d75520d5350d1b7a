"""`/ws-stream-normalized` over real sockets: what clients and buses get, whatever a client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tardis_machine import TardisMachine
from tardis_machine.bronze.decoding import to_message
from tardis_machine.messages import to_json
from tardis_machine.realtime.backoff import Timings
from tests.integration.machine import Client
from tests.integration.scripted_exchange import ScriptedExchange, scripted_exchange
from tests.integration.served import gone_within
from tests.integration.test_publishing import published

TIMINGS = Timings(first_s=0.02, most_s=0.05, limited_s=0.05, close_timeout_s=0.2, connect_timeout_s=2.0, linger_s=0.5)
ROUTE = "/ws-stream-normalized"


@asynccontextmanager
async def live_machine(exchange: ScriptedExchange, folder: Path, **keywords: Any) -> AsyncIterator[Client]:
    machine = TardisMachine(
        cache_dir=folder / "cache",
        exchange_urls={"bitmex": exchange.url, "binance": exchange.url, "binance-rest": exchange.rest_url},
        _timings=TIMINGS,
        **({"workers": 1} | keywords),
    )
    await machine.start(port=0)
    try:
        async with aiohttp.ClientSession() as http:
            yield Client(machine, http)
    finally:
        await machine.stop()


def asked(**fields: Any) -> dict[str, str]:
    request = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "timeoutIntervalMS": 0}
    return {"options": json.dumps(request | fields)}


def trade(number: int, symbol: str = "XBTUSD") -> dict[str, Any]:
    row = {"symbol": symbol, "trdMatchID": str(number), "price": 100 + number, "size": 1, "side": "Buy"}
    return {"table": "trade", "action": "insert", "data": [row | {"timestamp": "2026-01-01T00:00:00.000Z"}]}


async def receive(socket: aiohttp.ClientWebSocketResponse, count: int) -> list[dict[str, Any]]:
    return [await asyncio.wait_for(socket.receive_json(), 15) for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 1])
async def test_a_lost_connection_is_made_anew_and_told(tmp_path: Path, workers: int) -> None:
    async with scripted_exchange() as exchange, live_machine(exchange, tmp_path, workers=workers) as client:
        query = asked(withDisconnectMessages=True, withErrorMessages=True)
        async with client.http.ws_connect(client.ws_url(ROUTE), params=query) as socket:
            first = await exchange.client()
            assert await first.hear() == {"op": "subscribe", "args": ["trade:XBTUSD"]}
            await first.send(trade(1), trade(2))
            assert [message["id"] for message in await receive(socket, 2)] == ["1", "2"]
            await first.close(1012, "back soon")
            [lost] = await receive(socket, 1)
            assert (lost["type"], lost["symbols"], lost["closeCode"]) == ("disconnect", ["XBTUSD"], 1012)
            assert lost["reason"] == "closed by the exchange: back soon"
            second = await exchange.client()
            assert await second.hear() == {"op": "subscribe", "args": ["trade:XBTUSD"]}
            await second.send({"status": 401, "error": "Signature not valid."}, trade(3))
            error, after = await receive(socket, 2)
            assert (error["type"], error["code"], error["details"]) == ("error", "SOURCE_AUTH", "401 Signature not valid.")
            assert after["id"] == "3"


async def test_events_hold_what_the_client_did_not_ask_for_in_its_place(tmp_path: Path) -> None:
    bus = {"file": {"dir": tmp_path / "events"}, "spool_dir": tmp_path / "spool"}
    query = asked(dataTypes=["trade", "trade_bar_1ticks"])
    async with (
        scripted_exchange() as exchange,
        live_machine(exchange, tmp_path, **bus) as client,
        client.http.ws_connect(client.ws_url(ROUTE), params=query) as socket,
    ):
        for number in range(2):
            peer = await exchange.client()
            await peer.hear()
            await peer.send(trade(number), {"status": 400, "error": "no"}, {"status": 400, "error": "no"})
            got = await receive(socket, 2)
            assert [message["type"] for message in got] == ["trade", "trade_bar"]
            peer.cut()
        last = await exchange.client()
        await last.send(trade(9))
        await receive(socket, 2)
    events = published(tmp_path / "events")
    control = [event for event in events if event.WhichOneof("payload") in ("error", "disconnect")]
    assert {event.origin for event in events} == {1}
    # Four times the same within a minute: told once, and counted; at the end, the count is told.
    errors = [event.error for event in control if event.HasField("error")]
    assert [(error.details, error.subsequent_errors, error.HasField("code")) for error in errors] == [
        ("400 no", 0, False),
        ("400 no", 3, False),
    ]
    lost = [event.disconnect for event in control if event.HasField("disconnect")]
    assert [(each.reason, each.close_code, list(each.symbols)) for each in lost] == [
        ("the connection broke", 1006, ["XBTUSD"])
    ] * 2
    trades = [event for event in events if event.HasField("trade")]
    assert [event.sequence for event in trades] == [0, 1, 2]
    assert [json.loads(to_json(to_message(event)))["id"] for event in trades] == ["0", "1", "9"]
    [end] = [event.session_end for event in events if event.HasField("session_end")]
    assert end.complete
    assert {(entry.payload_case, entry.count) for entry in end.entries} >= {("trade", 3), ("trade_bar", 3), ("disconnect", 2)}


async def test_bad_options_are_refused_with_the_field(tmp_path: Path) -> None:
    async with scripted_exchange() as exchange, live_machine(exchange, tmp_path) as client:
        for wrong, field in (
            ({"exchange": "binance-jersey"}, "exchange: binance-jersey closed in 2020-11: it has history only"),
            ({"exchange": "coinbase", "symbols": None}, "symbols: live data of coinbase needs at least one symbol"),
            ({"timeoutIntervalMS": -1}, "timeoutIntervalMS: expected milliseconds from 0 (never) to 86400000, got -1"),
        ):
            async with client.http.ws_connect(client.ws_url(ROUTE), params=asked(**wrong)) as socket:
                message = await socket.receive()
            assert (message.data, message.extra[: len(field)]) == (1008, field)
        assert exchange.connected == 0


async def test_a_slow_client_is_sent_away_and_nobody_else_notices(tmp_path: Path) -> None:
    bus = {"file": {"dir": tmp_path / "events"}, "spool_dir": tmp_path / "spool"}
    async with scripted_exchange() as exchange, live_machine(exchange, tmp_path, **bus) as client:
        slow = await client.http.ws_connect(client.ws_url(ROUTE), params=asked())
        quick = await client.http.ws_connect(client.ws_url(ROUTE), params=asked())
        peer = await exchange.client()
        # Its socket's buffers are full, and then 5 MiB, before it reads anything.
        padding = "x" * 20_000
        slow._conn.protocol.pause_reading()  # type: ignore[union-attr]
        for number in range(1_000):
            await peer.send(trade(number) | {"data": [trade(number)["data"][0] | {"trdMatchID": f"{number:06d}{padding}"}]})
            [message] = await receive(quick, 1)
            assert message["id"][:6] == f"{number:06d}"
        assert exchange.connected == 1
        slow._conn.protocol.resume_reading()  # type: ignore[union-attr]
        frames = 0
        while (frame := await asyncio.wait_for(slow.receive(), 15)).type is aiohttp.WSMsgType.TEXT:
            frames += 1
        assert (frame.data, frame.extra) == (1008, "more than 5 MiB of live data were unread")
        assert 5 * 1024 * 1024 < frames * len(padding) < 30 * 1024 * 1024
        await quick.close()


async def test_a_client_that_leaves_takes_its_process_with_it(tmp_path: Path) -> None:
    async with scripted_exchange() as exchange, live_machine(exchange, tmp_path) as client:
        socket = await client.http.ws_connect(client.ws_url(ROUTE), params=asked())
        peer = await exchange.client()
        pids = client.machine.live_pids
        assert len(pids) == 1
        await socket.close()
        assert await asyncio.to_thread(gone_within, pids, 3)
        assert not client.machine.live_pids
        await asyncio.wait_for(_closed(peer), 5)


async def test_only_so_many_live_requests_are_taken_and_the_next_is_told_to_come_back(tmp_path: Path) -> None:
    async with scripted_exchange() as exchange, live_machine(exchange, tmp_path, max_live_requests=1) as client:
        first = await client.http.ws_connect(client.ws_url(ROUTE), params=asked())
        await exchange.client()
        async with client.http.ws_connect(client.ws_url(ROUTE), params=asked(symbols=["ETHUSD"])) as second:
            message = await second.receive()
        told = "max-live-requests: 1 live requests are running, and no more are allowed; try again later"
        assert (message.data, message.extra) == (1013, told)
        await first.close()
        while client.machine.live_pids:
            await asyncio.sleep(0.01)
        async with client.http.ws_connect(client.ws_url(ROUTE), params=asked()) as third:
            await (await exchange.client()).send(trade(1))
            assert (await receive(third, 1))[0]["id"] == "1"


async def _closed(peer: Any) -> None:
    while not peer.socket.closed:
        await asyncio.sleep(0.01)
