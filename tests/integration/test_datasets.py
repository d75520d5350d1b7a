"""Datasets as CSV: the layouts, the days that the machine serves and the command writes, and downloads that go on."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tardis_machine import download_datasets, replay_normalized
from tardis_machine.commands.cli import main
from tardis_machine.errors import OptionsError, UpstreamError
from tardis_machine.history.datasets import to_file_name
from tardis_machine.messages import BookChange, Trade
from tardis_machine.pipeline.csv_rows import DATASETS
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tests.integration.machine import running_machine
from tests.servers.http_site import http_site

# As published: https://docs.tardis.dev/downloadable-csv-files/data-types
HEADERS = {
    "trades": "exchange,symbol,timestamp,local_timestamp,id,side,price,amount",
    "incremental_book_L2": "exchange,symbol,timestamp,local_timestamp,is_snapshot,side,price,amount",
    "quotes": "exchange,symbol,timestamp,local_timestamp,ask_amount,ask_price,bid_price,bid_amount",
    "book_ticker": "exchange,symbol,timestamp,local_timestamp,ask_amount,ask_price,bid_price,bid_amount",
    "liquidations": "exchange,symbol,timestamp,local_timestamp,id,side,price,amount",
    "derivative_ticker": "exchange,symbol,timestamp,local_timestamp,funding_timestamp,funding_rate,predicted_funding_rate,"
    "open_interest,last_price,index_price,mark_price",
    "options_chain": "exchange,symbol,timestamp,local_timestamp,type,strike_price,expiration,open_interest,last_price,bid_price,"
    "bid_amount,bid_iv,ask_price,ask_amount,ask_iv,mark_price,mark_iv,underlying_index,underlying_price,delta,gamma,vega,theta,rho",
}


for _depth in (5, 25):
    _levels = (f"asks[{n}].price,asks[{n}].amount,bids[{n}].price,bids[{n}].amount" for n in range(_depth))
    HEADERS[f"book_snapshot_{_depth}"] = "exchange,symbol,timestamp,local_timestamp," + ",".join(_levels)


def test_the_layouts_are_those_that_are_published() -> None:
    assert {name: dataset.header.decode() for name, dataset in DATASETS.items()} == {
        name: f"{header}\n" for name, header in HEADERS.items()
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """All datasets of four minutes around midnight, made by the command, and the cache that they were made of."""
    folder = tmp_path_factory.mktemp("exported")
    span = ("--from", "2020-02-01T23:58", "--to", "2020-02-02T00:02", "--workers", "1")
    with SampleHistoryApi(SampleMarket(activity=0.2)).serve_in_thread() as api:
        place = ("--api-url", api.url, "--cache-dir", str(folder / "cache"), "--output-dir", str(folder / "csv"))
        names = ",".join(name for name in DATASETS if name not in ("options_chain", "book_ticker"))
        assert main(["export", "csv", "--exchange", "bitmex", "--symbols", "XBTUSD", "--datasets", names, *span, *place]) == 0
        options = ("--symbols", "BTC-27MAR20-24000-C", "--datasets", "options_chain")
        assert main(["export", "csv", "--exchange", "deribit", *options, *span, *place]) == 0
        tickers = ("--symbols", "BTCUSDT", "--datasets", "book_ticker")
        assert main(["export", "csv", "--exchange", "binance-futures", *tickers, *span, *place]) == 0
    return folder / "csv", folder / "cache"


def rows_of(folder: Path, exchange: str, dataset: str, symbol: str) -> list[dict[str, str]]:
    """Of both days."""
    rows: list[dict[str, str]] = []
    for day in ("2020-02-01", "2020-02-02"):
        data = gzip.decompress((folder / to_file_name(exchange, dataset, day, symbol)).read_bytes()).decode()
        # Before midnight no book had begun: a day without rows is an empty file.
        assert data.startswith(HEADERS[dataset] + "\n") or (data == "" and day == "2020-02-01"), dataset
        read = list(csv.DictReader(io.StringIO(data)))
        starts = [int(row["local_timestamp"]) for row in read]
        assert starts == sorted(starts)
        assert all(len(row) == len(DATASETS[dataset].columns.split(",")) and None not in row.values() for row in read)
        rows += read
    assert rows
    return rows


async def test_rows_are_the_messages_of_a_replay(exported: tuple[Path, Path]) -> None:
    folder, cache = exported
    span: dict[str, Any] = {"from_": "2020-02-01T23:58", "to": "2020-02-02T00:02", "cache_dir": cache, "symbols": ["XBTUSD"]}
    messages = [m async for batch in replay_normalized(exchange="bitmex", data_types=["trade"], **span) for m in batch]
    trades = [
        (m.symbol, str(m.timestamp_us), str(m.local_timestamp_us), str(m.id), m.side, float(m.price), float(m.amount))
        for m in messages
        if isinstance(m, Trade)
    ]
    rows = rows_of(folder, "bitmex", "trades", "XBTUSD")
    columns = ("symbol", "timestamp", "local_timestamp", "id", "side")
    assert [(*(row[name] for name in columns), float(row["price"]), float(row["amount"])) for row in rows] == trades
    books = [m async for batch in replay_normalized(exchange="bitmex", data_types=["book_change"], **span) for m in batch]
    levels = Counter(
        (str(m.local_timestamp_us), str(m.is_snapshot).lower(), side, float(level.price), float(level.amount))
        for m in books
        if isinstance(m, BookChange)
        for side, changed in (("bid", m.bids), ("ask", m.asks))
        for level in changed
    )
    rows = rows_of(folder, "bitmex", "incremental_book_L2", "XBTUSD")
    found = Counter(
        (row["local_timestamp"], row["is_snapshot"], row["side"], float(row["price"]), float(row["amount"])) for row in rows
    )
    assert found == levels
    assert len(rows) > 500


def test_each_dataset_has_its_values(exported: tuple[Path, Path]) -> None:
    folder, _ = exported
    top = {row["local_timestamp"]: row for row in rows_of(folder, "bitmex", "quotes", "XBTUSD")}
    for depth in (5, 25):
        deep = {row["local_timestamp"]: row for row in rows_of(folder, "bitmex", f"book_snapshot_{depth}", "XBTUSD")}
        assert set(top) <= set(deep)
        for at, quote in top.items():
            assert (quote["ask_price"], quote["bid_price"]) == (deep[at]["asks[0].price"], deep[at]["bids[0].price"])
        asks = [float(next(iter(deep.values()))[f"asks[{n}].price"]) for n in range(depth)]
        assert asks == sorted(asks)
    tickers = rows_of(folder, "bitmex", "derivative_ticker", "XBTUSD")
    assert {row["funding_timestamp"][:2] for row in tickers} == {"15"}
    assert all(float(row["mark_price"]) > 1000 for row in tickers[-3:])
    options = rows_of(folder, "deribit", "options_chain", "BTC-27MAR20-24000-C")
    assert {(row["type"], row["strike_price"], row["expiration"]) for row in options} == {("call", "24000", "1585296000000000")}
    assert all(float(row["mark_iv"]) > 1 for row in options)
    best = rows_of(folder, "binance-futures", "book_ticker", "BTCUSDT")
    assert all(float(row["bid_price"]) < float(row["ask_price"]) for row in best)


async def test_the_machine_serves_days_and_clients_download_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SampleHistoryApi(SampleMarket(activity=0.002)) as api, running_machine(api, tmp_path / "cache") as client:
        url = client.url("/v1/datasets")
        asked: dict[str, Any] = {"exchange": "bitmex", "data_types": ["trades"], "symbols": ["xbtusd"]}
        asked |= {"from_": "2020-02-01", "to": "2020-02-02", "datasets_url": url, "download_dir": tmp_path / "own"}
        [file] = await download_datasets(**asked, progress=True)
        assert file.name == "bitmex_trades_2020-02-01_xbtusd.csv.gz"
        rows = list(csv.DictReader(io.StringIO(gzip.decompress(file.read_bytes()).decode())))
        market = [m async for batch in replay_normalized(**_trades_of_day(api, tmp_path)) for m in batch]
        assert [row["id"] for row in rows] == [str(m.id) for m in market if isinstance(m, Trade)]
        # The command makes the same bytes.
        place = ("--api-url", api.url, "--cache-dir", str(tmp_path / "cache"), "--output-dir", str(tmp_path / "csv"))
        span = ("--from", "2020-02-01", "--to", "2020-02-02", "--workers", "0")
        made = ["export", "csv", "--exchange", "bitmex", "--symbols", "XBTUSD", "--datasets", "trades", *span, *place]
        assert await asyncio.to_thread(main, made) == 0
        assert (tmp_path / "csv" / "bitmex_trades_2020-02-01_XBTUSD.csv.gz").read_bytes() == file.read_bytes()
        # It is there, and not asked for again.
        before = len(api.requests)
        assert await download_datasets(**asked) == [file]
        assert len(api.requests) == before
        # A day in which nothing came, and what there is not.
        async with client.http.get(f"{url}/bitmex/trades/2020/02/01/NOTHING.csv.gz") as response:
            assert (response.status, response.headers["Content-Type"]) == (200, "application/gzip")
            assert gzip.decompress(await response.read()) == b""
        for path, problem in (
            ("bitmex/tardes/2020/02/01/XBTUSD", "dataset: expected one of trades, "),
            ("bitmex/options_chain/2020/02/01/XBTUSD", "dataset: bitmex has no option_summary"),
            ("bitmex/trades/2020/02/30/XBTUSD", "date: there is no day 2020/02/30"),
        ):
            async with client.http.get(f"{url}/{path}.csv.gz") as response:
                said = json.loads(await response.read())
                assert (response.status, said["code"]) == (400, 400)
                assert said["message"].startswith(problem)
        with pytest.raises(UpstreamError, match="dataset: expected one of trades"):
            await download_datasets(**(asked | {"data_types": ["tardes"]}))
    with pytest.raises(OptionsError, match="to: expected a day after 2020-02-01"):
        await download_datasets(**(asked | {"to": "2020-02-01"}))


def _trades_of_day(api: SampleHistoryApi, folder: Path) -> dict[str, Any]:
    return {
        "exchange": "bitmex",
        "symbols": ["XBTUSD"],
        "data_types": ["trade"],
        "from_": "2020-02-01",
        "to": "2020-02-02",
        "api_url": api.url,
        "cache_dir": folder / "cache",
    }


@pytest.mark.parametrize("etag", ['"v1"', None])
async def test_a_download_that_was_cut_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etag: str | None
) -> None:
    monkeypatch.setattr("tardis_machine.history.datasets.random.random", lambda: -0.49)
    body = gzip.compress(b"a,b\n" * 100_000, compresslevel=0)
    ranges: list[str | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        ranges.append(request.headers.get("Range"))
        start = int(ranges[-1][6:-1]) if ranges[-1] else 0
        headers = {"Content-Length": str(len(body) - start)} | ({"ETag": etag} if etag else {})
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        await response.write(body[start : start + 150_000])
        if start + 150_000 < len(body) and (etag or len(ranges) < 3):
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write(body[start + 150_000 :])
        return response

    async with http_site(answer) as port:
        where: dict[str, Any] = {
            "datasets_url": f"http://127.0.0.1:{port}",
            "download_dir": tmp_path,
            "from_": "2020-02-01",
            "to": "2020-02-02",
        }
        [file] = await download_datasets(exchange="bitmex", data_types=["trades"], symbols=["X/Y"], **where)
    assert file.read_bytes() == body
    assert [each.name for each in tmp_path.iterdir()] == ["bitmex_trades_2020-02-01_X-Y.csv.gz"]
    assert len(ranges) == 3
    assert bool(ranges[1]) is bool(etag)
