"""`book_at(exchange, symbol, at, depth)`: a table function of `lake sql`, the book at an instant.

It begins with the last hourly book of gold.books before that instant, where there is one, and applies the changes of silver since then;
of several recorders, those of the one that was heard last.

Invariant: it has no rows while there is no book: before the first snapshot, and from a lost connection to the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .gold.recorders import RECORDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_asked", "register"]

_OF = "exchange = of_exchange AND symbol = of_symbol AND date BETWEEN date_sub(to_date(at), 1) AND to_date(at) AND local_ts <= at"
_PLACE = (
    "named_struct('ts', local_ts, 'number', coalesce(sequence, 0L), 'part', coalesce(part, 0L), 'level', coalesce(level, 0L))"
)
_FIRST = "named_struct('ts', local_ts, 'number', -1L, 'part', 0L, 'level', 0L)"

_FUNCTION = f"""
CREATE OR REPLACE TEMPORARY FUNCTION book_at(of_exchange STRING, of_symbol STRING, at TIMESTAMP, depth INT)
RETURNS TABLE (side STRING, level INT, price DECIMAL(38, 18), amount DECIMAL(38, 18), local_ts TIMESTAMP)
RETURN
WITH recorded AS (
  SELECT {RECORDER} AS recorder, local_ts, {_PLACE} AS place, is_snapshot, bids, asks
  FROM silver.book_changes WHERE {_OF}
), followed AS (
  SELECT max_by(recorder, local_ts) AS recorder FROM recorded
), known AS (
  SELECT max_by(struct(local_ts, bids, asks), local_ts) AS book
  FROM gold.books WHERE {_OF} AND recorder = (SELECT recorder FROM followed)
), rows AS (
  SELECT local_ts, place, is_snapshot, bids, asks FROM recorded
  WHERE recorder = (SELECT recorder FROM followed) AND local_ts > coalesce((SELECT book.local_ts FROM known), TIMESTAMP '0001-01-01')
  UNION ALL
  SELECT book.local_ts, named_struct('ts', book.local_ts, 'number', -1L, 'part', 0L, 'level', 0L), true, book.bids, book.asks
  FROM known WHERE book.bids IS NOT NULL
), begun AS (
  SELECT max(place) FILTER (WHERE is_snapshot) AS place, max(local_ts) AS last_ts FROM rows
), lost AS (
  SELECT max({_FIRST}) AS place FROM silver.control_events
  WHERE exchange = of_exchange AND kind = 'disconnect' AND date BETWEEN date_sub(to_date(at), 1) AND to_date(at) AND local_ts <= at
    AND (symbols IS NULL OR array_contains(symbols, of_symbol)) AND {RECORDER} = (SELECT recorder FROM followed)
), standing AS (
  SELECT rows.* FROM rows CROSS JOIN begun CROSS JOIN lost
  WHERE rows.place >= begun.place AND (lost.place IS NULL OR lost.place < begun.place)
), told AS (
  SELECT 'bid' AS side, place, explode(bids) AS told FROM standing
  UNION ALL SELECT 'ask', place, explode(asks) FROM standing
), levels AS (
  SELECT side, told.price AS price, max_by(told.amount, place) AS amount FROM told GROUP BY side, told.price
), ranked AS (
  SELECT side, CAST(row_number() OVER (PARTITION BY side ORDER BY IF(side = 'bid', -price, price)) AS INT) AS level, price, amount
  FROM levels WHERE amount > 0
)
SELECT ranked.side, ranked.level, ranked.price, ranked.amount, begun.last_ts
FROM ranked CROSS JOIN begun WHERE depth IS NULL OR ranked.level <= depth
"""  # noqa: S608 - it is made of constants


def is_asked(query: str) -> bool:
    """Whether a query may use it."""
    return "book_at" in query.lower()


def register(spark: SparkSession) -> None:
    """Gives it its name in a session that has the lake's tables under theirs."""
    spark.sql(_FUNCTION)
