"""Loads the bus into bronze, silver and gold with Spark inside this process, then queries the lake.

Invariant: counts are read from the tables, not taken from what the job says that it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...settings import Settings, from_keywords
from .display import Display
from .plan import DemoPlan

if TYPE_CHECKING:
    from ...lakehouse.streams import Counts
    from ...lakehouse.verify import Verification

__all__ = ["LakeResult", "fill_lake"]

BRONZE = "select payload_case, count(*) from bronze.events group by 1"
SILVER = """
    select 'trade', count(*) from silver.trades
    union all select 'book_change', count(*) from silver.book_changes
    union all select 'derivative_ticker', count(*) from silver.derivative_tickers
    union all select 'disconnect', count(*) from silver.control_events where kind = 'disconnect'
"""
GOLD = "select '{0}', count(*) from gold.{0}"
PRODUCTS = ("bars", "top_of_book", "gaps")
# The newest bar may still be open.
BARS = """
    select exchange, start, open, high, low, close, trades, spread_bps from (
        select *, row_number() over (partition by exchange, symbol order by start desc) as place from gold.bars
    ) left join (
        select exchange, symbol, round(avg(spread / mid) * 10000, 2) as spread_bps from gold.top_of_book group by 1, 2
    ) using (exchange, symbol)
    where place between 2 and 3 order by exchange, start
"""
CHART = "select start as time, exchange, close from gold.bars order by 1"


@dataclass(frozen=True)
class LakeResult:
    """What is in the lake, by layer and by product, and whether anything is missing."""

    counts: Mapping[str, Mapping[str, int]]
    products: Mapping[str, int]
    bars: list[Any]
    verification: Verification


def fill_lake(plan: DemoPlan, settings: Settings, events: int, display: Display) -> LakeResult:
    """Loads the bus, queries the lake and draws the chart; `events` is how many the bus has."""
    from ...lakehouse.chart import draw_chart
    from ...lakehouse.ingest import Ingest
    from ...lakehouse.jobs import open_session
    from ...lakehouse.lake import Lake
    from ...lakehouse.sources import create_source
    from ...lakehouse.sql import query
    from ...lakehouse.verify import verify

    began_s = display.elapsed_s
    lake = Lake.at(plan.folder / "lake")
    with display.bar("spark", None) as advance:
        advance(0, "starting")
        spark = open_session(settings, lake)
    display.print_line("spark", f"started in {display.elapsed_s - began_s:.1f} s")
    loading_s = display.elapsed_s
    gold = (f"bars_{plan.bar}", "top_of_book", "gaps")
    with display.bar("lake", 2 * events) as advance:

        def report(streams: list[Counts]) -> None:
            rows = _by_layer(streams)
            note = ", ".join(f"{layer} {count:,}" for layer, count in rows.items())
            advance(rows.get("bronze", 0) + rows.get("silver", 0), note or "reading")

        Ingest(spark, lake, create_source(plan.source, _source_options(plan)), until="gold", gold=gold).run_once(report)
    display.print_line("lake", f"{plan.source} -> bronze -> silver -> gold in {display.elapsed_s - loading_s:.1f} s: {lake.root}")
    with display.bar("lake", None) as advance:
        advance(0, "comparing with what was published")
        verification = verify(spark, lake)
        advance(0, "counting")
        counts = {
            "bronze": dict(map(tuple, query(spark, lake, BRONZE).collect())),
            "silver": dict(map(tuple, query(spark, lake, SILVER).collect())),
        }
        products = dict(map(tuple, query(spark, lake, " union all ".join(GOLD.format(name) for name in PRODUCTS)).collect()))
        bars = query(spark, lake, BARS).collect()
        advance(0, "drawing")
        title = f"Bitcoin on {len(plan.requests)} exchanges: close of every {plan.bar} bar"
        draw_chart(query(spark, lake, CHART).toPandas(), plan.folder / "bars.png", title)
    spark.stop()
    return LakeResult(counts, products, bars, verification)


def _source_options(plan: DemoPlan) -> Any:
    """The settings that the lake's source reads."""
    served = from_keywords({plan.bus: plan.bus_options}, {})
    return SimpleNamespace(
        for_bus=served.for_bus,
        landing_dir=plan.folder / "landing",
        lake=plan.folder / "lake",
        lake_option={},
        receivers=0,
    )


def _by_layer(streams: list[Counts]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for stream in streams:
        for table, count in stream.rows.items():
            layer = table.partition(".")[0]
            rows[layer] = rows.get(layer, 0) + count
    return rows
