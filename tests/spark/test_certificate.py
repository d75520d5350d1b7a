"""A certificate says what the lake has of a symbol and a day; it holds as long as that is so, and says what is other now."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tardis_machine.errors import LakeError, OptionsError
from tardis_machine.lakehouse import certificate
from tardis_machine.lakehouse.certificate import Certificate, certify, check
from tardis_machine.lakehouse.gold.bars import BARS
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.settings import resolve
from tests.spark.lake_under_test import LakeUnderTest, make_older, trades
from tests.spark.test_verify import Session

pytestmark = pytest.mark.timeout(600)

DAY = date(2020, 2, 1)


def run(lake: LakeUnderTest, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr("tardis_machine.lakehouse.jobs.open_session", lambda *_, **__: lake.spark)
    return certificate.run(resolve(["--lake", lake.lake.root, *flags], {}, command="lake certificate"))


def test_a_certificate_holds_until_something_else_is_there(
    lake: LakeUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other = Session("first", trades(30)), Session("other", trades(5, symbol="ETHUSD"))
    lake.bus.write("a", [*first.values, first.end(), *other.values[:3], other.end()])
    lake.ingest(until="gold", gold=["bars_1m"])

    file = tmp_path / "xbtusd.json"
    place = ("--exchange", "bitmex", "--symbol", "XBTUSD", "--date", "2020-02-01")
    assert run(lake, monkeypatch, *place, "--output", str(file)) == 0
    certified = msgspec.json.decode(file.read_bytes(), type=Certificate)
    assert certified.is_whole
    assert {name: table.rows for name, table in certified.tables.items()} == {
        EVENTS.name: 30,
        TRADES.table.name: 30,
        BARS.name: 1,
    }
    silver = certified.tables[TRADES.table.name]
    assert (silver.first_ts, silver.last_ts) == ("2020-02-01T00:00:00.000250Z", "2020-02-01T00:00:00.029250Z")
    assert [session["session"] for session in certified.sessions] == ["first"]
    assert run(lake, monkeypatch, "--check", str(file)) == 0
    assert capsys.readouterr().out == "bitmex XBTUSD on 2020-02-01: the lake has what was certified\n"

    # What is not whole says so.
    lacking = certify(lake.spark, lake.lake, "bitmex", "ETHUSD", DAY)
    assert not lacking.is_whole
    assert [(item["first_sequence"], item["last_sequence"]) for item in lacking.missing] == [(3, 4)]

    # Files that are joined, and what comes of other symbols, change nothing but versions.
    more = Session("more", trades(4, start=50, symbol="ETHUSD"))
    lake.bus.write("b", [*more.values, more.end()])
    lake.ingest(until="gold", gold=["bars_1m"])
    assert [*optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)]
    assert check(lake.spark, lake.lake, certified) == []
    assert [item.table for item in check(lake.spark, lake.lake, lacking)] == [EVENTS.name, TRADES.table.name, BARS.name]

    # A single number that is other is found, also where there are as many rows.
    lake.spark.sql(f"UPDATE delta.`{lake.lake.path(TRADES.table)}` SET price = price + 1 WHERE trade_id = 't7'")
    assert run(lake, monkeypatch, "--check", str(file)) == 1
    assert capsys.readouterr().out == (
        "silver.trades: 30 rows are there, and not all are what they were; the version that was certified still has them\n"
    )
    make_older(Path(lake.lake.root), MIN_RETAIN_S)
    assert [*optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)]
    [differing] = check(lake.spark, lake.lake, certified)
    assert differing.text.endswith("the version that was certified is gone")


def test_what_can_not_be_certified_is_named(lake: LakeUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*flags: str) -> Any:
        return run(lake, monkeypatch, *flags)

    with pytest.raises(OptionsError, match="a certificate needs --symbol and --date, or --check with the file of one"):
        refused("--exchange", "bitmex")
    with pytest.raises(OptionsError, match="--date: expected a day such as 2020-02-01, got 'today'"):
        refused("--exchange", "bitmex", "--symbol", "XBTUSD", "--date", "today")
    (tmp_path / "other.json").write_text(json.dumps({"exchange": "bitmex"}))
    with pytest.raises(LakeError, match=r"other.json is no certificate: .*symbol"):
        refused("--check", str(tmp_path / "other.json"))
    with pytest.raises(LakeError, match="can't be read: No such file or directory; name another file with --check"):
        refused("--check", str(tmp_path / "nowhere.json"))
