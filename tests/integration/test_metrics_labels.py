"""Metrics by labels: what a client says never makes a new one."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import DAY, Client, options, running_machine
from tests.integration.raw_client import WS_CLOSE, connected, http_get, ws_frame, ws_get


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    with SampleHistoryApi().serve_in_thread() as api:
        async with running_machine(api, tmp_path, workers=0) as client:
            yield client


async def series(client: Client) -> set[str]:
    async with client.http.get(client.url("/metrics")) as response:
        lines = (await response.text()).splitlines()
    found = {line.partition(" ")[0] for line in lines if line.startswith("tardis_machine_request")}
    return {name for name in found if '"/metrics"' not in name}  # that of the asking itself


async def test_close_codes_and_paths_of_clients_make_no_series(client: Client) -> None:
    async def answer_good_bye(code: int) -> None:
        """The server says good-bye, as there are no options; a client may answer with any code."""
        async with connected(client.machine.port) as raw:
            await raw.send(ws_get("/ws-replay-normalized"))
            await raw.reader.readuntil(b"\r\n\r\n")
            opcode, reason = await raw.read_frame()
            assert (opcode, int.from_bytes(reason[:2])) == (WS_CLOSE, 1008)
            await raw.send(ws_frame(WS_CLOSE, code.to_bytes(2)))
            await raw.receive_all(5)

    async def ask_for(path: str) -> None:
        async with connected(client.machine.port) as raw:
            await raw.send(http_get(path))
            await raw.receive_all(5)

    await answer_good_bye(1008)
    await ask_for("/nothing")
    before = await series(client)
    assert 'tardis_machine_requests_total{route="/ws-replay-normalized",status="1008"}' in before
    for number in range(20):
        await answer_good_bye(3000 + number)
        await ask_for(f"/nothing-{number}")
    assert await series(client) == before


async def test_the_status_of_a_websocket_is_how_it_was_closed(client: Client) -> None:
    """By us: that is the code that we gave. By the client, before it had all: that is a cut."""
    route = "/ws-replay-normalized"
    # Others have counted in this process before.
    before = await statuses_of(client, route)
    _, code = await client.frames(route, options=json.dumps(options(to=f"{DAY}00:01:00Z")))
    assert code == 1000
    asked = {"options": json.dumps(options(to=f"{DAY}00:30:00Z"))}
    async with client.http.ws_connect(client.ws_url(route), params=asked) as socket:
        await socket.receive()
    _, code = await client.frames(route)
    assert code == 1008
    async with asyncio.timeout(10):
        while (counted := await statuses_of(client, route) - before).total() < 3:
            await asyncio.sleep(0.02)
    assert counted == {"1000": 1, "1008": 1, "cut": 1}


async def statuses_of(client: Client, route: str) -> Counter[str]:
    """How often each was counted."""
    async with client.http.get(client.url("/metrics")) as response:
        found = re.findall(f'^tardis_machine_requests_total{{route="{route}",status="(.*)"}} (.*)$', await response.text(), re.M)
    return Counter({status: int(float(count)) for status, count in found})
