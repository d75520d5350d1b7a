"""Clients of live markets on simulated exchanges, that stay for a while, leave and come again, and keep which trades they got.

Invariant: a trade that a client has kept was accepted: the machine hands it out only when its event is on disk.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Self

import aiohttp

from tests.servers.process import DIE_WITH_PARENT

__all__ = ["LiveTrade", "LiveTraffic", "SimulatedMarkets"]

LiveTrade = tuple[str, str, str]
"""Exchange, symbol, the venue's id."""

MARKETS = (("bitmex", "XBTUSD"), ("bitmex", "XBTUSD"), ("binance", "btcusdt"))
"""A client each; two of them share what is heard of one market."""
STAYS_S = (2.0, 30.0)
AWAY_S = 0.3


class SimulatedMarkets:
    """Exchanges in a process of their own; `urls` tells a machine where they are."""

    def __init__(self, seed: int, activity: float) -> None:
        names = ",".join(dict.fromkeys(exchange for exchange, _ in MARKETS))
        self._process = subprocess.Popen(
            [
                *DIE_WITH_PARENT,
                *(sys.executable, "-m", "tardis_machine.sample.live", "--exchanges", names),
                *("--seed", str(seed), "--activity", str(activity), "--until-stdin-ends"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.urls: Mapping[str, str] = json.loads(self._process.stdout.readline())["exchange_urls"]

    def close(self) -> None:
        """Ends them."""
        self._process.communicate()


class LiveTraffic:
    """`start` the clients, look at `received`, and `stop` them."""

    def __init__(self, port: int, seed: int) -> None:
        self._url = f"ws://127.0.0.1:{port + 1}/ws-stream-normalized"
        self._randoms = [Random(seed + number) for number in range(len(MARKETS))]
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.trades: set[LiveTrade] = set()
        self.received = 0
        """Messages, of all clients."""
        self.connections = 0

    def start(self) -> Self:
        """Lets them come."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """They hang up."""
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as http:
            clients = zip(MARKETS, self._randoms, strict=True)
            await asyncio.gather(*(self._client(http, *market, random) for market, random in clients))

    async def _client(self, http: aiohttp.ClientSession, exchange: str, symbol: str, random: Random) -> None:
        asked = {"exchange": exchange, "symbols": [symbol], "dataTypes": ["trade", "book_change"], "withDisconnectMessages": True}
        query = {"options": json.dumps(asked)}
        while not self._over.is_set():
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with (
                    asyncio.timeout(random.uniform(*STAYS_S)),
                    http.ws_connect(self._url, params=query, max_msg_size=0) as socket,
                ):
                    self.connections += 1
                    await self._listen(socket)
            await asyncio.sleep(AWAY_S)

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                frame = await socket.receive(timeout=1.0)
                if frame.type is not aiohttp.WSMsgType.TEXT:
                    return
                message = json.loads(frame.data)
                self.received += 1
                if message["type"] == "trade":
                    self.trades.add((message["exchange"], message["symbol"], message["id"]))
