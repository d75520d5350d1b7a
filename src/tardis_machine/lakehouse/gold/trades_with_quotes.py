"""gold.trades_with_quotes: each trade with the best bid and ask that were last received before it, at most a minute old.

- quote_ts, bid_price, bid_amount, ask_price, ask_amount, mid: the top of the book then
- effective_spread: twice the distance of the price from the mid
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..silver.trades import TRADES
from ..tables import Table
from .product import GoldProduct, Scope
from .quotes_at import MAX_AGE_US, quotes_at
from .top_of_book import TOP_OF_BOOK
from .windows import MINUTE_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TRADES_WITH_QUOTES", "trades_with_quotes"]

_DECIMAL = "DECIMAL(38, 18)"

TRADES_WITH_QUOTES = Table(
    "gold.trades_with_quotes",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "local_ts": "TIMESTAMP",
        "event_ts": "TIMESTAMP",
        "trade_id": "STRING",
        "price": _DECIMAL,
        "amount": _DECIMAL,
        "side": "STRING",
        "quote_ts": "TIMESTAMP",
        **dict.fromkeys(("bid_price", "bid_amount", "ask_price", "ask_amount", "mid", "effective_spread"), _DECIMAL),
        "event_id": "BINARY",
    },
    skip_by=("local_ts",),
)


def trades_with_quotes() -> GoldProduct:
    """The product."""
    return GoldProduct(
        name="trades_with_quotes",
        table=TRADES_WITH_QUOTES,
        keys=("exchange", "event_id"),
        reads=frozenset({"trades", "top_of_book"}),
        interval_us=MINUTE_US,
        compute=_compute,
        clock="local_s",
        reach_us=MAX_AGE_US,
    )


def _compute(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    trades = scope.rows(TRADES.table, clock="local_ts")
    joined = quotes_at(trades.withColumn("at", F.col("local_ts")), scope.near(TOP_OF_BOOK, MAX_AGE_US))
    return joined.selectExpr(
        "date",
        "exchange",
        "symbol",
        "local_ts",
        "event_ts",
        "trade_id",
        "price",
        "amount",
        "side",
        "quote.local_ts AS quote_ts",
        "quote.bid_price",
        "quote.bid_amount",
        "quote.ask_price",
        "quote.ask_amount",
        "quote.mid",
        f"CAST(2 * abs(price - quote.mid) AS {_DECIMAL}) AS effective_spread",
        "event_id",
    )
