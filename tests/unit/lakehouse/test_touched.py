"""Which windows new rows touch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tardis_machine.lakehouse.gold.touched import TOUCHED, WINDOWS, Span, Touched, distinct

SECOND_US = 1_000_000


def touched(*rows: tuple[str, str, str | None, int]) -> Touched:
    columns = [(source, exchange, symbol, at, at, at * SECOND_US + 5) for source, exchange, symbol, at in rows]
    return Touched(pa.Table.from_pylist([dict(zip(TOUCHED.names, row, strict=True)) for row in columns], TOUCHED))


def starts(windows: pa.Table) -> list[tuple[Any, ...]]:
    assert windows.schema == WINDOWS
    return sorted((row["exchange"], row["symbol"] or "", int(row["start"].timestamp())) for row in windows.to_pylist())


ROWS = touched(("trades", "x", "A", 59), ("trades", "x", "A", 60), ("trades", "x", "B", 61), ("liquidations", "x", "A", 600))


def test_windows_are_those_that_rows_lie_in() -> None:
    found = ROWS.windows({"trades"}, clock="local_s", length_us=60 * SECOND_US, reach_us=0, by_symbol=True)
    assert starts(found) == [("x", "A", 0), ("x", "A", 60), ("x", "B", 60)]
    # A second holds several shorter windows, and any of them may be meant.
    tenths = ROWS.windows({"liquidations"}, clock="local_s", length_us=SECOND_US // 2, reach_us=0, by_symbol=True)
    assert [row["start"].microsecond for row in tenths.sort_by("start").to_pylist()] == [0, 500_000]


def test_a_row_reaches_further_than_itself_where_a_product_says_so() -> None:
    found = ROWS.windows({"liquidations"}, clock="clock_s", length_us=60 * SECOND_US, reach_us=60 * SECOND_US, by_symbol=False)
    assert starts(found) == [("x", "", 540), ("x", "", 600), ("x", "", 660)]
    assert found.num_rows == distinct(pa.concat_tables([found, found])).num_rows
    assert ROWS.windows({"events"}, clock="clock_s", length_us=1, reach_us=0, by_symbol=True).num_rows == 0


def test_spans_begin_with_the_first_row_and_end_with_the_last_second() -> None:
    assert ROWS.spans("trades") == {
        ("x", "A"): Span(59 * SECOND_US + 5, 61 * SECOND_US),
        ("x", "B"): Span(61 * SECOND_US + 5, 62 * SECOND_US),
    }


def test_seconds_of_tops_touch_as_rows_of_a_table_do() -> None:
    second = pa.array([datetime(1970, 1, 1, 0, 1, 5, tzinfo=UTC)], WINDOWS.field("start").type)
    both = ROWS.with_seconds("top_of_book", pa.table({"exchange": ["x"], "symbol": ["A"], "start": second}))
    assert both.sources == {"trades", "liquidations", "top_of_book"}
    assert both.spans("top_of_book") == {("x", "A"): Span(65 * SECOND_US, 66 * SECOND_US)}
