"""What an execution is worth in money: its notional, by what its instrument is.

- linear: amount × contract_multiplier × price, in the quote currency; spot likewise, with a multiplier of 1 where none is told
- inverse (XBTUSD): amount × contract_multiplier, in the quote currency: contracts are worth so many dollars at any price
- option of an inverse kind (Deribit's BTC-…-C): amount × contract_multiplier × price, in the base currency, in which its premium is quoted
- quanto: amount × contract_multiplier × price, in the settlement currency: the multiplier is what a point of price is worth in it

`base_amount` is the amount of what is traded: notional / price, and none of a quanto, whose notional is in neither of its currencies.

Invariant: what is not known is null, never guessed: where the lake has no instrument, or one without a multiplier. So is what is wider
than a number of the lake, and an amount at a price of nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..instruments import read_latest
from .product import Scope
from .touched import PLACE, WINDOWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..tables import Table

__all__ = ["SOURCE", "WORTH", "reopened_by_instruments", "total", "with_notional"]

SOURCE = "instruments"
"""Of gold's sources, the one that says what contracts are worth."""
WORTH = "DECIMAL(38, 18)"
_MULTIPLIER = "CASE WHEN kind = 'spot' THEN coalesce(double(contract_multiplier), 1D) ELSE double(contract_multiplier) END"
_COUNTED = f"double(amount) * {_MULTIPLIER}"
_IS_OPTION = "kind <=> 'option'"
_BY_PRICE = f"NOT is_inverse OR {_IS_OPTION}"
"""Whether it is worth more at a higher price; what is not known of an instrument is null, and so is this."""


def with_notional(scope: Scope, rows: DataFrame) -> DataFrame:
    """Executions with `ts`, and what each is worth: notional, base_amount and notional_currency."""
    from pyspark.sql import functions as F  # noqa: N812

    terms = read_latest(scope.spark, scope.lake, scope.exchanges).alias("terms")
    executions = rows.alias("executions")
    same = (
        (F.col("executions.exchange") == F.col("terms.exchange"))
        & (F.upper("executions.symbol") == F.col("terms.symbol"))
        & (F.col("terms.valid_from").isNull() | (F.col("executions.ts") >= F.col("terms.valid_from")))
        & (F.col("terms.valid_to").isNull() | (F.col("executions.ts") < F.col("terms.valid_to")))
    )
    known = executions.join(F.broadcast(terms), same, "left")
    return known.selectExpr(
        "executions.*",
        f"try_cast(CASE WHEN {_BY_PRICE} THEN double(price) * {_COUNTED} ELSE {_COUNTED} END AS {WORTH}) AS notional",
        f"try_cast(CASE WHEN is_quanto THEN NULL WHEN {_BY_PRICE} THEN {_COUNTED} ELSE try_divide({_COUNTED}, double(price)) END"
        f" AS {WORTH}) AS base_amount",
        f"CASE WHEN is_quanto THEN settlement_currency WHEN is_inverse AND {_IS_OPTION} THEN base_currency ELSE quote_currency END"
        " AS notional_currency",
    )


def total(column: str, *, only: str = "true") -> str:
    """The sum of a column over the rows that are wanted, in SQL; null where that of one of them is not known, or it is too wide."""
    return (
        f"CASE WHEN count_if({only} AND {column} IS NULL) = 0"
        f" THEN CASE WHEN count_if({only}) = 0 THEN CAST(0 AS {WORTH}) ELSE try_sum({column}) FILTER (WHERE {only}) END END"
    )


def reopened_by_instruments(scope: Scope, table: Table, interval: str) -> pa.Table:
    """The windows of a table that are there, of symbols whose instruments are new."""
    from pyspark.sql import functions as F  # noqa: N812

    touched = scope.touched.table
    new = touched.filter(pc.equal(touched["source"], SOURCE)).group_by([*PLACE]).aggregate([])
    if not new.num_rows:
        return WINDOWS.empty_table()
    symbols = scope.spark.createDataFrame(new.select([*PLACE]), "exchange STRING, symbol STRING")
    own = scope.lake.read(scope.spark, table).where(
        F.col("exchange").isin(*new["exchange"].unique().to_pylist()) & (F.col("interval") == interval)
    )
    same = (F.col("own.exchange") == F.col("new.exchange")) & (F.upper("own.symbol") == F.upper("new.symbol"))
    again = own.alias("own").join(F.broadcast(symbols.alias("new")), same, "left_semi").select(*WINDOWS.names).distinct()
    return again.toArrow().cast(WINDOWS)
