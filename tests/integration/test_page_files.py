"""What is served of the page: its files with their headers, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib.resources import files
from pathlib import Path

import pytest
import pytest_asyncio

from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.server.page.files import PAGE_FILES
from tests.integration.machine import Client, running_machine

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "the token of this test"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with running_machine(SampleHistoryApi(port=9), tmp_path_factory.mktemp("cache"), workers=0, auth_token=TOKEN) as one:
        yield one


async def test_every_file_is_served_without_a_token_and_locked_down(client: Client) -> None:
    for path in ["/", "/ui", *(f"/ui/{name}" for name in PAGE_FILES)]:
        async with client.http.get(client.url(path)) as response:
            assert response.status == 200, path
            policy = response.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in policy
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            tag = response.headers["ETag"]
        async with client.http.get(client.url(path), headers={"If-None-Match": tag}) as response:
            assert (response.status, await response.read()) == (304, b"")


async def test_the_folder_holds_what_is_served_and_nothing_is_inline() -> None:
    folder = files("tardis_machine.server.page").joinpath("static")
    with_path = Path(str(folder))
    there = {file.relative_to(with_path).as_posix() for file in with_path.rglob("*") if file.is_file()}
    assert there == {*PAGE_FILES, "vendor/lightweight-charts/SHA256SUMS"}
    html = with_path.joinpath("index.html").read_text()
    assert "style=" not in html
    assert "onclick" not in html
    for script in with_path.glob("*.js"):
        assert "innerHTML" not in script.read_text(), script


async def test_the_chart_library_is_the_one_that_was_vendored() -> None:
    folder = Path(str(files("tardis_machine.server.page"))) / "static/vendor/lightweight-charts"
    for line in folder.joinpath("SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", ["/ui/nothing.js", "/ui/..%2f..%2froutes.py", "/ui/../routes.py", "/ui/vendor", "/ui/%00"])
async def test_nothing_else_is_served(client: Client, path: str) -> None:
    async with client.http.get(client.url(path), headers={"Authorization": f"Bearer {TOKEN}"}) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    "path", ["/ui/events", "/ui/exchanges", "/ui/symbols/bitmex", "/ui/abilities", "/replays", "/health-check"]
)
async def test_what_the_page_asks_for_takes_the_token(client: Client, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        async with client.http.get(client.url(path), headers=headers) as response:
            assert response.status == 401
    async with client.http.get(client.url(path), headers={"Authorization": f"Bearer {TOKEN}"}) as response:
        assert response.status == 200


async def test_symbols_are_none_where_nobody_tells_them_and_a_sentence_of_an_unknown_exchange(client: Client) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with client.http.get(client.url("/ui/symbols/bitmex"), headers=headers) as response:
        assert (response.status, await response.json()) == (200, [])
    async with client.http.get(client.url("/ui/symbols/nowhere"), headers=headers) as response:
        assert response.status == 400
        assert "nowhere" in (await response.json())["message"]


def subprotocol(token: str) -> str:
    return "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


@pytest.mark.parametrize("offered", [subprotocol("wrong"), "bearer.", "bearer.%%%", "bearer.AAAAA", "other"])
async def test_a_socket_with_another_token_as_its_subprotocol_is_refused(client: Client, offered: str) -> None:
    path = "/ws-stream-normalized?options=x"
    with pytest.raises(Exception, match="401"):
        await client.http.ws_connect(client.ws_url(path), protocols=("tardis-machine", offered))


async def test_a_socket_with_the_token_as_its_subprotocol_is_served(client: Client) -> None:
    protocols = ("tardis-machine", subprotocol(TOKEN))
    async with client.http.ws_connect(client.ws_url("/ws-stream-normalized?options=x"), protocols=protocols) as socket:
        assert socket.protocol == "tardis-machine"
        await socket.receive()
        assert socket.close_code == 1008


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async with running_machine(SampleHistoryApi(port=9), tmp_path, workers=0, ui="off") as client:
        for path in ("/", "/ui", "/ui/events", "/ui/main.js"):
            async with client.http.get(client.url(path)) as response:
                assert response.status == 404


async def test_only_so_many_browsers_may_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps its connection for as long as it likes."""
    monkeypatch.setattr("tardis_machine.server.page.status.MOST_SUBSCRIBERS", 2)
    async with running_machine(SampleHistoryApi(port=9), tmp_path, workers=0) as client, AsyncExitStack() as stack:
        url = client.url("/ui/events")
        looking = [await stack.enter_async_context(client.http.get(url)) for _ in range(2)]
        async with client.http.get(url) as refused:
            assert (refused.status, await refused.json()) == (
                503,
                {"message": "2 browsers look at this machine, and no more are allowed; try again later"},
            )
        looking[0].close()
        while True:
            async with client.http.get(url) as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.02)
