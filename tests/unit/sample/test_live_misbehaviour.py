"""Each misbehaviour as a client sees it; and that nothing else changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal

import aiohttp
import pytest

from tardis_machine.sample.live import (
    ClockSkew,
    Close,
    DropUpdates,
    ErrorFrame,
    Garbage,
    HalfFrame,
    Misbehaviour,
    Refuse,
    Reset,
    Silence,
    SimulatedExchanges,
    Snapshot,
)
from tests.unit.sample.live_client import Client, connected, reader_of, until
from tests.unit.sample.readers import Books

START_US = 1_790_812_830_000_000
# Exchange: path, a request for a book and trades, symbol, channel of the true book.
CLIENTS: dict[str, tuple[str, Any, str, str]] = {
    "bitmex": ("/realtime", {"op": "subscribe", "args": ["orderBookL2:XBTUSD"]}, "XBTUSD", "orderBookL2"),
    "binance": ("/stream", {"method": "SUBSCRIBE", "params": ["btcusdt@depth@100ms"], "id": 1}, "BTCUSDT", "depth"),
    "coinbase": (
        "",
        {"type": "subscribe", "product_ids": ["BTC-USD"], "channels": ["level2_batch"]},
        "BTC-USD",
        "level2_batch",
    ),
    "deribit": (
        "/ws/api/v2",
        {"id": 1, "method": "public/subscribe", "params": {"channels": ["book.BTC-PERPETUAL.100ms"]}},
        "BTC-PERPETUAL",
        "book.100ms",
    ),
    "okex": (
        "/ws/v5/public",
        {"op": "subscribe", "args": [{"channel": "books", "instId": "BTC-USDT"}]},
        "BTC-USDT",
        "books",
    ),
    "kraken": (
        "/v2",
        {"method": "subscribe", "params": {"channel": "book", "symbol": ["BTC/USD"], "depth": 100}},
        "BTC/USD",
        "v2/book-100",
    ),
    "bybit": ("/v5/public/linear", {"op": "subscribe", "args": ["orderbook.50.BTCUSDT"]}, "BTCUSDT", "orderbook.50"),
}
GREETING = ("bitmex", "kraken")


@asynccontextmanager
async def subscribed(exchange: str, *told: Misbehaviour) -> AsyncIterator[tuple[SimulatedExchanges, Client]]:
    """A client of a stepped market that has read all that a subscription brings at once."""
    path, request, _, _ = CLIENTS[exchange]
    simulated = SimulatedExchanges(exchanges=[exchange], speed=None, start_us=START_US, activity=0.5)
    async with simulated:
        for what in told:
            simulated.misbehave(exchange, what)
        async with connected(simulated, exchange, path) as client:
            if exchange in GREETING:
                await client.read()
            await client.ask(request)
            yield simulated, client


def read(reader: Books, messages: list[Any]) -> None:
    for message in messages:
        reader.take(message)


@pytest.mark.parametrize("exchange", ["bitmex", "okex"])
async def test_silence_holds_everything_back_and_loses_nothing(exchange: str) -> None:
    async with subscribed(exchange) as (simulated, client):
        await client.read_all()
        assert simulated.misbehave(exchange, Silence(seconds=4)) == 1
        await client.send("ping")
        await simulated.advance(3_900)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.socket.receive(), 0.05)
        await simulated.advance(200)
        messages = await client.read_all()
        assert "pong" in messages
        assert len(messages) > 30


async def test_a_silent_connection_may_be_closed_and_then_loses_what_it_held_back() -> None:
    async with subscribed("bitmex") as (simulated, client):
        await client.read_all()
        simulated.misbehave("bitmex", Silence())
        await simulated.advance(2_000)
        simulated.misbehave("bitmex", Close(1012))
        assert await client.closing() == (aiohttp.WSMsgType.CLOSE, 1012)
        assert client.received == client.sent()


async def test_silence_of_new_connections_and_its_end() -> None:
    simulated = SimulatedExchanges(exchanges=["bitmex"], speed=None)
    async with simulated:
        assert simulated.misbehave("bitmex", Silence(new_too=True)) == 0
        async with connected(simulated, "bitmex", "/realtime") as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.socket.receive(), 0.05)
        async with connected(simulated, "bitmex", "/realtime") as client:
            simulated.recover("bitmex")
            await simulated.advance(1)
            assert (await client.read())["info"]


async def test_close_says_its_code_and_reason() -> None:
    async with subscribed("bitmex") as (simulated, client):
        simulated.misbehave("bitmex", Close(4321, "maintenance"))
        while (message := await client.socket.receive(timeout=5)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 4321, "maintenance")
        await until(lambda: not simulated.connections)


@pytest.mark.parametrize("what", [Reset(), HalfFrame(), HalfFrame("reset")])
async def test_a_connection_that_breaks_says_nothing(what: Misbehaviour) -> None:
    async with subscribed("bitmex") as (simulated, client):
        await client.read_all()
        simulated.misbehave("bitmex", what)
        assert (await client.closing())[0] in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert client.socket.close_code == 1006
        await until(lambda: not simulated.connections)


async def test_half_a_message_may_be_all_that_ever_comes() -> None:
    async with subscribed("bitmex") as (simulated, client):
        await client.read_all()
        simulated.misbehave("bitmex", HalfFrame("hang"))
        await simulated.advance(2_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.socket.receive(), 0.05)
        assert simulated.connections


@pytest.mark.parametrize("form", ["text", "shape", "utf8", "frame"])
async def test_garbage(form: Literal["text", "shape", "utf8", "frame"]) -> None:
    async with subscribed("bitmex") as (simulated, client):
        await client.read_all()
        simulated.misbehave("bitmex", Garbage(form))
        message = await client.socket.receive(timeout=5)
        if form in ("utf8", "frame"):
            assert message.type is aiohttp.WSMsgType.ERROR
            return
        assert message.type is aiohttp.WSMsgType.TEXT
        if form == "text":
            with pytest.raises(ValueError):
                json.loads(message.data)
        else:
            assert "table" not in json.loads(message.data)
        await simulated.advance(500)
        assert (await client.read())["table"] == "orderBookL2"


@pytest.mark.parametrize("status", [429, 418, 401, 503])
async def test_refused_at_the_door_with_a_status(status: int) -> None:
    async with SimulatedExchanges(exchanges=["binance"], speed=None) as simulated, aiohttp.ClientSession() as session:
        simulated.misbehave("binance", Refuse(status, times=2, retry_after_s=7))
        for _ in range(2):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{simulated.urls['binance']}/stream")
            assert caught.value.status == status
            assert caught.value.headers is not None
            assert caught.value.headers["Retry-After"] == "7"
        url = f"{simulated.urls['binance-rest']}/api/v3/depth?symbol=BTCUSDT"
        async with session.get(url) as answer:
            assert answer.status == 200
        simulated.misbehave("binance", Refuse(status, target="rest"))
        async with session.get(url) as answer:
            assert answer.status == status
        async with session.ws_connect(f"{simulated.urls['binance']}/stream") as opened:
            assert not opened.closed


async def test_refused_without_a_word_until_it_recovers() -> None:
    async with SimulatedExchanges(exchanges=["bitmex"], speed=None) as simulated, aiohttp.ClientSession() as session:
        simulated.misbehave("bitmex", Refuse(times=None))
        for _ in range(3):
            with pytest.raises((aiohttp.ClientConnectionError, ConnectionResetError)):
                await session.ws_connect(f"{simulated.urls['bitmex']}/realtime")
        simulated.recover("bitmex")
        async with session.ws_connect(f"{simulated.urls['bitmex']}/realtime") as opened:
            assert (await opened.receive_json())["info"]


@pytest.mark.parametrize("exchange", CLIENTS)
@pytest.mark.parametrize("kind", ["rate_limit", "auth", "server"])
async def test_errors_in_the_words_of_the_exchange(exchange: str, kind: Literal["rate_limit", "auth", "server"]) -> None:
    path, request, _, _ = CLIENTS[exchange]
    simulated = SimulatedExchanges(exchanges=[exchange], speed=None, start_us=START_US, activity=0.5)
    async with simulated, connected(simulated, exchange, path) as client:
        if exchange in GREETING:
            await client.read()
        simulated.misbehave(exchange, ErrorFrame(kind, instead_of_answers=1))
        denied = await client.ask(request)
        assert _is_error(exchange, denied), denied
        simulated.misbehave(exchange, ErrorFrame(kind))
        assert _is_error(exchange, await client.read())
        # The request that was denied did nothing; the next one is heard.
        await simulated.advance(500)
        assert not [message for message in await client.read_all() if not _is_error(exchange, message)]
        assert not _is_error(exchange, await client.ask(request))


def _is_error(exchange: str, message: Any) -> bool:
    told = {
        "bitmex": message.get("error"),
        "binance": message.get("error"),
        "coinbase": message.get("type") == "error",
        "deribit": message.get("error"),
        "okex": message.get("event") == "error",
        "kraken": message.get("error"),
        "bybit": message.get("success") is False,
    }
    return bool(told[exchange])


@pytest.mark.parametrize("exchange", ["binance", "deribit", "okex", "bybit", "kraken"])
async def test_a_dropped_update_shows_in_the_numbers_or_the_checksum(exchange: str) -> None:
    async with subscribed(exchange) as (simulated, client):
        reader = reader_of(exchange, CLIENTS[exchange][3])
        await simulated.advance(1_000)
        for message in await client.read_all():
            reader.take(message)
        # A checksum sees only the best levels.
        simulated.misbehave(exchange, DropUpdates(count=12 if exchange == "kraken" else 2))
        await simulated.advance(2_000)
        messages = await client.read_all()
        with pytest.raises(AssertionError, match=r"a gap in|a wrong checksum|crosses"):
            read(reader, messages)


async def test_only_the_updates_of_one_symbol_are_dropped() -> None:
    simulated = SimulatedExchanges(exchanges=["okex"], speed=None, start_us=START_US, activity=0.5)
    async with simulated, connected(simulated, "okex", "/ws/v5/public") as client:
        arguments = [{"channel": "books", "instId": symbol} for symbol in ("BTC-USDT", "ETH-USDT")]
        await client.send({"op": "subscribe", "args": arguments})
        await until(lambda: client.sent() == 4)
        simulated.misbehave("okex", DropUpdates(count=1, symbol="ETH-USDT"))
        await simulated.advance(1_000)
        last: dict[str, int] = {}
        gaps = []
        for message in await client.read_all():
            if "data" in message:
                symbol, data = message["arg"]["instId"], message["data"][0]
                if message["action"] == "update" and data["prevSeqId"] != last[symbol]:
                    gaps.append(symbol)
                last[symbol] = data["seqId"]
        assert gaps == ["ETH-USDT"]


@pytest.mark.parametrize("exchange", ["bitmex", "coinbase", "deribit", "okex", "kraken", "bybit"])
async def test_a_late_snapshot_comes_after_updates_and_is_right(exchange: str) -> None:
    _, _, symbol, channel = CLIENTS[exchange]
    async with subscribed(exchange, Snapshot(late_s=1.5)) as (simulated, client):
        await simulated.advance(1_400)
        early = [message for message in await client.read_all() if not _is_snapshot(message)]
        assert len(early) > 3
        await simulated.advance(150)
        messages = await client.read_all()
        places = [place for place, message in enumerate(messages) if _is_snapshot(message)]
        assert len(places) == 1
        await simulated.advance(2_000)
        messages += await client.read_all()
        reader = reader_of(exchange, channel)
        for message in messages[places[0] :]:
            reader.take(message)
        assert (reader.bids[symbol], reader.asks[symbol]) == simulated.true_book(exchange, symbol, channel)


@pytest.mark.parametrize("exchange", ["deribit", "okex", "bybit"])
async def test_an_old_snapshot_does_not_join_the_updates(exchange: str) -> None:
    async with subscribed(exchange, Snapshot(old_s=3)) as (simulated, client):
        await simulated.advance(1_000)
        reader = reader_of(exchange, CLIENTS[exchange][3])
        messages = await client.read_all()
        with pytest.raises(AssertionError, match="a gap in"):
            read(reader, messages)
        # The next one is right again.
        await client.socket.close()
        path, request, symbol, channel = CLIENTS[exchange]
        await until(lambda: not simulated.connections)
        async with connected(simulated, exchange, path) as other:
            await other.ask(request)
            await simulated.advance(1_000)
            reader = reader_of(exchange, channel)
            for message in await other.read_all():
                reader.take(message)
            assert (reader.bids[symbol], reader.asks[symbol]) == simulated.true_book(exchange, symbol, channel)


def _is_snapshot(message: Any) -> bool:
    body = message.get("params", {}).get("data", message) if "params" in message else message
    return "partial" in (body.get("action"),) or "snapshot" in (body.get("type"), body.get("action"))


async def test_snapshots_over_rest_may_be_late_or_old() -> None:
    async with subscribed("binance") as (simulated, client), aiohttp.ClientSession() as session:

        async def fetch() -> Any:
            async with session.get(f"{simulated.urls['binance-rest']}/api/v3/depth?symbol=BTCUSDT&limit=1000") as answer:
                return await answer.json()

        await simulated.advance(1_000)
        updates = [message["data"] for message in await client.read_all()]
        right = await fetch()
        assert updates[-1]["u"] <= right["lastUpdateId"] <= updates[-1]["u"] + 1
        simulated.misbehave("binance", Snapshot(old_s=5))
        assert (await fetch())["lastUpdateId"] < updates[0]["U"] - 1
        simulated.misbehave("binance", Snapshot(late_s=2))
        asked = asyncio.create_task(fetch())
        await asyncio.sleep(0.05)
        await simulated.advance(1_900)
        await asyncio.sleep(0.02)
        assert not asked.done()
        await simulated.advance(200)
        assert (await asked)["lastUpdateId"] == right["lastUpdateId"]
        assert (await fetch())["lastUpdateId"] > right["lastUpdateId"]


@pytest.mark.parametrize("exchange", CLIENTS)
async def test_a_clock_that_is_off_shows_in_times_alone(exchange: str) -> None:
    right: list[Any] = []
    skewed: list[Any] = []
    for messages, told in ((right, ()), (skewed, (ClockSkew(-3_600_000),))):
        async with subscribed(exchange, *told) as (simulated, client):
            await simulated.advance(1_000)
            messages += await client.read_all()
    assert len(right) == len(skewed) > 5
    assert right != skewed
    values = {name: [_values(message) for message in messages] for name, messages in (("right", right), ("skewed", skewed))}
    for message, other in zip(values["right"], values["skewed"], strict=True):
        differing = [key for key in message if message[key] != other[key]]
        assert 0 < len(differing) < len(message)
        for key in differing:
            assert _milliseconds(message[key]) - _milliseconds(other[key]) == 3_600_000, key


def _values(message: Any, path: str = "") -> dict[str, Any]:
    """Every value of a message by its path."""
    if isinstance(message, dict):
        parts = [_values(value, f"{path}.{name}") for name, value in message.items()]
    elif isinstance(message, list):
        parts = [_values(value, f"{path}[{place}]") for place, value in enumerate(message)]
    else:
        return {path: message}
    return {name: value for part in parts for name, value in part.items()}


def _milliseconds(value: Any) -> float:
    if isinstance(value, str) and "T" in value:
        return round(datetime.fromisoformat(value).timestamp() * 1_000, 3)
    return float(value)
