"""Answers as text, and as charts."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.answers import TABLE_ROWS, write_csv, write_json, write_table
from tardis_machine.lakehouse.chart import Panel, draw_chart, plan_panels

NAMES = ["at", "day", "price", "bids", "id", "note"]
ROW = (
    datetime(2020, 2, 1, 0, 0, 1, 250, UTC),
    date(2020, 2, 1),
    Decimal("9000.500000000000000000"),
    [{"price": Decimal("1E+1"), "amount": None}],
    bytearray(b"\x01\xff"),
    'a "b", [bold]c[/]',
)


def written(write: object, rows: list[tuple[object, ...]]) -> str:
    out = io.StringIO()
    write(NAMES, rows, out)  # type: ignore[operator]
    return out.getvalue()


def test_json_is_an_array_of_rows_that_any_reader_takes() -> None:
    text = written(write_json, [ROW, (None,) * 6])
    assert json.loads(text) == [
        {
            "at": "2020-02-01T00:00:01.000250Z",
            "day": "2020-02-01",
            "price": 9000.5,
            "bids": [{"price": 10, "amount": None}],
            "id": "01ff",
            "note": 'a "b", [bold]c[/]',
        },
        dict.fromkeys(NAMES),
    ]
    assert json.loads(written(write_json, [])) == []


def test_csv_quotes_what_needs_it_and_leaves_null_empty() -> None:
    lines = written(write_csv, [ROW, (None,) * 6]).splitlines()
    assert lines[0] == "at,day,price,bids,id,note"
    assert lines[1].startswith("2020-02-01T00:00:01.000250Z,2020-02-01,9000.5,")
    assert lines[1].endswith(',01ff,"a ""b"", [bold]c[/]"')
    assert lines[2] == ",,,,,"


def test_a_table_shows_all_of_a_row_and_says_when_rows_are_left_out() -> None:
    text = written(write_table, [ROW])
    for part in ("2020-02-01T00:00:01.000250Z", "9000.5", '[{"price": 10, "amount": null}]', '"b", [bold]c[/]'):
        assert part in text
    assert "rows;" not in text
    assert f"the first {TABLE_ROWS} rows" in written(write_table, [ROW] * (TABLE_ROWS + 1))


def test_a_chart_is_drawn_of_prices_and_volumes(tmp_path: Path) -> None:
    at = pd.date_range("2020-02-01", periods=50, freq="min", tz="UTC")
    frame = pd.DataFrame(
        {
            "symbol": ["A", "B"] * 25,
            "bar": at,
            "close": [Decimal(n) for n in range(50)],
            "volume": range(50),
        }
    )
    path = tmp_path / "chart.png"
    draw_chart(frame, path, "bars")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_what_shares_no_scale_shares_no_panel() -> None:
    frame = pd.DataFrame(
        {
            "date": [date(2020, 2, 1)] * 3,
            "start": pd.date_range("2020-02-01", periods=3, freq="h", tz="UTC"),
            "spread": [Decimal("0.5"), Decimal("0.6"), None],
            "bid": [28_000.0, 28_001.0, 28_002.0],
            "ask": [28_000.5, 28_001.6, 28_002.0],
            "funding_rate": [-1e-4, 1e-4, 1e-4],
            "nothing": [None] * 3,
            "volume": [1, 2, 3],
        }
    )
    assert plan_panels(frame) == (
        "start",
        [Panel("lines", ["spread"]), Panel("lines", ["bid", "ask"]), Panel("lines", ["funding_rate"]), Panel("bars", ["volume"])],
    )
    assert plan_panels(frame[["date", "volume"]]) == ("date", [Panel("bars", ["volume"])])
    assert plan_panels(frame[["start", "bid"]]) == ("start", [Panel("lines", ["bid"])])


def test_gaps_are_drawn_as_spans(tmp_path: Path) -> None:
    at = pd.date_range("2020-02-01", periods=4, freq="min", tz="UTC")
    frame = pd.DataFrame(
        {
            "date": [date(2020, 2, 1)] * 4,
            "exchange": ["bitmex", "bitmex", "okex", "okex"],
            "symbol": [None, "XBTUSD", None, "A"],
            "kind": ["disconnect", "sequence", "disconnect", "sequence"],
            "start": at,
            "end": [at[1], at[2], pd.NaT, at[3]],
            "first_sequence": [None, 7, None, 9],
        }
    )
    assert plan_panels(frame) == ("start", [Panel("spans", ["start", "end"])])
    draw_chart(frame, tmp_path / "gaps.png", "gaps")
    assert (tmp_path / "gaps.png").stat().st_size > 10_000
    # Alone, and without any end.
    draw_chart(frame[:1].assign(end=pd.NaT), tmp_path / "one.png", "gaps")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (pd.DataFrame({"n": [1, 2]}), "no column of times"),
        (pd.DataFrame({"at": pd.to_datetime(["2020-01-01"]), "name": ["x"]}), "no column of numbers"),
    ],
)
def test_what_can_not_be_drawn_is_said(frame: pd.DataFrame, reason: str, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=reason):
        draw_chart(frame, tmp_path / "chart.png", "")
