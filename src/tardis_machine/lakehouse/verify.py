"""What publishers say they published, against what the lake has: nothing is taken on trust, and what is missing is named.

A publisher ends a session with its ledger (`session_end`): for each exchange, symbol and payload case how many events, their first
and last sequence, and the sum of their ids. Two things are asked of each:

- bronze: is it all there, under its own session and bus? Records that came twice count once. A session that has not ended has no
  ledger yet; of it every sequence from 0 to the last one seen must be there.
- silver: is every event that is in bronze in the table of its kind? Silver keeps an event once, whichever session brought it
  first, so here ids count and sessions do not; and an execution once, whichever recorder heard it. An event that was refused is missing
  too, and it is said that it is in quarantine.

Sums of whole series are compared first, which needs no shuffle of rows; only series whose sums differ are looked at event by event.

Invariant: an event is reported at the first stage that lacks it, and nowhere else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import LakeError
from .answers import to_plain, write_table
from .decoding import REASON
from .lake import Lake, check_table
from .silver import SILVER_TABLES, SilverTable
from .silver.control_events import CONTROL_EVENTS
from .silver.venue_identity import VENUE_COLUMNS
from .silver.whole_books import BOOK_PARTS, SPLIT
from .silver.writer import decode_payloads
from .streams import with_decoded
from .tables import EVENTS, QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..settings import Settings

__all__ = ["MISSED_BY_SILVER", "Missing", "SessionState", "Verification", "event_rows", "ledgers_of", "run", "summed", "verify"]

SERIES = ("bus", "session", "exchange", "symbol", "payload_case")
"""What has a sequence of its own; the lake may hear a session from several buses, each with a ledger."""

MISSED_BY_SILVER = "not there, though bronze has it"
"""Why an event is missing that only has to be taken through silver again."""

MAX_RANGES = 100_000
"""Of a lake that lacks more than this, the first ones are listed."""

_OF_SERIES = ("session", "exchange", "symbol", "sequence", "event_id", "date")
_SESSION_END = "session_end"
_PUBLISHED = "CASE WHEN entries IS NOT NULL THEN aggregate(entries, 0L, (sum, entry) -> sum + entry.count) END"
"""How many events a ledger has."""
_HALF = "18446744073709551616"
"""2 to the power of 64: digests are summed in halves, as no number of Spark's holds 128 bits."""


@dataclass(frozen=True)
class SessionState:
    """A session as the lake knows it."""

    session: str
    bus: str
    state: str
    """complete, incomplete (cut short, as its ledger says), or open (no ledger has come)."""
    reason: str | None
    started_ts: datetime | None
    ended_ts: datetime | None
    published: int | None
    """Events, as the ledger has it."""


@dataclass(frozen=True)
class Missing:
    """Consecutive events of one series that a stage lacks."""

    stage: str
    bus: str
    session: str
    exchange: str
    symbol: str
    payload_case: str
    first_sequence: int | None
    """None: which ones is not known, as parts of one book share their sequence."""
    last_sequence: int | None
    events: int
    reason: str


@dataclass(frozen=True)
class Verification:
    """The outcome."""

    sessions: Sequence[SessionState]
    missing: Sequence[Missing]
    has_silver: bool
    """False: no silver table is there yet, and none was looked at."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def run(settings: Settings) -> int:
    """`lake verify`: 0 when nothing is missing."""
    from .jobs import open_session

    lake = Lake.at(settings.lake, settings.lake_option)
    lake.check_exists()
    spark = open_session(settings, lake)
    outcome = verify(spark, lake)
    if settings.repair:
        from .repair import repair

        outcome = repair(spark, lake, outcome, settings)
    write_outcome(outcome, settings.format, sys.stdout)
    return 0 if outcome.is_whole else 1


def verify(spark: SparkSession, lake: Lake, place: tuple[str, str] | None = None) -> Verification:
    """Compares ledgers with bronze, and bronze with silver; of all that is there, or of one exchange and symbol."""
    from pyspark.sql import functions as F  # noqa: N812

    if not check_table(lake, EVENTS):
        raise LakeError(
            f"there is no {EVENTS.name} in {lake.root}; choose another lake with --lake, or fill this one with 'lake ingest'"
        )
    bronze = lake.read(spark, EVENTS)
    ends = ledgers_of(bronze)
    if place is not None:
        bronze = _only(bronze, place)
        of_place = F.filter("entries", lambda entry: (entry["exchange"] == place[0]) & (entry["symbol"] == place[1]))
        ends = ends.withColumn("entries", of_place).where("size(entries) > 0")
    ends = ends.persist()
    events = event_rows(bronze)
    found = summed(events, *SERIES).persist()
    sessions = _read_sessions(ends, found)
    if not sessions and place is None:
        raise LakeError(f"no event in {lake.root} belongs to a session, so there is nothing to compare it with")
    missing = _missing_in_bronze(ends, events, found)
    present = [silver for silver in SILVER_TABLES if check_table(lake, silver.table)]
    if present:
        cases = {row["payload_case"] for row in found.select("payload_case").distinct().collect()}
        for silver in SILVER_TABLES:
            if cases & set(silver.cases):
                own = event_rows(bronze, "value") if silver.name in VENUE_COLUMNS else events
                missing += _missing_in_silver(spark, lake, silver, own, found, place, is_there=silver in present)
    ends.unpersist()
    found.unpersist()
    return Verification(sessions, missing[:MAX_RANGES], bool(present))


def _only(rows: DataFrame, place: tuple[str, str] | None) -> DataFrame:
    """The rows of an exchange and symbol, where one is asked for."""
    return rows if place is None else rows.where((rows["exchange"] == place[0]) & (rows["symbol"] == place[1]))


def ledgers_of(bronze: DataFrame) -> DataFrame:
    """The ledger of each session on each bus: of several one that is complete, else the one that has most, else the last.

    A machine that died and came back may have sent a second one, which knows less.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    records = bronze.where(F.col("payload_case") == _SESSION_END).select("bus", "position", "value")
    decoded = with_decoded(records, partial(decode_payloads, CONTROL_EVENTS.name), CONTROL_EVENTS.ddl).where(f"{REASON} IS NULL")
    best = Window.partitionBy("bus", "ended_session").orderBy(
        F.desc("complete"), F.desc("published"), F.desc("ended_ts"), "position"
    )
    counted = decoded.withColumn("published", F.expr(_PUBLISHED))
    ledgers = counted.withColumn("_copy", F.row_number().over(best)).where("_copy = 1 AND ended_session IS NOT NULL")
    return ledgers.select(
        "bus", F.col("ended_session").alias("session"), "complete", "reason", "started_ts", "ended_ts", "entries"
    )


def event_rows(bronze: DataFrame, *others: str) -> DataFrame:
    """What belongs to a series: all but ledgers, and what producers of the schema's first version sent."""
    numbered = bronze.where(f"payload_case <> '{_SESSION_END}' AND session IS NOT NULL AND sequence IS NOT NULL")
    return numbered.selectExpr(
        "bus",
        "session",
        "coalesce(exchange, '') AS exchange",
        "coalesce(symbol, '') AS symbol",
        "payload_case",
        "sequence",
        "event_id",
        "date",
        "destination",
        "position",
        *others,
    )


def summed(events: DataFrame, *by: str) -> DataFrame:
    """Count, first and last sequence, and the sums of both halves of the ids."""
    from pyspark.sql import functions as F  # noqa: N812

    half = "sum(CAST(conv(hex(substring(event_id, {}, 8)), 16, 10) AS DECIMAL(20, 0)))"
    return events.groupBy(*by).agg(
        F.count(F.lit(1)).alias("events"),
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.expr(half.format(1)).alias("high"),
        F.expr(half.format(9)).alias("low"),
    )


def _has_digest(high: str, low: str, digest_high: str, digest_low: str) -> Column:
    """Whether two pairs of sums are the same number of 128 bits."""
    from pyspark.sql import functions as F  # noqa: N812

    def carried(high: str, low: str) -> str:
        return f"pmod({high} + CAST(floor({low} / {_HALF}) AS DECIMAL(20, 0)), {_HALF})"

    same_low = f"pmod({low}, {_HALF}) = pmod({digest_low}, {_HALF})"
    return F.expr(f"{same_low} AND {carried(high, low)} = {carried(digest_high, digest_low)}")


def _read_sessions(ends: DataFrame, found: DataFrame) -> list[SessionState]:
    from pyspark.sql import functions as F  # noqa: N812

    seen = found.groupBy("bus", "session").agg(F.sum("events").alias("events"))
    known = seen.join(ends, ["bus", "session"], "full_outer").withColumn("published", F.expr(_PUBLISHED))
    return [
        SessionState(
            row["session"],
            row["bus"],
            "open" if row["complete"] is None else "complete" if row["complete"] else "incomplete",
            row["reason"],
            row["started_ts"],
            row["ended_ts"],
            row["published"],
        )
        for row in known.orderBy("started_ts", "session", "bus").collect()
    ]


def _missing_in_bronze(ends: DataFrame, events: DataFrame, found: DataFrame) -> list[Missing]:
    promised = ends.selectExpr("bus", "session", "explode(entries) AS entry").selectExpr(
        "bus",
        "session",
        "coalesce(entry.exchange, '') AS exchange",
        "coalesce(entry.symbol, '') AS symbol",
        "entry.payload_case AS payload_case",
        "entry.count AS promised",
        "entry.first_sequence AS promised_first",
        "entry.last_sequence AS promised_last",
        "CAST(conv(hex(substring(entry.digest, 1, 8)), 16, 10) AS DECIMAL(38, 0)) AS digest_high",
        "CAST(conv(hex(substring(entry.digest, 9, 8)), 16, 10) AS DECIMAL(38, 0)) AS digest_low",
    )
    suspects = _differing(promised, found).select(*SERIES).persist()
    if suspects.isEmpty():
        # Kept, it would be the answer to the next question too, whatever the lake has by then.
        suspects.unpersist()
        return []
    # Now with records that came twice counted once.
    rows = events.join(suspects, [*SERIES], "left_semi").dropDuplicates([*SERIES, "event_id"]).persist()
    lacking = _differing(promised.join(suspects, [*SERIES], "left_semi"), summed(rows, *SERIES)).persist()
    missing = _holes(rows, lacking)
    listed: dict[tuple[str, ...], int] = {}
    for hole in missing:
        series = (hole.bus, hole.session, hole.exchange, hole.symbol, hole.payload_case)
        listed[series] = listed.get(series, 0) + hole.events
    for row in lacking.where("promised >= events OR events IS NULL").collect():
        series = tuple(row[name] for name in SERIES)
        rest = row["promised"] - (row["events"] or 0) - listed.get(series, 0)
        if rest > 0:
            missing.append(Missing(EVENTS.name, *series, None, None, rest, "parts of books are not there"))
        elif series not in listed:
            missing.append(Missing(EVENTS.name, *series, None, None, 0, "these are not the events that were published"))
    for frame in (lacking, rows, suspects):
        frame.unpersist()
    return missing


def _differing(promised: DataFrame, found: DataFrame) -> DataFrame:
    """Series that are not what was promised; those of which nothing was promised must be dense from 0."""
    from pyspark.sql import functions as F  # noqa: N812

    both = promised.join(found, [*SERIES], "full_outer")
    agrees = _has_digest("high", "low", "digest_high", "digest_low") & F.expr("events = promised")
    dense = F.expr("first = 0 AND events = last + 1")
    is_whole = F.when(F.col("promised").isNull(), dense).otherwise(F.coalesce(agrees, F.lit(False)))
    return both.where(~is_whole)


def _holes(rows: DataFrame, lacking: DataFrame) -> list[Missing]:
    """Ranges of sequences that are not there, between the first and the last one that should be."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    # A crashed publisher's ledger may lack its last events, so what was seen counts too.
    ends = lacking.selectExpr(
        *SERIES,
        "explode(array(coalesce(promised_first, 0) - 1, greatest(coalesce(promised_last, last), last) + 1)) AS sequence",
    )
    sequences = rows.join(lacking, [*SERIES], "left_semi").select(*SERIES, "sequence").union(ends).distinct()
    before = F.lag("sequence").over(Window.partitionBy(*SERIES).orderBy("sequence"))
    holes = sequences.withColumn("before", before).where("sequence - before > 1")
    ranges = holes.selectExpr(*SERIES, "before + 1 AS first", "sequence - 1 AS last", "sequence - before - 1 AS events")
    return _to_missing(ranges.withColumn("reason", F.lit("not there")), EVENTS.name)


def _missing_in_silver(
    spark: SparkSession,
    lake: Lake,
    silver: SilverTable,
    events: DataFrame,
    found: DataFrame,
    place: tuple[str, str] | None,
    *,
    is_there: bool,
) -> list[Missing]:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    by = ("session", "exchange", "symbol")
    own = F.col("payload_case").isin(*silver.cases)
    ours = found.where(own).groupBy(*by).agg(*(F.sum(name).alias(f"our_{name}") for name in ("events", "high", "low")))
    candidates = events.where(own)
    if is_there:
        table = _only(lake.read(spark, silver.table), place)
        if silver is CONTROL_EVENTS:
            table = table.where(F.col("kind") != _SESSION_END)
        if silver.name in SPLIT and check_table(lake, BOOK_PARTS):
            parts = _only(lake.read(spark, BOOK_PARTS), place).where(F.col("book_table") == silver.name)
            table = table.select(*_OF_SERIES).unionByName(parts.select(*_OF_SERIES))
        named = table.selectExpr(
            "session", "coalesce(exchange, '') AS exchange", "coalesce(symbol, '') AS symbol", "sequence", "event_id", "date"
        )
        agrees = _has_digest("our_high", "our_low", "high", "low") & F.expr("our_events = events")
        both = ours.join(summed(named, *by), [*by], "left")
        suspects = both.where(~F.coalesce(agrees, F.lit(False))).select(*by).persist()
        if suspects.isEmpty():
            suspects.unpersist()
            return []
        candidates = candidates.join(suspects, [*by], "left_semi").persist()
        dates = [row["date"] for row in candidates.select("date").distinct().collect()]
        # Equal ids have equal local times, and so equal dates.
        candidates = candidates.join(named.where(F.col("date").isin(*dates)).select("event_id"), "event_id", "left_anti")
        if silver.name in VENUE_COLUMNS:
            candidates = _without_known_executions(candidates, table, silver, dates)
    refused = _read_refused(spark, lake, silver)
    lost = candidates.join(refused, ["bus", "destination", "position"], "left")
    lost = lost.groupBy(*SERIES, "sequence").agg(
        F.count_distinct("event_id").alias("events"), F.max("reason").alias("refused_because")
    )
    lost = lost.withColumn("reason", F.expr(f"coalesce('in quarantine: ' || refused_because, '{MISSED_BY_SILVER}')"))
    # Consecutive sequences with the same reason have the same distance to their rank.
    island = F.col("sequence") - F.row_number().over(Window.partitionBy(*SERIES, "reason").orderBy("sequence"))
    ranges = (
        lost.withColumn("island", island)
        .groupBy(*SERIES, "reason", "island")
        .agg(F.min("sequence").alias("first"), F.max("sequence").alias("last"), F.sum("events").alias("events"))
    )
    return _to_missing(ranges, silver.table.name)


def _without_known_executions(events: DataFrame, table: DataFrame, silver: SilverTable, dates: Sequence[date]) -> DataFrame:
    """Without the events whose execution silver has of another recorder (`silver.venue_identity`)."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    keys = VENUE_COLUMNS[silver.name]
    near = {day + timedelta(days=step) for day in dates for step in (-1, 0, 1)}
    known = table.where(F.col("date").isin(*near)).withColumn("symbol", F.expr("coalesce(symbol, '')"))
    there = known.groupBy("exchange", *keys).agg(F.count(F.lit(1)).alias("there"))
    brought = known.groupBy("exchange", *keys, "session").agg(F.count(F.lit(1)).alias("brought"))
    decoded = with_decoded(events, partial(decode_payloads, silver.name), silver.ddl)
    window = Window.partitionBy("exchange", *keys, "session")
    lacking = decoded.withColumn("lacking", F.size(F.collect_set("event_id").over(window))).alias("lacking")

    def same(other: str, *columns: str) -> Column:
        equal = [F.col(f"lacking.{name}").eqNullSafe(F.col(f"{other}.{name}")) for name in columns]
        return reduce(lambda one, more: one & more, equal)

    both = lacking.join(there.alias("there"), same("there", "exchange", *keys), "left").join(
        brought.alias("brought"), same("brought", "exchange", *keys, "session"), "left"
    )
    # With an id one is enough; without, as many as the session has.
    is_known = F.expr(
        f"lacking.event_ts IS NOT NULL AND there.there > 0 AND (lacking.{keys[2]} IS NOT NULL"
        " OR lacking.lacking + coalesce(brought.brought, 0) <= there.there)"
    )
    return both.where(~F.coalesce(is_known, F.lit(False))).select("lacking.*").select(*events.columns)


def _read_refused(spark: SparkSession, lake: Lake, silver: SilverTable) -> DataFrame:
    """Where the records that did not fit the table lie, and why they did not."""
    columns = ("bus", "destination", "position", "reason")
    if not check_table(lake, QUARANTINE):
        return spark.createDataFrame([], ", ".join(f"{name} STRING" for name in columns))
    quarantine = lake.read(spark, QUARANTINE)
    return quarantine.where(quarantine["stage"] == silver.table.name).select(*columns)


def _to_missing(ranges: DataFrame, stage: str) -> list[Missing]:
    rows = ranges.orderBy(*SERIES, "first").limit(MAX_RANGES).collect()
    return [
        Missing(
            stage=stage,
            **{name: row[name] for name in SERIES},
            first_sequence=row["first"],
            last_sequence=row["last"],
            events=row["events"],
            reason=row["reason"],
        )
        for row in rows
    ]


def write_outcome(outcome: Verification, form: str, out: TextIO) -> None:
    """The outcome for people or for programs."""
    if form == "json":
        both = {name: [to_plain_fields(item) for item in getattr(outcome, name)] for name in ("sessions", "missing")}
        out.write(json.dumps({"whole": outcome.is_whole, **both}, ensure_ascii=False, indent=1) + "\n")
        return
    states = [session.state for session in outcome.sessions]
    unfinished = [session for session in outcome.sessions if session.state != "complete"]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("complete", "incomplete", "open") if state in states)
    out.write(f"{len(states)} session{'s' * (len(states) != 1)}: {counts}\n")
    if unfinished:
        out.write("Not complete: an open session is still running, or its ledger has not come.\n")
        _write_rows(unfinished, out)
    if not outcome.has_silver:
        out.write("There is no silver table yet: only bronze was looked at.\n")
    if outcome.is_whole:
        out.write("Nothing is missing.\n")
        return
    out.write(f"{sum(item.events for item in outcome.missing):,} events are missing:\n")
    _write_rows(outcome.missing, out)


def _write_rows(items: Sequence[SessionState] | Sequence[Missing], out: TextIO) -> None:
    names = list(asdict(items[0]))
    write_table(names, [list(asdict(item).values()) for item in items], out)


def to_plain_fields(item: SessionState | Missing) -> dict[str, Any]:
    """Its fields as JSON knows them."""
    return {name: to_plain(value) for name, value in asdict(item).items()}
