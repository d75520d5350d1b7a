"""Which web pages may use the server, and under which names it answers: over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import Client, options, running_machine
from tests.integration.raw_client import body_of, connected, http_get, status_of, ws_get
from tests.integration.served import fill_bitmex

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVIL = "https://evil.example"
OURS = "https://app.example.com"
LOCAL = ["http://localhost:3000", "http://127.0.0.1:5173", "https://[::1]:8443", "http://app.localhost"]
FOREIGN = [EVIL, "null", "http://localhost.evil.example", "http://127.0.0.1.evil.example", "file://", f"{OURS}:8443", "\xff"]
EMPTY = options(to=options()["from"])
WAYS = [
    http_get("/replay-normalized", EMPTY),
    http_get("/health-check"),
    http_get("/replay").replace(b"GET", b"OPTIONS", 1),
    ws_get("/ws-replay?exchange=bitmex&from=2020-02-01&to=2020-02-02"),
    ws_get("/ws-stream-normalized"),
]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, 2)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def plain(cache_dir: Path) -> AsyncIterator[Client]:
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def with_key(cache_dir: Path) -> AsyncIterator[Client]:
    keywords = {"api_key": "the-key-of-this-test", "allowed_origins": [OURS]}
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0, **keywords) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def with_bus(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    folder = tmp_path_factory.mktemp("bus")
    keywords: dict[str, Any] = {"file": {"dir": str(folder / "events")}, "spool_dir": folder / "spool"}
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0, **keywords) as client:
        yield client


async def ask(client: Client, request: bytes, **headers: str) -> bytes:
    """The head of the answer, and its body where that has come with it."""
    added = b"".join(b"%s: %s\r\n" % (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    request = request.replace(b"Host: localhost\r\n", b"" if "Host" in headers else b"Host: localhost\r\n")
    first, rest = request.split(b"\r\n", 1)
    async with connected(client.machine.ws_port) as raw:
        await raw.send(first + b"\r\n" + added + rest)
        head = await raw.reader.readuntil(b"\r\n\r\n")
        return head if b" 101 " in head else head + (await raw.receive_all(20))[0]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def recording(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    keywords = {"record_dir": tmp_path_factory.mktemp("recordings")}
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0, **keywords) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def with_key_alone(cache_dir: Path) -> AsyncIterator[Client]:
    """No origins are named either."""
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0, api_key="the-key-of-this-test") as client:
        yield client


@pytest.mark.parametrize("origin", FOREIGN)
async def test_with_a_bus_a_key_or_recordings_a_foreign_page_is_refused(
    with_bus: Client, with_key: Client, with_key_alone: Client, recording: Client, origin: str
) -> None:
    for client in (with_bus, with_key, with_key_alone, recording):
        for request in WAYS:
            answer = await ask(client, request, Origin=origin)
            assert status_of(answer) == 403, answer
            assert b"access-control-allow-origin" not in answer.lower()
            assert json.loads(body_of(answer))["message"].startswith("Origin: pages of ")


async def test_what_a_foreign_page_asked_for_is_not_published(with_bus: Client) -> None:
    before = await published_lines(with_bus)
    refused = await ask(with_bus, http_get("/replay-normalized", options()), Origin=EVIL)
    no_cors = await ask(
        with_bus, http_get("/replay-normalized", options()), Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors"
    )
    assert (status_of(refused), status_of(no_cors)) == (403, 403)
    assert await published_lines(with_bus) == before
    assert status_of(await ask(with_bus, http_get("/replay-normalized", options()))) == 200
    async with asyncio.timeout(20):
        while await published_lines(with_bus) == before:
            await asyncio.sleep(0.05)


async def published_lines(client: Client) -> list[str]:
    """What the server tells of events that it published, which counts all servers of this process."""
    async with client.http.get(client.url("/metrics")) as response:
        return [line for line in (await response.text()).splitlines() if "bus_events_published_total{" in line]


@pytest.mark.parametrize("origin", [*LOCAL, OURS, OURS.upper()])
async def test_pages_of_this_machine_and_those_allowed_are_served(with_key: Client, origin: str) -> None:
    for request in WAYS:
        answer = await ask(with_key, request, Origin=origin)
        assert status_of(answer) in (200, 204, 101), answer
        assert f"Access-Control-Allow-Origin: {origin}\r\n".encode() in answer
        assert b"Vary: Origin" in answer


async def test_programs_name_no_origin_and_are_served(with_bus: Client, with_key: Client) -> None:
    for client in (with_bus, with_key):
        assert [status_of(await ask(client, request)) for request in WAYS] == [200, 200, 204, 101, 101]
        for site in ("none", "same-origin", "same-site"):
            assert status_of(await ask(client, WAYS[1], Sec_Fetch_Site=site)) == 200


@pytest.mark.parametrize("origin", [*LOCAL, *FOREIGN])
async def test_a_plain_server_serves_any_page_as_the_node_server_does(plain: Client, origin: str) -> None:
    for request in WAYS:
        answer = await ask(plain, request, Origin=origin, Sec_Fetch_Site="cross-site")
        assert status_of(answer) in (200, 204, 101), answer
        assert b"Access-Control-Allow-Origin: *\r\n" in answer


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "x"])
async def test_on_loopback_only_names_of_this_machine_are_answered_to(plain: Client, with_bus: Client, host: str) -> None:
    for client in (plain, with_bus):
        for request in WAYS:
            answer = await ask(client, request, Host=host)
            assert status_of(answer) == 403, answer
            assert json.loads(body_of(answer))["message"].startswith("Host: this server does not answer to ")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "tm.localhost", "10.1.2.3:8000", ""]
)
async def test_names_of_this_machine_and_addresses_are_answered_to(plain: Client, with_bus: Client, host: str) -> None:
    for client in (plain, with_bus):
        assert status_of(await ask(client, WAYS[1], Host=host)) == 200


async def test_names_that_are_allowed_are_answered_to(cache_dir: Path) -> None:
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0, allowed_hosts=["Tardis.example.com"]) as client:
        assert status_of(await ask(client, WAYS[1], Host="tardis.example.com:443")) == 200
        assert status_of(await ask(client, WAYS[1], Host="evil.example")) == 403


async def test_on_another_address_any_name_is_answered_to_unless_names_are_given(cache_dir: Path) -> None:
    from tardis_machine import TardisMachine

    for hosts, expected in ((None, 200), (["tardis-machine"], 403)):
        machine = TardisMachine(cache_dir=cache_dir, workers=0, **({} if hosts is None else {"allowed_hosts": hosts}))
        await machine.start(port=0, host="0.0.0.0")
        try:
            client = Client(machine, None)  # type: ignore[arg-type]
            assert status_of(await ask(client, WAYS[1], Host="evil.example")) == expected
            assert status_of(await ask(client, WAYS[1], Host="tardis-machine:8000")) == 200
        finally:
            await machine.stop()
