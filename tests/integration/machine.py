"""A machine on the sample history, and clients of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tardis_machine import TardisMachine
from tardis_machine.sample.history_api import SampleHistoryApi

DAY = "2020-02-01T"


def options(**fields: Any) -> dict[str, Any]:
    """A normalized request for two minutes of bitmex; fields override, None removes."""
    request: dict[str, Any] = {
        "exchange": "bitmex",
        "symbols": ["XBTUSD"],
        "from": f"{DAY}00:00:00Z",
        "to": f"{DAY}00:02:00Z",
        "dataTypes": ["trade", "book_change"],
    }
    return {name: value for name, value in (request | fields).items() if value is not None}


class Client:
    """Speaks to a machine over real sockets."""

    def __init__(self, machine: TardisMachine, http: aiohttp.ClientSession) -> None:
        self.machine = machine
        self.http = http

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.machine.port}{path}"

    def ws_url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.machine.ws_port}{path}"

    async def get(self, path: str, asked: Any) -> tuple[int, bytes]:
        async with self.http.get(self.url(path), params={"options": json.dumps(asked)}) as response:
            return response.status, await response.read()

    async def lines(self, asked: Any, path: str = "/replay-normalized") -> list[dict[str, Any]]:
        status, body = await self.get(path, asked)
        assert status == 200, body
        return [json.loads(line) for line in body.splitlines() if line]

    async def frames(self, path: str, **query: str) -> tuple[list[dict[str, Any]], int | None]:
        async with self.http.ws_connect(self.ws_url(path), params=query) as socket:
            messages = [json.loads(frame.data) async for frame in socket]
            return messages, socket.close_code


@asynccontextmanager
async def running_machine(api: SampleHistoryApi, cache_dir: Path, **keywords: Any) -> AsyncIterator[Client]:
    """A machine with its client; stopped at the end."""
    machine = TardisMachine(api_url=api.url, cache_dir=cache_dir, **({"workers": 1} | keywords))
    await machine.start(port=0)
    try:
        async with aiohttp.ClientSession(auto_decompress=True) as http:
            yield Client(machine, http)
    finally:
        await machine.stop()
