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

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import sql
from tests.spark.lake_under_test import LakeUnderTest, encode, trades

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
