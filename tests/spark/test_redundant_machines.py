"""Two machines live on one market, each of which is cut at random: together they have every trade, and the lake has it once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tardis_machine import TardisMachine
from tardis_machine.lakehouse.gold.bars import BARS
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.lakehouse.verify import verify
from tardis_machine.messages import parse_timestamp_us
from tardis_machine.sample.live import SimulatedExchanges
from tests.integration.machine import Client
from tests.integration.test_publishing import published
from tests.integration.test_shared_streams import TIMINGS, LiveReader, Market, trades_of
from tests.servers.proxy import FaultProxy
from tests.spark.lake_under_test import LakeUnderTest

pytestmark = pytest.mark.timeout(600)

CUTS_EACH = 4
Execution = tuple[str, int, str, Decimal, Decimal, str]


class Recorder(Market):
    """A machine with a client, and a network of its own between it and the exchange."""

    def __init__(self, simulated: SimulatedExchanges, client: Client, folder: Path, network: FaultProxy) -> None:
        super().__init__(simulated, client, folder)
        self.network = network
        self.reader: LiveReader

    async def hears_again(self) -> None:
        """Market time passes until it does."""
        known = len(self.reader.messages)
        await self.run_until(lambda: len(self.reader.messages) > known)

    async def cut_connection(self, away_s: float) -> None:
        self.network.refuse()
        await self.run(away_s)
        self.network.heal()

    async def kill_process(self, away_s: float) -> None:
        [pid] = self.client.machine.live_pids
        os.kill(pid, signal.SIGKILL)
        await self.run(away_s)
        await self.wait_until(lambda: set(self.client.machine.live_pids) - {pid})


@asynccontextmanager
async def recorder(simulated: SimulatedExchanges, folder: Path) -> AsyncIterator[Recorder]:
    address = urlsplit(simulated.urls["bitmex"])
    assert address.port is not None
    with FaultProxy(address.port) as network:
        machine = TardisMachine(
            cache_dir=folder / "cache",
            file={"dir": folder / "events"},
            spool_dir=folder / "spool",
            exchange_urls={"bitmex": f"ws://{network.address}{address.path}"},
            workers=1,
            _timings=TIMINGS,
        )
        await machine.start(port=0)
        try:
            async with aiohttp.ClientSession() as http:
                found = Recorder(simulated, Client(machine, http), folder, network)
                found.reader = await found.join()
                yield found
                await found.reader.leave()
        finally:
            await machine.stop()


async def record(folders: list[Path], chance: random.Random) -> list[Execution]:
    """Cuts one machine after the other, in random order and at random moments; what the exchange told of trades to anyone."""
    async with SimulatedExchanges(seed=3, exchanges=["bitmex"], speed=None) as simulated, AsyncExitStack() as stack:
        machines = [await stack.enter_async_context(recorder(simulated, folder)) for folder in folders]
        cuts = [way for machine in machines for way in (machine.cut_connection, machine.kill_process) * (CUTS_EACH // 2)]
        chance.shuffle(cuts)
        for cut in cuts:
            for machine in machines:
                await machine.hears_again()
            await machines[0].run(chance.uniform(0.0, 1.0))
            await cut(chance.uniform(0.5, 3.0))
        for machine in machines:
            await machine.hears_again()
        # What is on its way arrives.
        await machines[0].wait_until(lambda: len({machine.reader.messages[-1]["id"] for machine in machines}) == 1)
        told = [json.loads(sent.message) for sent in simulated.sent]
    rows = [
        row for message in told if message.get("table") == "trade" and message["action"] == "insert" for row in message["data"]
    ]
    return sorted({row["trdMatchID"]: as_told(row) for row in rows}.values())


def as_told(row: dict[str, Any]) -> Execution:
    price, amount = (Decimal(str(row[name])) for name in ("price", "size"))
    return row["symbol"], parse_timestamp_us(row["timestamp"]), row["trdMatchID"], price, amount, row["side"].lower()


def in_silver(lake: LakeUnderTest) -> list[Execution]:
    columns = ("symbol", "unix_micros(event_ts)", "trade_id", "price", "amount", "side")
    return sorted(tuple(row) for row in lake.lake.read(lake.spark, TRADES.table).selectExpr(*columns).collect())  # type: ignore[misc]


def test_what_one_machine_misses_the_other_has(lake: LakeUnderTest, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    folders = [tmp_path / "one", tmp_path / "other"]
    told = asyncio.run(record(folders, random.Random(seed)))

    everything = {execution[2] for execution in told}
    heard = [trades_of(published(folder / "events")) for folder in folders]
    for trades in heard:
        assert set(trades) < everything, "each has holes"
        assert set(trades.values()) == {1}
    assert heard[0].keys() & heard[1].keys(), "what both heard is to be there once"

    for folder in folders:
        lake.source = FilesSource(folder / "events")
        lake.ingest(until="gold", gold=("bars_1m",))
    assert in_silver(lake) == told
    trades_in_bronze = lake.lake.read(lake.spark, EVENTS).filter("payload_case = 'trade'").count()
    assert trades_in_bronze == heard[0].total() + heard[1].total()
    [(volume, count)] = lake.lake.read(lake.spark, BARS).selectExpr("sum(volume)", "sum(trades)").collect()
    assert (volume, count) == (sum(execution[4] for execution in told), len(told))
    assert verify(lake.spark, lake.lake).missing == []
