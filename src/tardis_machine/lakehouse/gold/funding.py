"""gold.funding: what is known of a derivative at the end of each interval, `funding_1m`, `funding_1h` and any other.

- funding_rate, predicted_funding_rate, funding_ts (when it is paid), mark_price, index_price, open_interest: the last one told in the
  interval; null where it was not
- basis: mark_price - index_price; basis_rate: the same as a part of the index
- open_interest_change: from the first open interest told in the interval to the last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.derivative_tickers import DERIVATIVE_TICKERS
from ..tables import Table
from .bars import ORDER
from .product import Product, Scope
from .windows import interval_us, later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FUNDING", "funding"]

_DECIMAL = "DECIMAL(38, 18)"

FUNDING = Table(
    "gold.funding",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "interval": "STRING",
        "start": "TIMESTAMP",
        "end": "TIMESTAMP",
        "funding_rate": "DOUBLE",
        "predicted_funding_rate": "DOUBLE",
        "funding_ts": "TIMESTAMP",
        "mark_price": _DECIMAL,
        "index_price": _DECIMAL,
        "basis": _DECIMAL,
        "basis_rate": "DOUBLE",
        "open_interest": _DECIMAL,
        "open_interest_change": _DECIMAL,
    },
    skip_by=("start",),
)
_LAST = ("funding_rate", "predicted_funding_rate", "funding_ts", "mark_price", "index_price", "open_interest")


def funding(interval: str) -> Product:
    """Funding of an interval."""
    return Product(
        name=f"funding_{interval}",
        table=FUNDING,
        keys=("exchange", "symbol", "interval", "start"),
        reads=frozenset({"derivative_tickers"}),
        interval_us=interval_us(interval),
        only={"interval": interval},
        compute=lambda scope: _compute(scope, interval),
    )


def _compute(scope: Scope, interval: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    tickers = scope.rows(DERIVATIVE_TICKERS.table)
    last = [F.expr(f"max_by({name}, {ORDER}) FILTER (WHERE {name} IS NOT NULL)").alias(name) for name in _LAST]
    first = F.expr(f"min_by(open_interest, {ORDER}) FILTER (WHERE open_interest IS NOT NULL)").alias("opening")
    return (
        tickers.groupBy("exchange", "symbol", "start")
        .agg(*last, first)
        .selectExpr(
            "to_date(start) AS date",
            "exchange",
            "symbol",
            f"'{interval}' AS interval",
            "start",
            f"{later('start', scope.interval_us)} AS end",
            "funding_rate",
            "predicted_funding_rate",
            "funding_ts",
            "mark_price",
            "index_price",
            f"CAST(mark_price - index_price AS {_DECIMAL}) AS basis",
            "try_divide(double(mark_price - index_price), double(index_price)) AS basis_rate",
            "open_interest",
            f"CAST(open_interest - opening AS {_DECIMAL}) AS open_interest_change",
        )
    )
