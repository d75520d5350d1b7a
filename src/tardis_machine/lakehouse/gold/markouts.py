"""gold.markouts: what each trade was worth to its taker a little later, at horizons of 1 s, 10 s and 1 min.

- mid: the mid price last received before the trade's local_ts + horizon, at most a minute old
- markout: mid - price for a buyer, price - mid for a seller; null where the side is not known, or there is no mid
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.trades import TRADES
from ..tables import Table
from .product import GoldProduct, Scope
from .quotes_at import MAX_AGE_US, quotes_at
from .top_of_book import TOP_OF_BOOK
from .windows import MINUTE_US, interval_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["HORIZONS", "MARKOUTS", "markouts"]

HORIZONS = ("1s", "10s", "1m")
_DECIMAL = "DECIMAL(38, 18)"

MARKOUTS = Table(
    "gold.markouts",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "local_ts": "TIMESTAMP",
        "side": "STRING",
        "price": _DECIMAL,
        "amount": _DECIMAL,
        "horizon": "STRING",
        "mid": _DECIMAL,
        "markout": _DECIMAL,
        "event_id": "BINARY",
    },
    skip_by=("local_ts",),
)


def markouts() -> GoldProduct:
    """The product."""
    return GoldProduct(
        name="markouts",
        table=MARKOUTS,
        keys=("exchange", "event_id", "horizon"),
        reads=frozenset({"trades", "top_of_book"}),
        interval_us=MINUTE_US,
        compute=_compute,
        clock="local_s",
        reach_us=MAX_AGE_US,
    )


def _compute(scope: Scope) -> DataFrame:
    trades = scope.rows(TRADES.table, clock="local_ts")
    horizons = ", ".join(f"struct('{horizon}' AS horizon, {interval_us(horizon)}L AS after_us)" for horizon in HORIZONS)
    asked = (
        trades.selectExpr("*", f"explode(array({horizons})) AS later")
        .selectExpr("*", "later.horizon", "timestamp_micros(unix_micros(local_ts) + later.after_us) AS at")
        .drop("later")
    )
    return quotes_at(asked, scope.near(TOP_OF_BOOK, MAX_AGE_US)).selectExpr(
        "date",
        "exchange",
        "symbol",
        "local_ts",
        "side",
        "price",
        "amount",
        "horizon",
        "quote.mid",
        f"CAST((quote.mid - price) * CASE side WHEN 'buy' THEN 1 WHEN 'sell' THEN -1 END AS {_DECIMAL}) AS markout",
        "event_id",
    )
