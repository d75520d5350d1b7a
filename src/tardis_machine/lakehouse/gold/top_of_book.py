"""gold.top_of_book: the best bid and ask of the rebuilt book, a row whenever they change, and what follows from them.

- spread: ask_price - bid_price
- mid: their mean
- microprice: their mean, each weighted with the amount on the other side: (bid_price × ask_amount + ask_price × bid_amount) / (bid_amount +
  ask_amount)
- imbalance: (bid_amount - ask_amount) / (bid_amount + ask_amount), from -1 to 1
- order_flow: what the change adds to the order flow imbalance: the bid's amount where its price did not fall, less the amount before
  where it did not rise, and the opposite for the ask; null after a book without a side
- crossed_levels: levels that were removed at this instant, as the book was crossed

A row holds from its `local_ts` until the next one. A side that the book does not have is null; both are after a lost connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tables import Table
from .rebuilding import TOP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TOP_OF_BOOK", "top_of_book"]

_DECIMAL = "DECIMAL(38, 18)"

TOP_OF_BOOK = Table(
    f"gold.{TOP}",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "local_ts": "TIMESTAMP",
        "event_ts": "TIMESTAMP",
        **dict.fromkeys(("bid_price", "bid_amount", "ask_price", "ask_amount", "spread", "mid", "microprice"), _DECIMAL),
        "imbalance": "DOUBLE",
        "order_flow": _DECIMAL,
        "crossed_levels": "BIGINT",
    },
    skip_by=("local_ts",),
)


def top_of_book(rebuilt: DataFrame) -> DataFrame:
    """Of what was rebuilt, the tops."""
    tops = rebuilt.where(f"product = '{TOP}'").selectExpr(
        "*",
        "get(bids, 0).price AS bid_price",
        "get(bids, 0).amount AS bid_amount",
        "get(asks, 0).price AS ask_price",
        "get(asks, 0).amount AS ask_amount",
    )
    bid, ask = "double(bid_amount)", "double(ask_amount)"
    return tops.selectExpr(
        "to_date(local_ts) AS date",
        "exchange",
        "symbol",
        "local_ts",
        "event_ts",
        "bid_price",
        "bid_amount",
        "ask_price",
        "ask_amount",
        f"CAST(ask_price - bid_price AS {_DECIMAL}) AS spread",
        f"CAST((bid_price + ask_price) / 2 AS {_DECIMAL}) AS mid",
        f"try_cast(try_divide(double(bid_price) * {ask} + double(ask_price) * {bid}, {bid} + {ask}) AS {_DECIMAL}) AS microprice",
        f"try_divide({bid} - {ask}, {bid} + {ask}) AS imbalance",
        "order_flow",
        "crossed_levels",
    )
