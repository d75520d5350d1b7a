"""Connections that say nothing, or too slowly, or are too many: others are served, and no event is lost by them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import tracemalloc
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import options, running_machine
from tests.integration.raw_client import RawClient, body_of, connected, http_get, http_post, status_of, ws_get
from tests.integration.served import Served, fill_bitmex, served
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

KEPT = http_get("/health-check").replace(b"Connection: close\r\n", b"")
HALF_SENT = KEPT[:-20]
HALF_POSTED = http_post("/replay", b"{" * 100)[:-50]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, 2)
    return folder


async def answer_of(raw: RawClient) -> bytes:
    """The head of an answer, and the body where it has come with it."""
    return await asyncio.wait_for(raw.reader.readuntil(b"}"), 20)


@pytest.mark.parametrize("sent", [b"", HALF_SENT, KEPT + HALF_SENT, KEPT], ids=["nothing", "half", "one and a half", "one"])
async def test_who_does_not_go_on_is_sent_away(cache_dir: Path, sent: bytes) -> None:
    api = SampleHistoryApi(port=9)
    async with running_machine(api, cache_dir, workers=0, request_timeout=0.3, idle_timeout=0.6) as client:
        for port in (client.machine.port, client.machine.ws_port):
            async with connected(port) as raw:
                await raw.send(sent)
                answer, has_ended = await raw.receive_all(20)
                assert has_ended
                assert status_of(answer) == (200 if sent.startswith(KEPT) else None)


async def test_a_body_that_does_not_come_is_told(cache_dir: Path) -> None:
    api = SampleHistoryApi(port=9)
    async with (
        running_machine(api, cache_dir, workers=0, request_timeout=0.3) as client,
        connected(client.machine.port) as raw,
    ):
        await raw.send(HALF_POSTED)
        answer = await answer_of(raw)
    assert status_of(answer) == 408
    assert json.loads(body_of(answer)) == {"message": "body: it did not come in time; see --request-timeout"}


async def test_a_client_without_the_token_keeps_no_connection(cache_dir: Path) -> None:
    api = SampleHistoryApi(port=9)
    async with (
        running_machine(api, cache_dir, workers=0, auth_token="the-token-of-this-test") as client,
        connected(client.machine.port) as raw,
    ):
        await raw.send(KEPT)
        answer, has_ended = await raw.receive_all(20)
    assert (status_of(answer), has_ended) == (401, True)


async def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest(cache_dir: Path) -> None:
    api = SampleHistoryApi(port=9)
    async with running_machine(api, cache_dir, workers=0, max_connections=3) as client, AsyncExitStack() as stack:

        async def connect(sent: bytes) -> RawClient:
            raw = await stack.enter_async_context(connected(client.machine.port))
            await raw.send(sent)
            return raw

        served_one = await connect(ws_get("/ws-replay?exchange=bitmex&from=2020-02-01&to=2020-02-02"))
        assert b"101" in await served_one.reader.readline()
        resting, silent = await connect(KEPT), await connect(HALF_SENT)
        assert status_of(await answer_of(resting)) == 200
        # The silent one goes first, then the one that rests, the one that is served never.
        for gone in (silent, resting):
            assert status_of(await answer_of(await connect(KEPT))) == 200
            assert (await gone.receive_all(20))[1]
        await served_one.send(b"")
        assert not served_one.reader.at_eof()


async def test_a_server_that_is_full_says_so(cache_dir: Path) -> None:
    api = SampleHistoryApi(port=9)
    async with running_machine(api, cache_dir, workers=0, max_connections=2) as client, AsyncExitStack() as stack:
        for _ in range(2):
            raw = await stack.enter_async_context(connected(client.machine.ws_port))
            await raw.send(ws_get("/ws-replay?exchange=bitmex&from=2020-02-01&to=2020-02-02"))
            assert b"101" in await raw.reader.readline()
        async with connected(client.machine.port) as refused:
            answer, has_ended = await refused.receive_all(20)
    assert (status_of(answer), has_ended) == (503, True)
    message = "max-connections: 2 connections are open, and no more are allowed; try again later"
    assert json.loads(body_of(answer)) == {"message": message}


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"X-%d: %s\r\n" % (number, b"x" * 200_000) for number in range(100)),
        b"".join(b"X-%d: %s\r\n" % (number, b"x" * 7_000) for number in range(1000)),
        b"X: " + b"x" * 20_000_000,
    ],
    ids=["long fields", "many fields", "one field"],
)
async def test_headers_take_little_memory_before_the_token_is_looked_at(cache_dir: Path, head: bytes) -> None:
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0, auth_token="the-token-of-this-test") as client:
        tracemalloc.start()
        try:
            async with connected(client.machine.port) as raw:
                raw.writer.transport.set_write_buffer_limits(high=0)
                await raw.send(b"GET /health-check HTTP/1.1\r\nHost: localhost\r\n")
                for start in range(0, len(head), 100_000):
                    await raw.send(head[start : start + 100_000])
                    if raw.writer.transport.is_closing():
                        break
                answer, has_ended = await raw.receive_all(20)
            assert tracemalloc.get_traced_memory()[1] < 4_000_000
        finally:
            tracemalloc.stop()
    assert has_ended
    assert status_of(answer) in (400, None)


def test_the_soft_limit_of_descriptors_is_raised(cache_dir: Path, tmp_path: Path) -> None:
    with served(cache_dir, tmp_path / "log", "--workers", "1", descriptors=(256, 3000)) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    assert re.search(r"Max open files +3000 +3000 ", limits)


def post(server: Served, asked: dict[str, Any]) -> int:
    """How many lines an answer has."""
    request = Request(f"http://127.0.0.1:{server.port}/replay-normalized", json.dumps(asked).encode())
    with urlopen(request, timeout=60) as response:
        return len(response.read().splitlines())


def receipt(log: str) -> dict[str, str]:
    (line,) = re.findall(r"machine: receipt (.*)", log)
    return dict(re.findall(r"(\w+)=(\S+)", line))


def test_a_flood_of_connections_costs_no_event(cache_dir: Path, tmp_path: Path) -> None:
    away = ("--redis-host", "127.0.0.1", "--redis-port", str(free_port()), "--redis-stream", "events")
    spool = ("--spool-dir", str(tmp_path / "spool"), "--redis-queue-max-bytes", "64KiB")
    argv = (*away, *spool, "--workers", "1", "--shutdown-timeout", "1s")
    with served(cache_dir, tmp_path / "log", *argv, descriptors=(150, 150)) as server, ExitStack() as stack:
        for number in range(400):
            half_open = stack.enter_context(socket.create_connection(("127.0.0.1", server.port + number % 2), timeout=20))
            half_open.sendall(HALF_SENT)
        lines = sum(post(server, options()) for _ in range(3))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1
    log = server.log.read_text()
    assert "Too many open files" not in log
    found = receipt(log)
    # A session's end is an event too.
    assert int(found["published"]) == int(found["spooled"]) == lines + 3
    assert (found["dropped"], found["unconfirmed"]) == ("0", found["spooled"])


def test_what_was_dropped_makes_the_exit_code_one_and_is_said(cache_dir: Path, tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis")
    bus = ("--redis-host", "127.0.0.1", "--redis-port", str(redis.port), "--redis-stream", "events", "--redis-overflow", "drop")
    spool = ("--spool-dir", str(tmp_path / "spool"), "--redis-queue-max-bytes", "64KiB", "--spool-max-bytes", "64KiB")
    with served(cache_dir, tmp_path / "log", *bus, *spool, "--workers", "1") as server:
        lines = post(server, options())
        redis.start()
        try:
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 1
        finally:
            redis.stop()
    log = server.log.read_text()
    found = receipt(log)
    assert found["unconfirmed"] == "0"
    dropped = int(found["dropped"])
    assert 0 < dropped <= lines
    assert re.search(
        rf"ERROR +machine: stopped with events undelivered error=\"{dropped} events to redis were dropped and 0 are", log
    )
