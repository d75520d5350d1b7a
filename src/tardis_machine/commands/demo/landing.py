"""The bus to bronze, silver and gold with Spark inside this process, and what the lake then says.

Invariant: what is counted is read from the tables, not from what the job says that it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...settings import Settings, from_keywords
from .progress import Teller
from .walk import Walk

if TYPE_CHECKING:
    from ...lakehouse.streams import Counts
    from ...lakehouse.verify import Verification

__all__ = ["Landed", "land"]

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
class Landed:
    """What the lake has."""

    counts: Mapping[str, Mapping[str, int]]
    products: Mapping[str, int]
    bars: list[Any]
    verification: Verification


def land(walk: Walk, settings: Settings, events: int, teller: Teller) -> Landed:
    """Takes in the bus, asks the lake, and draws the chart."""
    from ...lakehouse.chart import draw_chart
    from ...lakehouse.ingest import Ingest
    from ...lakehouse.jobs import open_session
    from ...lakehouse.lake import Lake
    from ...lakehouse.sources import create_source
    from ...lakehouse.sql import query
    from ...lakehouse.verify import verify

    began_s = teller.elapsed_s
    with teller.bar("spark", None) as advance:
        advance(0, "starting")
        spark = open_session(settings)
    teller.say("spark", f"started in {teller.elapsed_s - began_s:.1f} s")
    lake = Lake.at(walk.folder / "lake")
    landed_s = teller.elapsed_s
    gold = (f"bars_{walk.bar}", "top_of_book", "gaps")
    with teller.bar("lake", 2 * events) as advance:

        def report(streams: list[Counts]) -> None:
            rows = _by_layer(streams)
            words = ", ".join(f"{layer} {count:,}" for layer, count in rows.items())
            advance(rows.get("bronze", 0) + rows.get("silver", 0), words or "reading")

        Ingest(spark, lake, create_source(walk.source, _source_options(walk)), until="gold", gold=gold).run_once(report)
    teller.say("lake", f"{walk.source} -> bronze -> silver -> gold in {teller.elapsed_s - landed_s:.1f} s: {lake.root}")
    with teller.bar("lake", None) as advance:
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
        title = f"Bitcoin on {len(walk.requests)} exchanges: close of every {walk.bar} bar"
        draw_chart(query(spark, lake, CHART).toPandas(), walk.folder / "bars.png", title)
    spark.stop()
    return Landed(counts, products, bars, verification)


def _source_options(walk: Walk) -> Any:
    """What the lake's source reads of the settings."""
    served = from_keywords({walk.bus: walk.bus_options}, {})
    return SimpleNamespace(
        for_bus=served.for_bus,
        landing_dir=walk.folder / "landing",
        lake=walk.folder / "lake",
    )


def _by_layer(streams: list[Counts]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for stream in streams:
        for table, count in stream.rows.items():
            layer = table.partition(".")[0]
            rows[layer] = rows.get(layer, 0) + count
    return rows
