"""What publishing costs who does not publish: nothing. Looked at from outside, on a running server and its processes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.integration.machine import options
from tests.integration.scripted_exchange import ScriptedExchange, scripted_exchange
from tests.integration.served import Served, fill_bitmex, served
from tests.integration.test_stream_server import asked, trade

IMPORTED = re.compile(r"^import time:.*\| +([\w.]+)$", re.MULTILINE)
OF_PUBLISHING = re.compile(
    r"tardis_machine\.(bronze|eventbus|generated)\b|google\.protobuf|pyarrow|confluent_kafka|nats|redis|boto\w*|aiobotocore"
)


class Seen(NamedTuple):
    """What a server has left of itself in the system."""

    modules: set[str]
    """Those of publishing that any of its processes imported."""
    made: set[str]
    """What lies in its home and its temporary folder."""
    open: set[str]
    """The files that its processes have open, but for its log."""


@pytest.mark.parametrize("is_on", [False, True])
async def test_without_a_bus_nothing_of_publishing_is_loaded_made_or_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    """With a bus all of it is there, so that what is looked at would show it."""
    home = tmp_path / "home"
    for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        folder = home if variable == "HOME" else home / variable
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))
    made_by_us = {str(path.relative_to(home)) for path in home.rglob("*")}
    # Every process of Python below this one tells what it imports.
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    fill_bitmex(tmp_path / "cache", 1)
    bus = ("--file-dir", str(tmp_path / "events")) if is_on else ()
    async with scripted_exchange() as exchange:
        argv = ("--workers", "1", "--exchange-urls", f"bitmex:{exchange.url}", *bus)
        with served(tmp_path / "cache", tmp_path / "log", *argv) as server:
            open_files = await use(server, exchange)
    imported = set(IMPORTED.findall(server.log.read_text()))
    assert not {name for name in imported if name.startswith("opentelemetry")}, "nobody asked for spans"
    modules = {name for name in imported if OF_PUBLISHING.match(name)}
    seen = Seen(modules, {str(path.relative_to(home)) for path in home.rglob("*")} - made_by_us, open_files)
    if not is_on:
        assert seen == Seen(set(), set(), set())
        return
    assert {"tardis_machine.eventbus.publisher", "tardis_machine.bronze.encoding", "pyarrow"} <= seen.modules
    assert any("spool" in path for path in seen.made)
    assert any("spool" in path for path in seen.open)


async def use(server: Served, exchange: ScriptedExchange) -> set[str]:
    """Each kind of request; the files that are open while the live one runs."""
    url = f"http://127.0.0.1:{server.port}"
    replay = {"options": json.dumps(options(to="2020-02-01T00:01:00Z"))}
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/replay-normalized", params=replay) as response:
            assert len(await response.read()) > 100_000
        async with http.ws_connect(f"{url}/ws-replay-normalized", params=replay) as socket:
            assert len([frame async for frame in socket]) > 1000
        async with http.ws_connect(f"{url}/ws-stream-normalized", params=asked()) as socket:
            await (await exchange.client()).send(trade(1))
            assert (await asyncio.wait_for(socket.receive_json(), 15))["id"] == "1"
            return {path for pid in (server.process.pid, *server.worker_pids) for path in open_files(pid)} - {str(server.log)}


def open_files(pid: int) -> Iterator[str]:
    """Of a process; no sockets and pipes."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            path = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        if path.startswith("/") and not path.startswith("/dev/"):
            yield path
