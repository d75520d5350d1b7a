"""`book_at(exchange, symbol, at, depth)` in queries of `lake sql`: the book at an instant, as a table.

It begins with the last hourly book of gold.books before that instant, where there is one, and applies the changes of silver since then;
of several recorders, those of the one that was heard last. What stands in a query is replaced by a query of its own before Spark sees it: a
function of Spark's SQL may not look into its arguments as deep as this one has to.

Invariant: it has no rows while there is no book: before the first snapshot, and from a lost connection to the next one.
"""

from __future__ import annotations

import re

from ..errors import LakeError
from .gold.recorders import RECORDER

__all__ = ["with_books"]

_TEXT = r"'(?:[^'\\]|''|\\.)*'"
_CALL = re.compile(
    rf"\bbook_at\s*\(\s*({_TEXT})\s*,\s*({_TEXT})\s*,\s*(?:TIMESTAMP\s*)?({_TEXT})\s*(?:,\s*(\d+|NULL)\s*)?\)", re.IGNORECASE
)

_NEAR = "date BETWEEN date_sub(to_date({at}), 1) AND to_date({at}) AND local_ts <= {at}"
_OF = f"exchange = {{exchange}} AND symbol = {{symbol}} AND {_NEAR}"
_PLACE = (
    "named_struct('ts', local_ts, 'number', coalesce(sequence, 0L), 'part', coalesce(part, 0L), 'level', coalesce(level, 0L))"
)
_FIRST = "named_struct('ts', local_ts, 'number', -1L, 'part', 0L, 'level', 0L)"

_BOOK = f"""(
WITH recorded AS (
  SELECT {RECORDER} AS recorder, local_ts, {_PLACE} AS place, is_snapshot, bids, asks
  FROM silver.book_changes WHERE {_OF}
), followed AS (
  SELECT max_by(recorder, local_ts) AS recorder FROM recorded
), known AS (
  SELECT max_by(struct(local_ts, bids, asks), local_ts) AS book
  FROM gold.books WHERE {_OF} AND recorder = (SELECT recorder FROM followed)
), applied AS (
  SELECT local_ts, place, is_snapshot, bids, asks FROM recorded
  WHERE recorder = (SELECT recorder FROM followed) AND local_ts > coalesce((SELECT book.local_ts FROM known), TIMESTAMP '0001-01-01')
  UNION ALL
  SELECT book.local_ts, named_struct('ts', book.local_ts, 'number', -1L, 'part', 0L, 'level', 0L), true, book.bids, book.asks
  FROM known WHERE book.bids IS NOT NULL
), begun AS (
  SELECT max(place) FILTER (WHERE is_snapshot) AS place, max(local_ts) AS last_ts FROM applied
), lost AS (
  SELECT max({_FIRST}) AS place FROM silver.control_events
  WHERE exchange = {{exchange}} AND kind = 'disconnect' AND {_NEAR}
    AND (symbols IS NULL OR array_contains(symbols, {{symbol}})) AND {RECORDER} = (SELECT recorder FROM followed)
), standing AS (
  SELECT applied.* FROM applied CROSS JOIN begun CROSS JOIN lost
  WHERE applied.place >= begun.place AND (lost.place IS NULL OR lost.place < begun.place)
), told AS (
  SELECT 'bid' AS side, place, explode(bids) AS change FROM standing
  UNION ALL SELECT 'ask', place, explode(asks) FROM standing
), levels AS (
  SELECT side, change.price AS price, max_by(change.amount, place) AS amount FROM told GROUP BY side, change.price
), ranked AS (
  SELECT side, CAST(row_number() OVER (PARTITION BY side ORDER BY IF(side = 'bid', -price, price)) AS INT) AS level, price, amount
  FROM levels WHERE amount > 0
)
SELECT ranked.side, ranked.level, ranked.price, ranked.amount, begun.last_ts AS local_ts
FROM ranked CROSS JOIN begun WHERE {{depth}} IS NULL OR ranked.level <= {{depth}}
)"""  # noqa: S608 - of constants, and of literals that stood in the query


def with_books(query: str) -> str:
    """The query with what each `book_at` means in its place; LakeError where its arguments are no literals."""

    def expand(call: re.Match[str]) -> str:
        exchange, symbol, at, depth = call.groups()
        return _BOOK.format(exchange=exchange, symbol=symbol, at=f"TIMESTAMP {at}", depth=depth or "NULL")

    expanded = _CALL.sub(expand, query)
    if re.search(r"\bbook_at\s*\(", expanded, re.IGNORECASE):
        example = "book_at('bitmex', 'XBTUSD', TIMESTAMP '2020-02-01 10:30:00', 10)"
        raise LakeError(
            f"book_at takes an exchange, a symbol, an instant and a number of levels or NULL, all literals: {example}"
        )
    return expanded
