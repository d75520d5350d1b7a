"""`lake sql`: the tables under their names, and every form of an answer."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tardis_machine import Normalizer, OrderBook
from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import sql
from tardis_machine.messages import BookChange, Disconnect
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.spark.lake_under_test import START_US, LakeUnderTest, encode, trades

pytestmark = pytest.mark.timeout(600)


def ask(lake: LakeUnderTest, query: str, form: str = "table", **options: Any) -> int:
    given = {
        "lake_option": {},
        "output": None,
        "chart": None,
        "master": "local[2]",
        "remote": None,
        "spark_conf": {},
        "spark_jars": None,
        **options,
    }
    return sql.run(SimpleNamespace(lake=lake.lake.root, query=query, format=form, **given))


def test_answers_in_every_form(lake: LakeUnderTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LakeError, match=r"there is no lake in .*; choose another with --lake, or make one with 'lake ingest'"):
        ask(lake, "select 1")
    lake.bus.write("a", encode(trades(6)))
    lake.ingest()

    query = "select side, count(*) as trades, sum(amount) as volume from silver.trades group by side order by side"
    assert ask(lake, query, "json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"side": "buy", "trades": 2, "volume": 5},
        {"side": "sell", "trades": 2, "volume": 7},
        {"side": "unknown", "trades": 2, "volume": 9},
    ]
    ask(lake, query, "csv")
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[:2] == [["side", "trades", "volume"], ["buy", "2", "5"]]
    ask(lake, query)
    assert "unknown" in capsys.readouterr().out

    ask(lake, query, "parquet", output=tmp_path / "answer.parquet")
    assert pq.read_table(tmp_path / "answer.parquet").column("side").to_pylist() == ["buy", "sell", "unknown"]
    with pytest.raises(LakeError, match="--format parquet needs a file to write; name it with --output"):
        ask(lake, query, "parquet")

    ask(lake, "select local_ts, price, amount from silver.trades", chart=tmp_path / "prices.png")
    assert (tmp_path / "prices.png").read_bytes().startswith(b"\x89PNG")

    nowhere = tmp_path / "nowhere"
    for flag, file in (("output", nowhere / "answer.csv"), ("chart", nowhere / "prices.png")):
        with pytest.raises(
            LakeError, match=rf"there is no folder {nowhere} to write {file.name} to; name another file with --{flag}"
        ):
            ask(lake, query, **{flag: file})
    with pytest.raises(LakeError, match=rf"{tmp_path} can't be written: Is a directory; name another file with --output"):
        ask(lake, query, "csv", output=tmp_path)
    for flag in ({}, {"chart": tmp_path / "none.png"}):
        with pytest.raises(LakeError, match=r"the query failed: .*is not true"):
            ask(lake, "select local_ts, assert_true(price < 0) from silver.trades", **flag)

    # A table that has had no rows yet is empty, not unknown.
    ask(lake, "select count(*) as n from silver.quotes", "json")
    assert json.loads(capsys.readouterr().out.splitlines()[-2]) == {"n": 0}
    with pytest.raises(LakeError, match=r"the query can't be run: .*nothing"):
        ask(lake, "select nothing from silver.trades")


def test_two_lakes_in_one_session_are_told_apart(lake: LakeUnderTest, tmp_path: Path) -> None:
    (tmp_path / "other one").mkdir()
    other = LakeUnderTest(lake.spark, tmp_path / "other one")
    for count, place in enumerate((lake, other), 1):
        place.bus.write("a", encode(trades(count)))
        place.ingest()
    for count, place in [(1, lake), (2, other), (2, other), (1, lake)]:
        (row,) = sql.query(lake.spark, place.lake, "select count(*) from silver.trades").collect()
        assert row[0] == count


def test_a_book_at_an_instant(lake: LakeUnderTest, capsys: pytest.CaptureFixture[str]) -> None:
    """As whoever applied every change has it: from silver alone, then from the hourly books of gold."""
    recording = Recording(SampleMarket(1, 0.1), disconnects_per_day=0)
    normalizer = Normalizer("bitmex", ["book_change"], START_US)
    messages = [
        message
        for minute in range(2)
        for message in normalizer.feed_lines(
            recording.minute("bitmex", START_US // 60_000_000 + minute, normalizer.filters(["XBTUSD"])).splitlines()
        )
    ]
    changes = [message for message in messages if isinstance(message, BookChange)]
    lake.bus.write("a", encode(changes, book_changes="message"))
    lake.ingest()
    places = (len(changes) // 3, len(changes) - 1)
    expected = {place: book_after(changes[: place + 1]) for place in places}

    def check() -> None:
        for place, (bids, asks) in expected.items():
            at = changes[place].local_timestamp
            query = f"SELECT * FROM book_at('bitmex', 'XBTUSD', TIMESTAMP '{at}', 5) ORDER BY side, level"
            assert ask(lake, query, "json") == 0
            rows = json.loads(capsys.readouterr().out)
            assert [(row["side"], row["level"], float(row["price"]), float(row["amount"])) for row in rows] == [
                (side, level, price, amount)
                for side, levels in (("ask", asks), ("bid", bids))
                for level, (price, amount) in enumerate(levels[:5], 1)
            ]

    check()
    lake.ingest(until="gold", gold=("top_of_book",))
    check()
    lost = Disconnect("bitmex", changes[-1].local_timestamp.replace("T00:01", "T00:02"))
    lake.bus.write("b", encode([lost], session="s2"))
    lake.ingest()
    ask(lake, "SELECT count(*) AS n FROM book_at('bitmex', 'XBTUSD', TIMESTAMP '2020-02-01T01:05:00Z', NULL)", "json")
    assert json.loads(capsys.readouterr().out) == [{"n": 0}]


def book_after(changes: list[BookChange]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    book = OrderBook(remove_crossed=False)
    for change in changes:
        book.update(change)
    bids, asks = ([(level.price, level.amount) for level in side] for side in (book.bids(), book.asks()))
    return bids, asks  # type: ignore[return-value]
