"""Who is served, and how a request may be put: tokens, methods, sizes, ports, extensions."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import cast

import aiohttp
import pytest
import pytest_asyncio

from tardis_machine import TardisMachine
from tardis_machine.dates import parse_date_us
from tardis_machine.engine import Machine
from tardis_machine.errors import SettingsError
from tardis_machine.filters import Filter
from tardis_machine.history.cache import FeedCache
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.server.app import _application
from tardis_machine.server.connections import Connections
from tardis_machine.settings.resolve import from_keywords
from tests.integration.machine import DAY, Client, options, running_machine
from tests.integration.raw_client import body_of, connected, http_get, http_post, status_of, ws_get
from tests.integration.served import fill_bitmex
from tests.servers.process import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTES = 15
TOKEN = "correct horse battery staple"
HTTP_ROUTES = [
    "/replay",
    "/replay-normalized",
    "/book",
    "/health-check",
    "/metrics",
    "/replays",
    "/replays/{id}",
    "/replays/{id}/control",
]
PAGE_ROUTES = ["/ui/events", "/ui/exchanges", "/ui/abilities", "/ui/symbols/{exchange}"]
API_ROUTES = [
    "/v1/data-feeds/{exchange}",
    "/v1/instruments/{exchange}",
    "/v1/instruments/{exchange}/{symbol}",
    "/v1/api-key-info",
    "/v1/datasets/{exchange}/{dataset}/{year}/{month}/{day}/{symbol}.csv.gz",
]
# Of the page itself, which then asks for the token; and what clients of the history API ask for without one.
OPEN_ROUTES = ["/", "/ui", "/ui/{name}", "/v1/exchanges", "/v1/exchanges/{exchange}"]
WS_ROUTES = ["/ws-replay", "/ws-replay-normalized", "/ws-stream-normalized"]
ROUTES = [*HTTP_ROUTES, *WS_ROUTES, *PAGE_ROUTES, *API_ROUTES, "/nowhere"]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, MINUTES)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(cache_dir: Path) -> AsyncIterator[Client]:
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=1) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded(cache_dir: Path) -> AsyncIterator[Client]:
    async with running_machine(SampleHistoryApi(port=9), cache_dir, workers=0, auth_token=TOKEN) as client:
        yield client


async def answer_to(port: int, request: bytes) -> bytes:
    async with connected(port) as raw:
        await raw.send(request)
        answer, ended = await raw.receive_all(10)
        assert ended
        return answer


@pytest.mark.parametrize("given", [None, "", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer é"])
async def test_without_the_token_nothing_is_served(guarded: Client, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    for path, port in product(ROUTES, (guarded.machine.port, guarded.machine.ws_port)):
        for request in (http_get(path, **headers), ws_get(path, **headers, Connection="close, Upgrade")):
            answer = await answer_to(port, request)
            assert status_of(answer) == 401, answer
            assert b"WWW-Authenticate: Bearer" in answer
            assert json.loads(body_of(answer))["message"].startswith("Authorization:")
            assert TOKEN.encode() not in answer


async def test_no_route_is_forgotten() -> None:
    connections = Connections(most=1, request_timeout_s=1.0)
    app = _application(cast(Machine, None), from_keywords({"auth_token": TOKEN}), connections, "127.0.0.1")
    assert {resource.canonical for resource in app.router.resources()} == {*ROUTES, *OPEN_ROUTES} - {"/nowhere"}


@pytest.mark.parametrize("name", ["../../x", "..", "/x", "bitmex/../../x", "bitmex%2f..%2fx", "bitmex\\0", "./bitmex", ""])
async def test_an_exchange_is_a_name_and_no_path(client: Client, cache_dir: Path, name: str) -> None:
    before = tree(cache_dir)
    for path in ("/replay", "/replay-normalized"):
        fields = {"symbols": None, "dataTypes": None} if path == "/replay" else {}
        answer = await answer_to(client.machine.port, http_post(path, json.dumps(options(exchange=name, **fields)).encode()))
        assert (status_of(answer), json.loads(body_of(answer))["field"]) == (400, "exchange"), answer
    live = {"exchange": name, "symbols": ["XBTUSD"], "dataTypes": ["trade"]}
    raw = {"exchange": name, "from": options()["from"], "to": options()["to"]}
    for path, query in (
        ("/ws-replay", raw),
        ("/ws-replay-normalized", {"options": json.dumps(options(exchange=name))}),
        ("/ws-stream-normalized", {"options": json.dumps(live)}),
    ):
        async with client.http.ws_connect(client.ws_url(path), params=query) as socket:
            await socket.receive()
            assert socket.close_code == 1008
    assert tree(cache_dir) == before


async def test_a_session_is_a_name_and_no_path(client: Client, cache_dir: Path) -> None:
    before = tree(cache_dir)
    query = {"exchange": "bitmex", "from": options()["from"], "to": options()["to"], "session": "../../x"}
    async with client.http.ws_connect(client.url("/ws-replay"), params=query) as socket:
        await socket.send_json({"op": "subscribe", "args": ["trade:XBTUSD", "orderBookL2:XBTUSD"]})
        assert len([frame async for frame in socket]) > 100
        assert socket.close_code == 1000
    assert tree(cache_dir) == before


async def test_who_subscribes_to_what_was_never_recorded_is_told_what_was(client: Client) -> None:
    query = {"exchange": "bitmex", "from": options()["from"], "to": options()["to"]}
    async with client.http.ws_connect(client.url("/ws-replay"), params=query) as socket:
        await socket.send_json({"op": "subscribe", "args": ["candles:XBTUSD"]})
        ending = await socket.receive()
        assert (ending.type, ending.data) == (aiohttp.WSMsgType.CLOSE, 1008)
        assert str(ending.extra).startswith("nothing that was subscribed to was recorded; bitmex has trade")
    async with client.http.ws_connect(client.url("/ws-replay"), params=query) as socket:
        await socket.send_json({"op": "subscribe", "args": ["candles:XBTUSD", "trade:XBTUSD", "orderBookL2:XBTUSD"]})
        assert {json.loads(frame.data)["table"] async for frame in socket} == {"trade", "orderBookL2"}
        assert socket.close_code == 1000


async def test_a_lone_symbol_of_a_subscription_is_one_symbol(client: Client, cache_dir: Path) -> None:
    """WOO X's readers return it without its list: what is asked upstream, and so found in the cache, is a list of one."""
    trade = b'{"topic":"PERP_BTC_USDT@trade","ts":1706745600050,"data":{"symbol":"PERP_BTC_USDT","price":1,"size":2,"source":1}}'
    cache = FeedCache(cache_dir, "woo-x", (Filter("trade", ["PERP_BTC_USDT"]),))
    start_us = parse_date_us("2024-02-01")
    cache.store(start_us, 1, "gz", gzip.compress(b"2024-02-01T00:00:00.1234567Z " + trade + b"\n"))
    query = {"exchange": "woo-x", "from": "2024-02-01T00:00:00.000Z", "to": "2024-02-01T00:01:00.000Z"}
    async with client.http.ws_connect(client.url("/ws-replay"), params=query) as socket:
        await socket.send_json({"event": "subscribe", "topic": "PERP_BTC_USDT@trade"})
        assert [str(frame.data).encode() async for frame in socket] == [trade]
        assert socket.close_code == 1000


def tree(cache_dir: Path) -> tuple[list[Path], list[Path]]:
    """All that is in the cache, and what is beside it and two folders up, where a name of `../../x` would lead."""
    return sorted(cache_dir.rglob("*")), [folder / "x" for folder in cache_dir.parents if (folder / "x").exists()]


async def test_with_the_token_everything_is_served(guarded: Client) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/health-check", "/metrics"):
        async with guarded.http.get(guarded.url(path), headers=headers) as response:
            assert response.status == 200
    async with guarded.http.post(guarded.url("/replay-normalized"), json=options(), headers=headers) as response:
        assert response.status == 200
        lines = (await response.read()).count(b"\n")
    query = {"options": json.dumps(options())}
    async with guarded.http.ws_connect(guarded.ws_url("/ws-replay-normalized"), params=query, headers=headers) as socket:
        assert len([frame async for frame in socket]) == lines
    # A browser asks first, and can't send the token with that.
    async with guarded.http.options(guarded.url("/replay")) as response:
        assert response.status == 204


async def test_a_public_address_without_a_token_is_warned_of(cache_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    for host, token, expected in (("0.0.0.0", None, 1), ("0.0.0.0", TOKEN, 0), ("localhost", None, 0)):
        caplog.clear()
        machine = TardisMachine(cache_dir=cache_dir, workers=0, auth_token=token)
        await machine.start(port=0, host=host)
        await machine.stop()
        assert caplog.text.count("anyone who reaches this address is served") == expected


async def test_the_next_port_serves_too(cache_dir: Path) -> None:
    machine = TardisMachine(cache_dir=cache_dir, workers=0)
    port = free_port()
    await machine.start(port=port)
    try:
        assert (machine.port, machine.ws_port) == (port, port + 1)
        for one in (port, port + 1):
            assert status_of(await answer_to(one, http_get("/health-check"))) == 200
        second = TardisMachine(cache_dir=cache_dir, workers=1)
        with pytest.raises(SettingsError, match=f"port {port} is in use on 127.0.0.1; choose another with --port"):
            await second.start(port=port)
        assert second.worker_pids == []
    finally:
        await machine.stop()


async def test_methods_and_sizes(client: Client) -> None:
    port = client.machine.port
    for method, path, status in (
        ("PUT", "/replay", 405),
        ("DELETE", "/health-check", 405),
        ("HEAD", "/replay", 405),
        ("HEAD", "/health-check", 200),
        ("HEAD", "/ws-replay", 405),
        ("PATCH", "/replay", 405),
        ("OPTIONS", "/replay-normalized", 204),
        ("GET", "/ws-replay", 400),
        ("GET", "/replay/", 404),
    ):
        request = http_get(path).replace(b"GET", method.encode(), 1)
        answer = await answer_to(port, request)
        assert status_of(answer) == status, answer
        assert b"Access-Control-Allow-Origin: *" in answer
        assert b"Allow: " in answer or status != 405
        if status >= 400 and method != "HEAD":
            assert json.loads(body_of(answer))["message"]
    assert status_of(await answer_to(port, http_get("/replay", "x" * 300_000))) == 400
    assert status_of(await answer_to(port, http_get("/replay-normalized", options(symbols=["X" * 10] * 12_000)))) == 400
    too_large = await answer_to(port, http_post("/replay", b" " * (17 << 20)))
    assert status_of(too_large) == 413
    assert "message" in json.loads(body_of(too_large))


async def test_a_body_that_grows_without_end_is_not_unpacked(client: Client) -> None:
    body = gzip.compress(bytes(200_000_000), 9)
    tracemalloc.start()
    try:
        answer = await answer_to(client.machine.port, http_post("/replay", body, Content_Encoding="gzip"))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert status_of(answer) == 415
    assert json.loads(body_of(answer)) == {"message": "body: expected JSON that is not compressed"}


async def test_a_preflight_is_answered(client: Client) -> None:
    headers = {"Origin": "http://example.com", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    async with client.http.options(client.url("/replay-normalized"), headers=headers) as response:
        assert response.status == 204
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        assert response.headers["Access-Control-Allow-Headers"] == "*"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1", True), ("", False), ("x" * 129, False), ("caf\u00e9", False), ("\udcff", False), ("a\tb", False)],
)
async def test_a_request_id_is_kept_where_it_can_be(client: Client, given: str, kept: bool) -> None:
    request = http_get("/replay-normalized", options(to=options()["from"])).replace(
        b"Host: localhost", b"Host: localhost\r\nX-Request-Id: " + given.encode("utf-8", "surrogateescape")
    )
    answer = await answer_to(client.machine.port, request)
    assert status_of(answer) == 200
    [line] = [line for line in answer.split(b"\r\n") if line.startswith(b"X-Request-Id: ")]
    assert (line == b"X-Request-Id: " + given.encode("utf-8", "surrogateescape")) is kept
    assert len(line) > len(b"X-Request-Id: ")


@pytest.mark.parametrize("field", ["Upgrade", "Sec-WebSocket-Key", "Sec-WebSocket-Version"])
async def test_a_handshake_that_is_no_text_is_refused(client: Client, field: str) -> None:
    request = b"\r\n".join(
        line.split(b":")[0] + b": websocket\xad" if line.startswith(field.encode()) else line
        for line in ws_get("/ws-replay", Connection="close, Upgrade").split(b"\r\n")
    )
    answer = await answer_to(client.machine.port, request)
    assert status_of(answer) == 400, answer
    assert json.loads(body_of(answer))["message"]


async def test_compression_that_a_client_offers_is_declined(client: Client) -> None:
    query = {"options": json.dumps(options())}
    async with client.http.ws_connect(client.ws_url("/ws-replay-normalized"), params=query, compress=15) as socket:
        frames = [json.loads(frame.data) async for frame in socket]
        assert (socket.compress, socket.close_code) == (0, 1000)
    assert frames == await client.lines(options())


async def test_a_member_that_leaves_does_not_end_its_session(client: Client) -> None:
    query = {"exchange": "bitmex", "from": options()["from"], "to": options()["to"], "session": "s"}
    subscription = {"op": "subscribe", "args": ["trade:XBTUSD", "orderBookL2:XBTUSD"]}
    async with (
        client.http.ws_connect(client.url("/ws-replay"), params=query) as staying,
        client.http.ws_connect(client.url("/ws-replay"), params=query) as leaving,
        client.http.ws_connect(client.url("/ws-replay"), params=query) as gone_before,
    ):
        for socket in (staying, leaving):
            await socket.send_json(subscription)
        await gone_before.close()
        await leaving.receive()
        await leaving.close()
        count = len([frame async for frame in staying])
        assert staying.close_code == 1000
    assert count > 10_000


async def test_a_stopping_server_says_so(cache_dir: Path) -> None:
    machine = TardisMachine(cache_dir=cache_dir, workers=1)
    await machine.start(port=0)
    url = f"http://127.0.0.1:{machine.port}"
    long = options(to=f"{DAY}00:{MINUTES}:00Z")
    raw = {"exchange": "bitmex", "from": long["from"], "to": long["to"]}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/ws-replay", params=raw) as playing_raw,
        http.ws_connect(f"{url}/ws-replay-normalized", params={"options": json.dumps(long)}) as playing,
    ):
        await playing_raw.send_json({"op": "subscribe", "args": ["trade:XBTUSD", "orderBookL2:XBTUSD"]})
        await playing_raw.receive()
        await playing.receive()
        async with http.ws_connect(f"{url}/ws-replay", params=raw) as waiting, asyncio.timeout(5):
            stopping = asyncio.create_task(machine.stop())
            for socket in (playing_raw, playing, waiting):
                while (await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                    pass
                assert socket.close_code == 1001
            await stopping
