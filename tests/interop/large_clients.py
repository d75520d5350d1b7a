"""The clients that take a gigabyte to install, for `make interop`: loaders of datasets, compared with our own replay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tardis_machine import replay_normalized
from tardis_machine.commands.cli import main
from tardis_machine.messages import BookChange, BookSnapshot, Message, Trade
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.scripted_exchange import scripted_exchange
from tests.integration.test_stream_server import trade
from tests.interop.machine import run, shared_machine
from tests.interop.test_clients import PROGRAMS, python_of

DATASETS = "trades,incremental_book_L2,quotes,book_snapshot_5,book_snapshot_25,derivative_ticker"
SPAN = {"from": "2020-02-01", "to": "2020-02-01T00:03"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three minutes as datasets in `csv`, in a `catalog` and in `npz`, made of what is in `cache`."""
    folder = tmp_path_factory.mktemp("exported")
    with SampleHistoryApi.serve_in_process(activity=0.2) as url:
        place = ("--api-url", url, "--cache-dir", str(folder / "cache"), "--output-dir", str(folder / "csv"))
        asked = ("--exchange", "bitmex", "--symbols", "XBTUSD", "--datasets", DATASETS, "--workers", "1")
        assert main(["export", "csv", *asked, *(f"--{name}={date}" for name, date in SPAN.items()), *place]) == 0
        asked = (
            "--exchange",
            "bitmex",
            "--symbols",
            "XBTUSD",
            "--workers",
            "1",
            *(f"--{name}={date}" for name, date in SPAN.items()),
        )
        place = ("--api-url", url, "--cache-dir", str(folder / "cache"), "--output-dir")
        datasets = ("--datasets", "trades,incremental_book_L2,quotes")
        assert main(["export", "nautilus", *asked, *datasets, *place, str(folder / "catalog")]) == 0
        assert main(["export", "hftbacktest", *asked, *place, str(folder / "npz")]) == 0
    return folder


async def test_loaders_of_datasets(exported: Path) -> None:
    said: dict[str, Any] = json.loads(
        (await run(python_of("backtest"), PROGRAMS / "backtest_loaders.py", exported / "csv")).splitlines()[-1]
    )
    types = ["trade", "book_change", "quote", "book_snapshot_5_0ms", "book_snapshot_25_0ms"]
    asked: dict[str, Any] = {"exchange": "bitmex", "symbols": ["XBTUSD"], "data_types": types, "cache_dir": exported / "cache"}
    messages: list[Message] = []
    for data_type in types:
        span = {"from_": SPAN["from"], "to": SPAN["to"]}
        messages += [m async for batch in replay_normalized(**(asked | {"data_types": [data_type]}), **span) for m in batch]
    trades = [m for m in messages if isinstance(m, Trade)]
    levels = sum(len(m.bids) + len(m.asks) for m in messages if isinstance(m, BookChange))
    snapshots = {depth: [m for m in messages if isinstance(m, BookSnapshot) and m.depth == depth] for depth in (1, 5, 25)}
    nautilus, backtest = said["nautilus"], said["hftbacktest"]
    assert nautilus["trades"] == [[t.id, t.price, t.amount, t.timestamp_us * 1000, t.local_timestamp_us * 1000] for t in trades]
    assert nautilus["quotes"] == [[m.bids[0].price, m.asks[0].price, m.local_timestamp_us * 1000] for m in snapshots[1]]
    assert (nautilus["snapshots"], nautilus["depths"]) == (len(snapshots[5]), len(snapshots[25]))
    assert nautilus["deltas"] == levels
    assert nautilus["fundings"] > 0
    assert (backtest["trades"], backtest["levels"]) == (len(trades), levels)
    assert backtest["volume"] == sum(t.amount for t in trades)
    assert backtest["bought"] == sum(t.amount for t in trades if t.side == "buy")


async def test_exports_are_read_as_the_csv_files_of_the_same_replay(exported: Path) -> None:
    said: dict[str, Any] = json.loads(
        (await run(python_of("backtest"), PROGRAMS / "backtest_exports.py", exported)).splitlines()[-1]
    )
    asked: dict[str, Any] = {"exchange": "bitmex", "symbols": ["XBTUSD"], "cache_dir": exported / "cache"}
    span = {"from_": SPAN["from"], "to": SPAN["to"]}
    # Each by itself, as it was exported: what is asked for together is cached together.
    executions = [m async for batch in replay_normalized(**asked, **span, data_types=["trade"]) for m in batch]
    messages = [m async for batch in replay_normalized(**asked, **span, data_types=["book_change"]) for m in batch]
    books = [m for m in messages if isinstance(m, BookChange)]
    levels = sum(len(m.bids) + len(m.asks) for m in books)
    snapshots = sum(m.is_snapshot for m in books)
    tops = [m async for batch in replay_normalized(**asked, **span, data_types=["quote"]) for m in batch]
    top = next(m for m in reversed(tops) if isinstance(m, BookSnapshot))
    trades = sum(isinstance(m, Trade) for m in executions)
    assert said["nautilus"] == {
        "trades": trades,
        "same_trades": True,
        "quotes": sum(isinstance(m, BookSnapshot) for m in tops),
        "same_quotes": True,
        "changes": levels,
        "same_changes": True,
        "last_of_messages": len({m.local_timestamp for m in books}),
        "clears": snapshots,
        "clears_begin_snapshots": True,
    }
    overtaken = said["hftbacktest"].pop("overtaken")
    assert said["hftbacktest"] == {
        "dtype": True,
        "same_events": True,
        "clears": 2 * snapshots,
        "each_once_in_each_order": True,
        "book": [top.bids[0].price, top.asks[0].price],
    }
    assert overtaken >= 0
    told = [json.loads(line) for line in (exported / "npz" / "ledger.jsonl").read_text().splitlines()]
    assert [(line["file"], line["rows"]) for line in told] == [("bitmex_2020-02-01_XBTUSD", trades + levels)]
    assert {entry["payload_case"]: entry["count"] for entry in told[0]["ledger"]} == {"trade": trades, "book_change": levels}


async def test_nautilus_finds_instruments_and_replays(tmp_path: Path) -> None:
    with shared_machine(tmp_path, token=None) as machine:
        port = machine.url.rpartition(":")[2]
        said = json.loads((await run(python_of("backtest"), PROGRAMS / "nautilus_client.py", port)).splitlines()[-1])
        trades = await machine.trades("2020-02-02", from_="2020-02-01")
    assert said["instruments"] == ["ETHUSD.BITMEX", "XBTH20.BITMEX", "XBTUSD.BITMEX"]
    assert len(trades) > 1000
    assert said["trades"] == [[t.id, t.price, t.amount, t.timestamp_us * 1000, t.local_timestamp_us * 1000] for t in trades]


async def test_nautilus_streams(tmp_path: Path) -> None:
    """From an exchange that sends what this test gives it; the client gets all of it, as the exchange numbered it."""
    count = 50
    async with scripted_exchange() as exchange:
        with shared_machine(tmp_path, "--exchange-urls", f"bitmex:{exchange.url}", token=None) as machine:
            port = machine.url.rpartition(":")[2]
            said = asyncio.create_task(run(python_of("backtest"), PROGRAMS / "nautilus_stream.py", port, str(count)))
            client = await exchange.client()
            await client.hear()
            for number in range(count):
                await client.send(trade(number))
            rows = json.loads((await said).splitlines()[-1])
    at_ns = 1_767_225_600_000_000_000
    assert rows == [[str(number), 100.0 + number, 1.0, at_ns] for number in range(count)]


async def test_qubx_reads(tmp_path: Path) -> None:
    with shared_machine(tmp_path, token=None) as machine:
        port = machine.url.rpartition(":")[2]
        # It keeps files of its own at home.
        output = await run(python_of("qubx"), PROGRAMS / "qubx_reader.py", port, HOME=str(tmp_path))
        trades = await machine.trades("2020-02-01T00:07", from_="2020-02-01")
        bars = await machine.messages("trade_bar_1m", to="2020-02-01T00:07", from_="2020-02-01")
        tickers = await machine.messages("derivative_ticker", to="2020-02-01T00:07", from_="2020-02-01")
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert {"bitmex", "deribit", "binance-futures"} <= set(said["exchanges"])
    assert [
        (row["localTimestamp"], row["price"], row["amount"], row["side"], row["symbol"], row["exchange"])
        for row in said["trades"]
    ] == [
        (t.local_timestamp.removesuffix("Z"), t.price, t.amount, 1 if t.side == "buy" else -1, "XBTUSD", "bitmex") for t in trades
    ]
    names = {"open": "open", "high": "high", "low": "low", "close": "close", "volume": "volume", "buyVolume": "buy_volume"}
    names |= {"sellVolume": "sell_volume", "trades": "trades", "vwap": "vwap"}
    assert [[row[name] for name in names] for row in said["bars"]] == [
        [getattr(bar, name) for name in names.values()] for bar in bars
    ]
    assert len(bars) > 3
    assert said["tickers"] == len(tickers) > 3
