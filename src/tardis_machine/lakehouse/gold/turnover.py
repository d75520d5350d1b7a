"""gold.turnover: what was traded over intervals, in money, `turnover_1m`, `turnover_1d` and any other.

- trades, amount: their number, and the sum of their amounts as the exchange tells these, such as contracts
- notional, buy_notional, sell_notional: what they are worth, all and by the taker's side, in `notional_currency`
- base_amount: how much of the base currency was traded
- average_price: the notional over the base amount; of an inverse contract the harmonic mean, as it is worth the same at any price

What a contract is worth is in `notional`. These are null where the lake does not know the instrument: `lake instruments` asks for it, and
then they are computed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..silver.trades import TRADES
from .intervals import interval_product, interval_table
from .notional import SOURCE, WORTH, reopened_by_instruments, total, with_notional
from .product import GoldProduct, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TURNOVER", "turnover"]

TURNOVER = interval_table(
    "turnover",
    {
        "trades": "BIGINT",
        **dict.fromkeys(("amount", "notional", "buy_notional", "sell_notional"), WORTH),
        "notional_currency": "STRING",
        "base_amount": WORTH,
        "average_price": WORTH,
    },
)


def turnover(interval: str) -> GoldProduct:
    """Turnover of an interval."""
    return interval_product(
        TURNOVER,
        interval,
        frozenset({"trades", SOURCE}),
        _compute,
        reopened=partial(reopened_by_instruments, table=TURNOVER, interval=interval),
        touched_by=frozenset({"trades"}),
    )


def _compute(scope: Scope) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    worth = with_notional(scope, scope.rows(TRADES.table))
    summed = worth.groupBy("exchange", "symbol", "start").agg(
        F.count(F.lit(1)).alias("trades"),
        F.try_sum("amount").alias("amount"),
        F.expr(total("notional")).alias("notional"),
        F.expr(total("notional", only="side <=> 'buy'")).alias("buy_notional"),
        F.expr(total("notional", only="side <=> 'sell'")).alias("sell_notional"),
        F.max("notional_currency").alias("notional_currency"),
        F.expr(total("base_amount")).alias("base_amount"),
    )
    return summed.withColumn("average_price", F.expr(f"try_cast(try_divide(double(notional), double(base_amount)) AS {WORTH})"))
