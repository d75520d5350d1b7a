"""What is rebuilt from book changes: gold.top_of_book, gold.book_state, and gold.books, from which the next rebuilding goes on.

A change alters the book from its instant on, until the next snapshot replaces it. So from the earliest new change of a symbol on,
its books are rebuilt up to the snapshot that follows the latest one, with it, or to the end; in a stream that arrives in order, that is no
more than what is new. gold.books has the whole book of each symbol as it was after the last change of each hour (`local_ts`), so
that no pass has to begin further back than an hour, or than the book before the late row.

Invariant: a rebuilding begins with a book that no new row is older than.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ..lake import Lake
from ..silver.book_changes import BOOK_CHANGES
from ..silver.control_events import CONTROL_EVENTS
from ..silver.whole_books import each_book_once
from ..tables import Table
from ..tasks import cores
from .rebuilding import BOOKS, CHANGE, DISCONNECT, KNOWN, REBUILT_DDL, Sampling, rebuild
from .touched import PLACE, Place, Span, Touched
from .windows import to_instant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BOOKS_TABLE", "RebuildRange", "Rebuilt", "rebuild_books"]

_TASKS_PER_CORE = 4
_LEVELS = "ARRAY<STRUCT<price: DECIMAL(38, 18), amount: DECIMAL(38, 18)>>"
_RANGE = pa.schema(
    {
        "exchange": pa.string(),
        "symbol": pa.string(),
        "emit_from_us": pa.int64(),
        "until_us": pa.int64(),
        "known_us": pa.int64(),
    }
)
_RANGE_DDL = "exchange STRING, symbol STRING, emit_from_us BIGINT, until_us BIGINT, known_us BIGINT"

BOOKS_TABLE = Table(
    f"gold.{BOOKS}",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "start": "TIMESTAMP",
        "local_ts": "TIMESTAMP",
        "bids": _LEVELS,
        "asks": _LEVELS,
    },
    skip_by=("start",),
)


class RebuildRange(NamedTuple):
    """What is rebuilt of one symbol."""

    exchange: str
    symbol: str
    emit_from_us: int
    """The first instant whose rows are computed anew."""
    until_us: int | None
    """The last such instant: a snapshot replaces the book there. None: there is no end."""
    known_us: int | None
    """The time of the known book that the rebuilding begins with; None: it begins without one."""

    @staticmethod
    def to_frame(spark: SparkSession, ranges: Sequence[RebuildRange]) -> DataFrame:
        """exchange, symbol, and as instants emit_from, until and known_ts."""
        columns = pa.table(dict(zip(RebuildRange._fields, zip(*ranges, strict=True), strict=True)), schema=_RANGE)
        return spark.createDataFrame(columns, _RANGE_DDL).selectExpr(
            *PLACE,
            "timestamp_micros(emit_from_us) AS emit_from",
            "timestamp_micros(until_us) AS until",
            "timestamp_micros(known_us) AS known_ts",
        )


class Rebuilt(NamedTuple):
    """What comes of a pass."""

    rows: DataFrame
    """In the columns of `rebuilding.REBUILT`; not computed yet."""
    ranges: Sequence[RebuildRange]


def rebuild_books(spark: SparkSession, lake: Lake, touched: Touched, samplings: Sequence[Sampling]) -> Rebuilt | None:
    """Rebuilds the books that new rows touch; None where there are none."""
    changes, books = lake.read(spark, BOOK_CHANGES.table), lake.read(spark, BOOKS_TABLE)
    spans = _spans(touched, books)
    if not spans:
        return None
    places = RebuildRange.to_frame(
        spark, [RebuildRange(*place, span.first_us, span.end_us, None) for place, span in spans.items()]
    )
    until = _find(_after(changes, places, spans))
    known = _find(_before(books, places, spans))
    ranges = [RebuildRange(*place, span.first_us, until.get(place), known.get(place)) for place, span in spans.items()]
    feed = _feed(RebuildRange.to_frame(spark, ranges), ranges, changes, books, lake.read(spark, CONTROL_EVENTS.table))
    # One symbol is one core's: the more tasks, the less do cores wait for the one that got the busiest ones.
    tasks = min(len(ranges), cores(spark) * _TASKS_PER_CORE)
    ordered = feed.repartition(tasks, *PLACE).sortWithinPartitions(*PLACE, "local_us", "kind", "sequence", "part", "level")
    columns = ("kind", "local_us", "event_us", "is_snapshot", "bids", "asks", "level_count", "emit_from_us", "until_us")
    rows = ordered.select(*PLACE, *columns).mapInArrow(partial(rebuild, tuple(samplings)), REBUILT_DDL)
    return Rebuilt(rows, ranges)


def _spans(touched: Touched, books: DataFrame) -> dict[Place, Span]:
    """From when and until when something is new of each symbol; a lost connection concerns all books of its exchange."""
    spans = touched.spans("book_changes")
    lost: dict[str, Span] = {}
    for (exchange, _), span in touched.spans("control_events").items():
        lost[exchange] = span.with_other(lost.get(exchange, span))
    if lost:
        known = books.where(books["exchange"].isin(*lost)).select(*PLACE).distinct().collect()
        for place in {*spans, *((row["exchange"], row["symbol"]) for row in known)}:
            if place[0] in lost:
                span = lost[place[0]]
                spans[place] = span.with_other(spans.get(place, span))
    return spans


def _after(changes: DataFrame, places: DataFrame, spans: Mapping[Place, Span]) -> DataFrame:
    """The first snapshot of each symbol after what is new."""
    from pyspark.sql import functions as F  # noqa: N812

    end = to_instant(min(span.end_us for span in spans.values()))
    snapshots = changes.where(F.col("is_snapshot") & (F.col("local_ts") >= end) & (F.col("date") >= end.date()))
    later = snapshots.join(places, [*PLACE]).where("local_ts >= until")
    return later.groupBy(*PLACE).agg(F.min("local_ts").alias("at"))


def _before(books: DataFrame, places: DataFrame, spans: Mapping[Place, Span]) -> DataFrame:
    """The last book of each symbol before what is new."""
    from pyspark.sql import functions as F  # noqa: N812

    latest = to_instant(max(span.first_us for span in spans.values()))
    own = F.col("exchange").isin(*{exchange for exchange, _ in spans})
    earlier = books.where(own & (F.col("start") <= latest)).join(places, [*PLACE]).where("local_ts < emit_from")
    return earlier.groupBy(*PLACE).agg(F.max("local_ts").alias("at"))


def _find(instants: DataFrame) -> dict[Place, int]:
    found = instants.select(*PLACE, "at").toArrow()
    places = zip(found["exchange"].to_pylist(), found["symbol"].to_pylist(), strict=True)
    return dict(zip(places, found["at"].cast(pa.int64()).to_pylist(), strict=True))


def _feed(
    limits: DataFrame, ranges: Sequence[RebuildRange], changes: DataFrame, books: DataFrame, control: DataFrame
) -> DataFrame:
    """Books to begin with, changes and lost connections, each as `rebuild` takes it."""
    from pyspark.sql import functions as F  # noqa: N812

    def fed(rows: DataFrame, kind: int, **columns: str) -> DataFrame:
        taken = {
            "event_us": "CAST(NULL AS BIGINT)",
            "is_snapshot": "false",
            "bids": f"CAST(NULL AS {_LEVELS})",
            "asks": f"CAST(NULL AS {_LEVELS})",
            "level_count": "CAST(NULL AS BIGINT)",
            "sequence": "0L",
            "level": "0L",
            "part": "0L",
            **columns,
        }
        return rows.selectExpr(
            *PLACE,
            f"{kind} AS kind",
            "unix_micros(local_ts) AS local_us",
            *(f"{expression} AS {name}" for name, expression in taken.items()),
            "unix_micros(emit_from) AS emit_from_us",
            "unix_micros(until) AS until_us",
        )

    near = F.col("exchange").isin(*{place.exchange for place in ranges})
    known_us = [place.known_us for place in ranges]
    if None not in known_us:
        first = to_instant(min(filter(None, known_us)))
        near = near & (F.col("local_ts") > first) & (F.col("date") >= first.date())
    until_us = [place.until_us for place in ranges]
    if None not in until_us:
        near = near & (F.col("local_ts") <= to_instant(max(filter(None, until_us))))
    limits = F.broadcast(limits)
    in_range = "(known_ts IS NULL OR local_ts > known_ts) AND (until IS NULL OR local_ts <= until)"
    own = fed(
        each_book_once(changes.where(near).join(limits, [*PLACE]).where(in_range)),
        CHANGE,
        event_us="unix_micros(event_ts)",
        is_snapshot="is_snapshot",
        bids="bids",
        asks="asks",
        level_count="level_count",
        sequence="sequence",
        level="coalesce(level, 0L)",
        part="coalesce(part, 0L)",
    )
    begun = {to_instant(known).date() for known in known_us if known is not None}
    known = fed(
        books.where(F.col("date").isin(*begun) if begun else F.lit(False)).join(limits, [*PLACE]).where("local_ts = known_ts"),
        KNOWN,
        is_snapshot="bids IS NOT NULL",
        bids="bids",
        asks="asks",
    )
    disconnects = control.where("kind = 'disconnect'").where(near).drop("symbol").join(limits, "exchange").where(in_range)
    lost = fed(disconnects.where("symbols IS NULL OR array_contains(symbols, symbol)"), DISCONNECT)
    return own.unionByName(known).unionByName(lost)
