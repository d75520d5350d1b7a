"""A machine that other people's clients use: a process with an upstream of its own, a token for clients, and a key for upstream."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tardis_machine import replay_normalized
from tardis_machine.dates import parse_date_us
from tardis_machine.history.client import HistoryClient
from tardis_machine.history.reader import read_lines
from tardis_machine.messages import Disconnect, Trade
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.served import FILTERS, Served, served

TOKEN = "a-token-of-the-team"
KEY = "the-upstream-key"
DAY = "2020-02-02"
ACTIVITY = 0.01


class SharedMachine:
    """A running machine, and what upstream says of the same."""

    def __init__(self, server: Served, upstream_url: str, folder: Path) -> None:
        self.url = f"https://localhost:{server.port}"
        self.upstream_url = upstream_url
        self._place: dict[str, Any] = {"api_url": upstream_url, "api_key": KEY, "cache_dir": folder / "own-cache"}

    async def lines(self) -> list[bytes]:
        """Trades and books of XBTUSD in the first seven minutes; a lost connection is an empty line."""
        lines: list[bytes] = []
        async with HistoryClient(**self._place) as client:
            async for item in client.slices("bitmex", parse_date_us(DAY), parse_date_us(f"{DAY}T00:07"), FILTERS):
                lines += await asyncio.to_thread(read_lines, item)
        return lines

    async def messages(self, *data_types: str, to: str, from_: str = DAY, **more: Any) -> list[Any]:
        """Those of XBTUSD of some data types, but for lost connections; where these are told, what is computed begins anew."""
        asked: dict[str, Any] = {"exchange": "bitmex", "symbols": ["XBTUSD"], "data_types": data_types, "from_": from_, "to": to}
        found = [m async for batch in replay_normalized(**asked, **more, **self._place) for m in batch]
        return [message for message in found if not isinstance(message, Disconnect)]

    async def trades(self, to: str, from_: str = DAY) -> list[Trade]:
        """Those of XBTUSD."""
        asked: dict[str, Any] = {"exchange": "bitmex", "symbols": ["XBTUSD"], "data_types": ["trade"], "from_": from_, "to": to}
        return [m async for batch in replay_normalized(**asked, **self._place) for m in batch if isinstance(m, Trade)]


@contextmanager
def shared_machine(folder: Path, *argv: str, token: str | None = TOKEN) -> Iterator[SharedMachine]:
    """One that is gone at the end."""
    with SampleHistoryApi.serve_in_process(activity=ACTIVITY, api_key=KEY, disconnects_per_day=400) as upstream_url:
        place = ("--api-url", upstream_url, "--api-key", KEY, "--workers", "1", *(("--auth-token", token) if token else ()))
        with served(folder / "cache", folder / "log", *place, *argv) as server:
            yield SharedMachine(server, upstream_url, folder)


async def run(*command: str | Path, **environ: str) -> bytes:
    """What a program prints; it must end well."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*map(str, command), env=os.environ | environ, stdout=pipe, stderr=pipe)
    output, errors = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, errors.decode()
    return output
