"""`export nautilus` and `export hftbacktest`: what the files have is what the ledger of the same replay counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from tardis_machine import replay_normalized
from tardis_machine.commands import export_backtests
from tardis_machine.commands.cli import main
from tardis_machine.messages import BookChange, Trade
from tardis_machine.sample.history_api import SampleHistoryApi

SPAN = ("2020-02-01T23:58", "2020-02-02T00:02")


@pytest.fixture(scope="module")
def url() -> Any:
    with SampleHistoryApi.serve_in_process(activity=0.1, disconnects_per_day=2000) as url:
        yield url


def asked(url: str, folder: Path, kind: str, *more: str) -> list[str]:
    place = ("--api-url", url, "--cache-dir", str(folder / "cache"), "--output-dir", str(folder / kind), "--workers", "1")
    return ["export", kind, "--exchange", "bitmex", "--symbols", "XBTUSD", "--from", SPAN[0], "--to", SPAN[1], *place, *more]


async def messages_of(url: str, folder: Path, data_type: str) -> list[Any]:
    place: dict[str, Any] = {"api_url": url, "cache_dir": folder / "cache"}
    span = {"from_": SPAN[0], "to": SPAN[1]}
    batches = replay_normalized(exchange="bitmex", symbols=["XBTUSD"], data_types=[data_type], **span, **place)
    return [message async for batch in batches for message in batch]


async def test_files_have_what_their_ledgers_count(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import asyncio

    assert await asyncio.to_thread(main, asked(url, tmp_path, "nautilus", "--price-precision", "2", "--venue", "BMX")) == 0
    assert await asyncio.to_thread(main, asked(url, tmp_path, "hftbacktest")) == 0
    trades = [m for m in await messages_of(url, tmp_path, "trade") if isinstance(m, Trade)]
    books = [m for m in await messages_of(url, tmp_path, "book_change") if isinstance(m, BookChange)]
    levels = sum(len(book.bids) + len(book.asks) for book in books)
    snapshots = sum(book.is_snapshot for book in books)
    assert snapshots > 2

    counts: dict[str, int] = {}
    for path in sorted((tmp_path / "nautilus" / "data").rglob("*.parquet")):
        table = pyarrow.parquet.read_table(path)
        assert table.schema.metadata[b"price_precision"] == b"2"
        assert path.parent.name == "XBTUSD.BMX"
        counts[path.parents[1].name] = counts.get(path.parents[1].name, 0) + len(table)
    assert counts == {"trade_tick": len(trades), "order_book_delta": levels + snapshots}

    files = sorted((tmp_path / "hftbacktest").glob("*.npz"))
    assert [file.name for file in files] == ["bitmex_2020-02-01_XBTUSD.npz", "bitmex_2020-02-02_XBTUSD.npz"]
    events = np.concatenate([np.load(file)["data"] for file in files])
    arrived = events[(events["ev"] & (1 << 30)) != 0]
    kinds = {int(kind): int(count) for kind, count in zip(*np.unique(arrived["ev"] & 0xFF, return_counts=True), strict=True)}
    assert kinds[2] == len(trades)
    assert kinds[1] + kinds[4] == levels
    assert kinds[3] == 2 * snapshots
    assert float(arrived["qty"][(arrived["ev"] & 0xFF) == 2].sum()) == sum(trade.amount for trade in trades)

    for kind in ("nautilus", "hftbacktest"):
        told = [json.loads(line) for line in (tmp_path / kind / "ledger.jsonl").read_text().splitlines()]
        assert [line["file"] for line in told] == ["bitmex_2020-02-01_XBTUSD", "bitmex_2020-02-02_XBTUSD"]
        entries = [entry for line in told for entry in line["ledger"]]
        assert sum(entry["count"] for entry in entries if entry["payload_case"] == "trade") == len(trades)
        assert sum(entry["count"] for entry in entries if entry["payload_case"] == "book_change") == levels

    changed = {file: file.stat().st_mtime_ns for file in files}
    assert await asyncio.to_thread(main, asked(url, tmp_path, "hftbacktest")) == 0
    assert {file: file.stat().st_mtime_ns for file in files} == changed, "what is there is not made again"


def test_what_is_not_there_is_made_and_nothing_is_there_twice(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "nautilus"

    def files() -> dict[str, int]:
        return {path.parts[-3]: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}

    day = ("--to", "2020-02-02")
    assert main(asked(url, tmp_path, "nautilus", *day, "--datasets", "trades")) == 0
    trades = files()
    assert trades.keys() == {"trade_tick"}
    # Another dataset of the same day.
    assert main(asked(url, tmp_path, "nautilus", *day, "--datasets", "trades,quotes")) == 0
    assert files().keys() == {"trade_tick", "quote_tick"}
    assert files().items() >= trades.items()
    # What was removed.
    for path in folder.rglob("trade_tick/*/*.parquet"):
        path.unlink()
    assert main(asked(url, tmp_path, "nautilus", *day, "--datasets", "trades,quotes")) == 0
    assert files().keys() == {"trade_tick", "quote_tick"}
    told = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert sorted([*line["paths"]] for line in told) == [["quotes"], ["trades"]]
    # A part of the day, whose rows would be there twice.
    before = files()
    assert main(asked(url, tmp_path, "nautilus", "--to", "2020-02-01T23:59", "--datasets", "trades")) != 0
    assert "has trades of bitmex_2020-02-01_XBTUSD from 2020-02-01T23:58:00" in capsys.readouterr().err
    assert files() == before
    (folder / "ledger.jsonl").write_text('{"file": "bit')
    assert main(asked(url, tmp_path, "nautilus", *day, "--datasets", "trades")) != 0
    assert "is not the ledger of an export" in capsys.readouterr().err


def test_rows_that_are_not_those_of_the_ledger_are_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = export_backtests.to_table
    monkeypatch.setattr(export_backtests, "to_table", lambda dataset, parts: whole(dataset, parts).slice(1))
    assert main(asked(url, tmp_path, "hftbacktest")) != 0
    assert "rows, but the ledger of its session counts" in capsys.readouterr().err
    assert list((tmp_path / "hftbacktest").glob("*")) == []


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        ("nautilus", ("--datasets", "trades,liquidations"), "--datasets: expected some of trades, incremental_book_L2, quotes"),
        ("nautilus", ("--price-precision", "0"), "--price-precision: expected 1 or more, which XBTUSD.BITMEX has, got 0"),
        ("hftbacktest", ("--to", "2020-01-01"), "--to: expected a date after --from"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, more: tuple[str, ...], says: str
) -> None:
    assert main(asked(url, tmp_path, kind, *more)) != 0
    assert says in capsys.readouterr().err
