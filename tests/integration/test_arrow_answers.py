"""Arrow answers: the messages of the JSON answer as rows, for readers of Arrow as they are."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import duckdb
import polars as pl
import pyarrow as pa
import pytest

from tardis_machine import replay_arrow, replay_normalized, to_table
from tardis_machine.messages import from_json
from tardis_machine.pipeline.columns import kinds_of, to_batch
from tardis_machine.sample.history_api import Fault, SampleHistoryApi
from tardis_machine.sample.live import SimulatedExchanges
from tests.integration.machine import DAY, Client, options, running_machine
from tests.integration.seam_market import TIMINGS

ACCEPT = {"Accept": "application/vnd.apache.arrow.stream"}


@pytest.fixture
async def api() -> AsyncIterator[SampleHistoryApi]:
    async with SampleHistoryApi() as api:
        yield api


async def arrow(client: Client, asked: Any, **headers: str) -> bytes:
    async with client.http.get(
        client.url("/replay-normalized"), params={"options": json.dumps(asked)}, headers=ACCEPT | headers
    ) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == ACCEPT["Accept"]
        return await response.read()


@pytest.mark.parametrize("data_types", [["trade"], ["trade", "book_change", "quote", "trade_bar_10s"]])
async def test_rows_are_the_messages_of_the_json_answer(api: SampleHistoryApi, tmp_path: Path, data_types: list[str]) -> None:
    asked = options(dataTypes=data_types, withDisconnectMessages=True)
    async with running_machine(api, tmp_path) as client:
        data = await arrow(client, asked, **{"Accept-Encoding": "gzip"})
        lines = await client.lines(asked)
    messages = [from_json(json.dumps(line)) for line in lines]
    table = pa.ipc.open_stream(data).read_all()
    assert table.equals(pa.Table.from_batches([to_batch(messages, kinds_of(data_types, with_disconnects=True))]))
    assert table.column("type").to_pylist()[:3] == [
        "book_snapshot"
        if line["type"] == "book_snapshot" and line["name"] != "quote"
        else line.get("name", line["type"])
        if line["type"] == "book_snapshot"
        else line["type"]
        for line in lines[:3]
    ]
    frame = pl.read_ipc_stream(data)
    assert frame.height == len(lines)
    assert frame.filter(pl.col("type") == "trade")["price"].to_list() == [
        line["price"] for line in lines if line["type"] == "trade"
    ]
    rows = pa.ipc.open_stream(data)  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("SELECT symbol, count(*), sum(amount) FROM rows WHERE type = 'trade' GROUP BY symbol").fetchall()
    trades = [line for line in lines if line["type"] == "trade"]
    assert found == [("XBTUSD", len(trades), sum(trade["amount"] for trade in trades))]


async def test_the_library_replays_the_same(api: SampleHistoryApi, tmp_path: Path) -> None:
    asked = options(to=f"{DAY}00:01:00Z")
    keywords = {"api_url": api.url, "cache_dir": tmp_path}
    batches = [batch async for batch in replay_arrow(asked, **keywords)]
    messages = [message async for batch in replay_normalized(asked, **keywords) for message in batch]
    assert pa.Table.from_batches(batches).equals(to_table(messages))
    async with running_machine(api, tmp_path) as client:
        assert pa.ipc.open_stream(await arrow(client, asked)).read_all().to_pylist() == to_table(messages).to_pylist()


async def test_nothing_is_a_table_without_rows(api: SampleHistoryApi, tmp_path: Path) -> None:
    async with running_machine(api, tmp_path) as client:
        frame = pl.read_ipc_stream(await arrow(client, options(to=f"{DAY}00:00:00Z")))
    assert frame.height == 0
    assert {"price", "bids"} <= set(frame.columns)


async def test_what_breaks_off_is_seen_to_be_cut(api: SampleHistoryApi, tmp_path: Path) -> None:
    api.fail(Fault(status=404, message="gone"), when=lambda request: request.start_us % 600_000_000 == 300_000_000)
    async with running_machine(api, tmp_path, _history={"attempts": 1}) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await arrow(client, options(to=f"{DAY}00:08:00Z"))


async def test_at_a_pace_each_instant_leaves_when_it_is_its_turn(api: SampleHistoryApi, tmp_path: Path) -> None:
    asked = options(dataTypes=["trade"], to=f"{DAY}00:01:00Z", speed=1000)
    async with running_machine(api, tmp_path) as client:
        data = await arrow(client, asked)
        lines = await client.lines(options(dataTypes=["trade"], to=f"{DAY}00:01:00Z"))
    batches = list(pa.ipc.open_stream(data))
    assert [id_ for batch in batches for id_ in batch.column("trade_id").to_pylist()] == [line["id"] for line in lines]
    assert all(len(set(batch.column("local_ts").to_pylist())) == 1 for batch in batches)


async def test_what_goes_on_live_is_rows_as_it_comes(api: SampleHistoryApi, tmp_path: Path) -> None:
    async with SimulatedExchanges(7, ["bitmex"], speed=1.0) as simulated:
        keywords: dict[str, Any] = {"exchange_urls": simulated.urls, "_timings": TIMINGS}
        async with running_machine(api, tmp_path, **keywords) as client:
            start = simulated.clock.now_us / 1e6 - 60
            asked = options(**{"from": str(pl.from_epoch(pl.Series([start])).item()), "to": "live"}) | {
                "waitWhenDataNotYetAvailable": False,
                "withDisconnectMessages": True,
            }
            async with (
                asyncio.timeout(30),
                client.http.get(
                    client.url("/replay-normalized"), params={"options": json.dumps(asked)}, headers=ACCEPT
                ) as response,
            ):
                data = b""
                async for part in response.content.iter_any():
                    data += part
                    if len(data) > 20_000:
                        break
    reader = pa.ipc.open_stream(io.BytesIO(data))
    kinds = [*reader.read_next_batch().column("type").to_pylist(), *reader.read_next_batch().column("type").to_pylist()]
    assert kinds[0] == "disconnect"
    assert "book_change" in kinds
