"""gold.funding: what is known of a derivative at the end of each interval, `funding_1m`, `funding_1h` and any other.

- funding_rate, predicted_funding_rate, funding_ts (when it is paid), mark_price, index_price, open_interest: the last one told in the
  interval; null where it was not
- basis: mark_price - index_price; basis_rate: the same as a part of the index
- open_interest_change: from the first open interest told in the interval to the last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.derivative_tickers import DERIVATIVE_TICKERS
from .intervals import ORDER, interval_product, interval_table
from .product import GoldProduct, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FUNDING", "funding"]

_DECIMAL = "DECIMAL(38, 18)"

FUNDING = interval_table(
    "funding",
    {
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
)
_LAST = ("funding_rate", "predicted_funding_rate", "funding_ts", "mark_price", "index_price", "open_interest")


def funding(interval: str) -> GoldProduct:
    """Funding of an interval."""
    return interval_product(FUNDING, interval, frozenset({"derivative_tickers"}), _compute)


def _compute(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    tickers = scope.rows(DERIVATIVE_TICKERS.table)
    last = [F.expr(f"max_by({name}, {ORDER}) FILTER (WHERE {name} IS NOT NULL)").alias(name) for name in _LAST]
    first = F.expr(f"min_by(open_interest, {ORDER}) FILTER (WHERE open_interest IS NOT NULL)").alias("opening")
    told = tickers.groupBy("exchange", "symbol", "start").agg(*last, first)
    return told.selectExpr(
        "*",
        f"CAST(mark_price - index_price AS {_DECIMAL}) AS basis",
        "try_divide(double(mark_price - index_price), double(index_price)) AS basis_rate",
        f"CAST(open_interest - opening AS {_DECIMAL}) AS open_interest_change",
    )
