"""What is rebuilt from book changes: gold.top_of_book, gold.book_state, and gold.books, from which the next rebuilding goes on.

A change alters the book from its instant on, until the next snapshot replaces it. So from the earliest new change of a symbol on,
its books are rebuilt up to the snapshot that follows the latest one, with it, or to the end; in a stream that arrives in order, that is no
more than what is new. gold.books has the whole book of each symbol and recorder as it was after the last change of each hour
(`local_ts`), so that no pass has to begin further back than an hour, or than the book before the late row.

Invariant: a rebuilding begins with a book that no new row is older than.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ..commits import Commits
from ..lake import Lake
from ..silver.book_changes import BOOK_CHANGES
from ..silver.control_events import CONTROL_EVENTS
from ..silver.whole_books import each_book_once
from ..tables import Table
from ..tasks import cores
from .rebuilding import BOOKS, CHANGE, DISCONNECT, KNOWN, REBUILT_DDL, Sampling, rebuild
from .recorders import FORGET_US, RECORDER, SILENT_US
from .touched import PLACE, Place, Span, Touched
from .windows import HOUR_US, to_instant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BOOKS_TABLE", "RebuildRange", "Rebuilt", "rebuild_books"]

_TASKS_PER_CORE = 4
_NEAR_US = 24 * HOUR_US
"""How far back the last book of a symbol is looked for at first: a table of years is looked through for those alone that are silent."""
_LEVELS = "ARRAY<STRUCT<price: DECIMAL(38, 18), amount: DECIMAL(38, 18)>>"
_RANGE = pa.schema(
    {
        "exchange": pa.string(),
        "symbol": pa.string(),
        "emit_from_us": pa.int64(),
        "until_us": pa.int64(),
        "since_us": pa.int64(),
    }
)
_RANGE_DDL = "exchange STRING, symbol STRING, emit_from_us BIGINT, until_us BIGINT, since_us BIGINT"
_KNOWN = pa.schema({"exchange": pa.string(), "symbol": pa.string(), "recorder": pa.string(), "at_us": pa.int64()})
_KNOWN_DDL = "exchange STRING, symbol STRING, recorder STRING, at_us BIGINT"

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
        "recorder": "STRING",
        "since": "TIMESTAMP",
        "sequence": "BIGINT",
        "has_gap": "BOOLEAN",
    },
    skip_by=("start",),
)


class KnownBook(NamedTuple):
    """A row of gold.books that a rebuilding begins with."""

    exchange: str
    symbol: str
    recorder: str | None
    at_us: int


class RebuildRange(NamedTuple):
    """What is rebuilt of one symbol."""

    exchange: str
    symbol: str
    emit_from_us: int
    """The first instant whose rows are computed anew."""
    until_us: int | None
    """The last such instant: a snapshot replaces the book there. None: there is no end."""
    since_us: int | None
    """Rows up to then, and those up to the known book of their recorder, are left out; None: there are no known books."""

    @staticmethod
    def to_frame(spark: SparkSession, ranges: Sequence[RebuildRange]) -> DataFrame:
        """exchange, symbol, and as instants emit_from, until and since."""
        columns = pa.table(dict(zip(RebuildRange._fields, zip(*ranges, strict=True), strict=True)), schema=_RANGE)
        return spark.createDataFrame(columns, _RANGE_DDL).selectExpr(
            *PLACE,
            "timestamp_micros(emit_from_us) AS emit_from",
            "timestamp_micros(until_us) AS until",
            "timestamp_micros(since_us) AS since",
        )


class Rebuilt(NamedTuple):
    """What comes of a pass."""

    rows: DataFrame
    """In the columns of `rebuilding.REBUILT`; not computed yet."""
    ranges: Sequence[RebuildRange]


def rebuild_books(
    spark: SparkSession, lake: Lake, touched: Touched, samplings: Sequence[Sampling], commits: Commits
) -> Rebuilt | None:
    """Rebuilds the books that new rows touch; None where there are none."""
    changes, oldest = lake.read(spark, BOOK_CHANGES.table), commits.first_date(BOOKS_TABLE)
    # A query of a table takes about as long however little it has.
    books = None if oldest is None else lake.read(spark, BOOKS_TABLE)
    spans = _spans(touched, books)
    if not spans:
        return None
    places = RebuildRange.to_frame(
        spark, [RebuildRange(*place, span.first_us, span.end_us, None) for place, span in spans.items()]
    )
    is_overtaken = commits.has_rows_since(BOOK_CHANGES.table, min(span.end_us for span in spans.values()))
    until = _find_until(changes, places, spans) if is_overtaken else {}
    known = {} if books is None or oldest is None else _find_known(books, places, spans, oldest)
    ranges = [
        RebuildRange(*place, span.first_us, until.get(place), _since_us(span, known.get(place))) for place, span in spans.items()
    ]
    begun = [book for of_place in known.values() for book in of_place]
    feed = _feed(spark, ranges, begun, changes, books, lake.read(spark, CONTROL_EVENTS.table))
    # One symbol is one core's: the more tasks, the less do cores wait for the one that got the busiest ones.
    tasks = min(len(ranges), cores(spark) * _TASKS_PER_CORE)
    ordered = feed.repartition(tasks, *PLACE).sortWithinPartitions(*PLACE, "local_us", "kind", "sequence", "part", "level")
    rows = ordered.select(*PLACE, *(name for name in ordered.columns if name not in {*PLACE, "sequence", "part", "level"}))
    rows = rows.mapInArrow(partial(rebuild, tuple(samplings)), REBUILT_DDL)
    return Rebuilt(rows, ranges)


def _spans(touched: Touched, books: DataFrame | None) -> dict[Place, Span]:
    """From when and until when something is new of each symbol; a lost connection concerns all books of its exchange."""
    spans = touched.spans("book_changes")
    lost: dict[str, Span] = {}
    for (exchange, _), span in touched.spans("control_events").items():
        lost[exchange] = span.with_other(lost.get(exchange, span))
    if lost:
        known = [] if books is None else books.where(books["exchange"].isin(*lost)).select(*PLACE).distinct().collect()
        for place in {*spans, *((row["exchange"], row["symbol"]) for row in known)}:
            if place[0] in lost:
                span = lost[place[0]]
                spans[place] = span.with_other(spans.get(place, span))
    return spans


def _find_until(changes: DataFrame, places: DataFrame, spans: Mapping[Place, Span]) -> dict[Place, int]:
    """For each symbol the instant from which nothing new matters: a snapshot has replaced the book of every recorder that goes on.

    A recorder that does not go on may be followed for a while after it was heard last.
    """
    from pyspark.sql import functions as F  # noqa: N812

    end = to_instant(min(span.end_us for span in spans.values()))
    later = changes.where((F.col("local_ts") >= end) & (F.col("date") >= end.date()))
    own = later.join(places, [*PLACE]).where("local_ts >= until").withColumn("recorder", F.expr(RECORDER))
    replaced = F.expr(f"min(local_ts) FILTER (WHERE is_snapshot AND unix_micros(local_ts) >= unix_micros(until) + {SILENT_US})")
    by_recorder = own.groupBy(*PLACE, "recorder").agg(replaced.alias("at"))
    found = by_recorder.groupBy(*PLACE).agg(F.max("at").alias("at"), F.count_if(F.col("at").isNull()).alias("open"))
    rows = found.where("open = 0").selectExpr(*PLACE, "unix_micros(at) AS at_us").collect()
    return {(row["exchange"], row["symbol"]): row["at_us"] for row in rows}


def _find_known(books: DataFrame, places: DataFrame, spans: Mapping[Place, Span], oldest: date) -> dict[Place, list[KnownBook]]:
    """The last book of each symbol and recorder before what is new; recorders that are forgotten by then are left out.

    `oldest`: the first date that there is a book of.
    """
    first = min(span.first_us for span in spans.values())
    near = to_instant(first - _NEAR_US - FORGET_US).date()
    known = _last_books(books, places, spans, since=near)
    # Of one that was heard a while ago, whoever else is not forgotten may lie further back.
    away = {place for place in spans if place not in known or known[place][-1].at_us < first - _NEAR_US}
    if away and oldest < near:
        known |= _last_books(books, places, {place: spans[place] for place in away}, since=None)
    for place, of_place in known.items():
        last_us = max(book.at_us for book in of_place)
        known[place] = [book for book in of_place if last_us - book.at_us <= FORGET_US]
    return known


def _last_books(
    books: DataFrame, places: DataFrame, spans: Mapping[Place, Span], since: date | None
) -> dict[Place, list[KnownBook]]:
    """The last book of each symbol and recorder before what is new, the latest one last; not of the dates before `since`."""
    from pyspark.sql import functions as F  # noqa: N812

    latest = to_instant(max(span.first_us for span in spans.values()))
    own = F.col("exchange").isin(*{exchange for exchange, _ in spans})
    if since is not None:
        own = own & (F.col("date") >= since)
    earlier = books.where(own & (F.col("start") <= latest)).join(places, [*PLACE]).where("local_ts < emit_from")
    found = earlier.groupBy(*PLACE, "recorder").agg(F.expr("unix_micros(max(local_ts))").alias("at_us"))
    known: dict[Place, list[KnownBook]] = {}
    for row in sorted(found.collect(), key=lambda row: row["at_us"]):
        if (row["exchange"], row["symbol"]) in spans:
            known.setdefault((row["exchange"], row["symbol"]), []).append(KnownBook(*row))
    return known


def _since_us(span: Span, known: Sequence[KnownBook] | None) -> int | None:
    """Where the rows begin of a recorder that has no known book: in the hour in which something is new, as else it had one."""
    if known is None:
        return None
    # A book of an earlier release has the rows of whoever there was.
    return max([span.first_us - span.first_us % HOUR_US - 1, *(book.at_us for book in known if book.recorder is None)])


def _feed(
    spark: SparkSession,
    ranges: Sequence[RebuildRange],
    known: Sequence[KnownBook],
    changes: DataFrame,
    books: DataFrame | None,
    control: DataFrame,
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
            "number": "CAST(NULL AS BIGINT)",
            "since_us": "CAST(NULL AS BIGINT)",
            "has_gap": "CAST(NULL AS BOOLEAN)",
            "sequence": "0L",
            "level": "0L",
            "part": "0L",
            **columns,
        }
        return rows.selectExpr(
            *PLACE,
            f"{kind} AS kind",
            "unix_micros(local_ts) AS local_us",
            "recorder",
            *(f"{expression} AS {name}" for name, expression in taken.items()),
            "unix_micros(emit_from) AS emit_from_us",
            "unix_micros(until) AS until_us",
        )

    near = F.col("exchange").isin(*{place.exchange for place in ranges})
    since_us = [place.since_us for place in ranges]
    if None not in since_us:
        first = to_instant(min(filter(None, since_us)))
        near = near & (F.col("local_ts") > first) & (F.col("date") >= first.date())
    until_us = [place.until_us for place in ranges]
    if None not in until_us:
        near = near & (F.col("local_ts") <= to_instant(max(filter(None, until_us))))
    limits = F.broadcast(RebuildRange.to_frame(spark, ranges))
    begun = spark.createDataFrame(pa.Table.from_pylist([book._asdict() for book in known], _KNOWN), _KNOWN_DDL)
    begun = F.broadcast(begun.selectExpr(*PLACE, "recorder", "timestamp_micros(at_us) AS known_ts"))

    def in_range(rows: DataFrame) -> DataFrame:
        """Those that the books to begin with lack, of their recorder."""
        rows = rows.withColumn("recorder", F.expr(RECORDER))
        if books is None:
            return rows.where("until IS NULL OR local_ts <= until")
        same = [F.col(f"own.{name}") == F.col(f"begun.{name}") for name in (*PLACE, "recorder")]
        rows = rows.alias("own").join(begun.alias("begun"), same, "left").select("own.*", "begun.known_ts")
        return rows.where("(since IS NULL OR local_ts > greatest(since, known_ts)) AND (until IS NULL OR local_ts <= until)")

    own = fed(
        each_book_once(in_range(changes.where(near).join(limits, [*PLACE]))),
        CHANGE,
        event_us="unix_micros(event_ts)",
        is_snapshot="is_snapshot",
        bids="bids",
        asks="asks",
        level_count="level_count",
        number="CASE WHEN origin = 'realtime' THEN sequence END",
        sequence="sequence",
        level="coalesce(level, 0L)",
        part="coalesce(part, 0L)",
    )
    disconnects = in_range(control.where("kind = 'disconnect'").where(near).drop("symbol").join(limits, "exchange"))
    lost = fed(disconnects.where("symbols IS NULL OR array_contains(symbols, symbol)"), DISCONNECT)
    if books is None:
        return own.unionByName(lost)
    days = {to_instant(book.at_us).date() for book in known}
    same = [F.col(f"book.{name}").eqNullSafe(F.col(f"begun.{name}")) for name in (*PLACE, "recorder")]
    whole = books.where(F.col("date").isin(*days) if days else F.lit(False)).alias("book").join(begun.alias("begun"), same)
    whole = whole.where("book.local_ts = begun.known_ts").select("book.*").withColumnRenamed("since", "snapshot_ts")
    first_books = fed(
        whole.join(limits, [*PLACE]),
        KNOWN,
        is_snapshot="bids IS NOT NULL",
        bids="bids",
        asks="asks",
        number="sequence",
        since_us="unix_micros(snapshot_ts)",
        has_gap="has_gap",
    )
    return own.unionByName(first_books).unionByName(lost)
