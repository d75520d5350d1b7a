"""`lake verify --repair`: what is missing is brought, and nothing else.

- bronze: the holes that `verify` found, from the dead letters of their bus, else replayed from own recordings or the history API
  (`refetching`). They are landed under the bus and the session that lack them, at the destination `repair`.
- silver: what bronze has and silver has not is taken through silver again, whose files say which events are new.

Later layers then follow as they do after any job.

Invariant: an event that is landed is one that was missing; what can't be found is refused with the reason, and stays missing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..bronze.event import DIGEST_MASK, digest_of
from ..errors import TardisMachineError
from ..eventbus.dead_letters import DeadLetter
from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import ORIGIN_REALTIME, NormalizedEvent
from ..history.client import HistoryClient
from ..messages import to_timestamp
from ..pipeline.recorded import RecordedHistory
from ..pipeline.request import NormalizedRequest, parse_normalized_request
from .appending import Appender
from .backfill import BUS as BACKFILL
from .decoding import unframed
from .envelope import decode_envelopes
from .lake import Lake
from .refetching import BY_NAME, Found, Hole, Key, Lacking, Promise, Unfit, find_refetched, read_letters
from .silver.writer import SilverWriter
from .streams import split_refused
from .tables import EVENTS, QUARANTINE, Table
from .verify import MISSED_BY_SILVER, SERIES, Missing, Verification, event_rows, ledgers_of, summed, verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..settings import Settings

__all__ = ["NotRepaired", "Repair", "Repaired", "repair"]

_DESTINATION = "repair"
_SAMPLED = 1_000
"""Events of a series that are looked at for the data types that were asked for."""
_DIRECT = ("trade", "book_change", "derivative_ticker", "liquidation", "option_summary", "book_ticker")
"""Payload cases that a request calls so."""


@dataclass(frozen=True)
class NotRepaired:
    """What stays missing, and why."""

    missing: Missing
    reason: str


@dataclass(frozen=True)
class Repaired:
    """What a repair did to bronze."""

    events: int
    from_letters: int
    """Of them."""
    refused: Sequence[NotRepaired]


@dataclass(frozen=True)
class Repair:
    """A lake, and where what it lacks may be found."""

    spark: SparkSession
    lake: Lake
    client: HistoryClient
    dead_letters: Path
    has_recordings: bool
    """The client knows of some."""

    def land_ends(self, outcome: Verification) -> int:
        """Lands the ends that are dead letters of sessions that have none: what these published is known then. How many."""
        unended = {(session.bus, session.session) for session in outcome.sessions if session.state == "open"}
        if not unended:
            return 0
        ends = {
            letter.event_id: (key, _found(letter))
            for key, letter in read_letters(self.dead_letters)
            if key[4] == "session_end" and key[:2] in unended
        }
        if ends:
            self._land([*ends.values()])
        return len(ends)

    def fill_bronze(self, outcome: Verification) -> Repaired:
        """Lands what bronze lacks."""
        missing = [item for item in outcome.missing if item.stage == EVENTS.name]
        numbered = [item for item in missing if item.first_sequence is not None]
        lacking = self._describe(numbered)
        landed = self._find_letters(lacking, [item for item in missing if item.first_sequence is None])
        from_letters, brought = len(landed), Counter(key for key, _ in landed)
        refused = [
            NotRepaired(item, _unknown(item))
            for item in missing
            if item.first_sequence is None and (not item.events or brought[_key(item)] < item.events)
        ]
        with asyncio.Runner() as runner:
            for item in lacking:
                try:
                    landed += [(item.key, event) for event in runner.run(self._refetch(item))]
                except TardisMachineError as error:
                    refused += [NotRepaired(one, str(error)) for one in numbered if _key(one) == item.key]
            runner.run(self.client.aclose())
        self._land(landed)
        return Repaired(len(landed), from_letters, refused)

    def _find_letters(self, lacking: Sequence[Lacking], without_numbers: Sequence[Missing]) -> list[tuple[Key, Found]]:
        """What is missing among the dead letters: events whose numbers are, and parts of books."""
        from pyspark.sql import functions as F  # noqa: N812

        wanted = {item.key: item for item in lacking}
        split = {_key(item) for item in without_numbers if item.events}
        landed: list[tuple[Key, Found]] = []
        parts: dict[bytes, tuple[Key, Found]] = {}
        for key, letter in read_letters(self.dead_letters):
            found = _found(letter)
            if key in wanted and wanted[key].lacks(letter.sequence):
                _take(wanted[key], found)
                landed.append((key, found))
            elif key in split:
                parts[found.event_id] = key, found
        if parts:
            # Parts of one book share their number: only the id says whether one is there.
            own = event_rows(self.lake.read(self.spark, EVENTS)).where(F.col("payload_case").isin(*{key[4] for key in split}))
            sought = self.spark.createDataFrame([(bytearray(event_id),) for event_id in parts], "event_id BINARY")
            for row in sought.join(own, "event_id", "left_semi").collect():
                del parts[bytes(row["event_id"])]
        return [*landed, *parts.values()]

    async def _refetch(self, item: Lacking) -> list[Found]:
        if not item.holes:
            return []
        if item.origin == "realtime" and not self.has_recordings:
            raise Unfit("the session was heard live, and only recordings have what it heard: name their folder with --record-dir")
        if item.payload_case == "error":
            raise Unfit("errors are what connections say of themselves, and no history has them")
        if not item.data_types:
            raise Unfit(f"which data types were asked for is not known of {item.payload_case}, so it can't be replayed")

        def request_of(start_us: int, end_us: int) -> NormalizedRequest:
            return parse_normalized_request(
                {
                    "exchange": item.exchange,
                    "symbols": list(item.symbols),
                    "from": to_timestamp(start_us),
                    "to": to_timestamp(end_us),
                    "dataTypes": list(item.data_types),
                }
            )

        return await find_refetched(item, self.client, request_of)

    def _describe(self, missing: Sequence[Missing]) -> list[Lacking]:
        """The series that have holes, and what bronze knows of them."""
        from pyspark.sql import functions as F  # noqa: N812

        found: dict[tuple[str, ...], Lacking] = {}
        for hole in missing:
            assert hole.first_sequence is not None
            assert hole.last_sequence is not None
            kept = found.setdefault(_key(hole), Lacking(*_key(hole), []))
            kept.holes.append(Hole(hole.first_sequence, hole.last_sequence))
        if not found:
            return []
        bronze = self.lake.read(self.spark, EVENTS)
        names = ", ".join(f"{name} STRING" for name in SERIES)
        series = F.broadcast(self.spark.createDataFrame([*found], names))
        beside = [
            (*key, sequence) for key, item in found.items() for hole in item.holes for sequence in (hole.first - 1, hole.last + 1)
        ]
        sought = F.broadcast(self.spark.createDataFrame(beside, f"{names}, sequence BIGINT"))
        own = event_rows(bronze, "local_ts").join(series, [*SERIES], "left_semi")
        near = own.join(sought, [*SERIES, "sequence"], "left_semi")
        for row in near.select(*SERIES, "sequence", "event_id", F.unix_micros("local_ts").alias("local_us")).collect():
            item = found[tuple(row[name] for name in SERIES)]
            item.neighbours[row["sequence"]] = bytes(row["event_id"]), row["local_us"]
        for row in summed(own.dropDuplicates([*SERIES, "event_id"]), *SERIES).collect():
            item = found[tuple(row[name] for name in SERIES)]
            digest = (int(row["high"]) << 64) + int(row["low"])
            item.there, item.last_there = (row["events"], digest & DIGEST_MASK), row["last"]
        self._read_sessions(bronze, found)
        for item in found.values():
            item.names = self._find_names(item, bronze)
        return [*found.values()]

    def _read_sessions(self, bronze: DataFrame, found: Mapping[tuple[str, ...], Lacking]) -> None:
        """What events and ledgers of their sessions say: origin, source and meta; when they began; what was promised."""
        from pyspark.sql import functions as F  # noqa: N812

        sessions = sorted({item.session for item in found.values()})
        own = bronze.where(F.col("session").isin(*sessions))
        told = own.groupBy("bus", "session").agg(
            F.first("value").alias("value"),
            F.expr("unix_micros(min(local_ts) FILTER (WHERE payload_case <> 'session_end'))").alias("began_us"),
        )
        sampled = {(row["bus"], row["session"]): row for row in told.collect()}
        promises: dict[tuple[str, ...], Promise] = {}
        ledgers = ledgers_of(bronze).where(F.col("session").isin(*sessions)).selectExpr("bus", "session", "inline(entries)")
        for row in ledgers.selectExpr(
            "*", "unix_micros(first_local_ts) AS first_us", "unix_micros(last_local_ts) AS last_us"
        ).collect():
            series = row["bus"], row["session"], row["exchange"] or "", row["symbol"] or "", row["payload_case"]
            of_ledger = (row["count"], row["first_sequence"], row["last_sequence"], row["first_us"], row["last_us"])
            promises[series] = Promise(*of_ledger, int.from_bytes(row["digest"]))
        for key, item in found.items():
            # A ledger may be the only thing that is there of a session, and have come in another one.
            told_of = sampled.get((item.bus, item.session))
            if told_of is not None:
                [sample] = _events([told_of["value"]])
                item.source, item.meta = sample.source, dict(sample.meta)
                item.origin = "realtime" if sample.origin == ORIGIN_REALTIME else "replay"
            item.promise = promises.get(key)
            beside = {other[3:] for other in promises if other[:3] == key[:3] and other[4] in _DIRECT and other[3]}
            # What is said of a whole exchange is in the lines of any symbol.
            item.symbols = [item.symbol] if item.symbol else sorted(symbol for symbol, _ in beside)[:1]
            if item.payload_case == "disconnect":
                item.names = sorted(case for symbol, case in beside if [symbol] == item.symbols)
            firsts = [promise.first_us for other, promise in promises.items() if other[:3] == key[:3]]
            began = [] if told_of is None or told_of["began_us"] is None else [told_of["began_us"]]
            item.started_us = min([*firsts, *began])

    def _find_names(self, item: Lacking, bronze: DataFrame) -> Sequence[str]:
        """The data types of a series whose payload case does not say."""
        if item.bus == BACKFILL:
            # backfill|exchange|symbol|data types|from/to
            return item.session.split("|")[3].split("+")
        if item.payload_case not in BY_NAME:
            return item.names
        own = bronze.where(
            (bronze["session"] == item.session)
            & (bronze["exchange"] == item.exchange)
            & (bronze["symbol"] == item.symbol)
            & (bronze["payload_case"] == item.payload_case)
        )
        events = _events([row["value"] for row in own.select("value").limit(_SAMPLED).collect()])
        payloads = [getattr(event, item.payload_case) for event in events]
        return sorted({payload.name for payload in payloads if "name" in payload.DESCRIPTOR.fields_by_name and payload.name})

    def _land(self, events: Sequence[tuple[Key, Found]]) -> None:
        appender = Appender(self.lake)
        files = appender.write_here(_to_rows, _batches(events), EVENTS, QUARANTINE)
        appender.commits.commit(EVENTS, [file for file in files if file.table == EVENTS.name])

    def fill_silver(self, outcome: Verification) -> int:
        """Takes through silver again what bronze has and silver has not; how many events were missing."""
        missing = [item for item in outcome.missing if item.stage != EVENTS.name and item.reason == MISSED_BY_SILVER]
        if not missing:
            return 0
        from pyspark.sql import functions as F  # noqa: N812

        rows = [(*_key(item), item.first_sequence, item.last_sequence) for item in missing]
        names = ", ".join(f"{name} STRING" for name in SERIES)
        ranges = F.broadcast(self.spark.createDataFrame(rows, f"{names}, first BIGINT, last BIGINT"))
        bronze = self.lake.read(self.spark, EVENTS).withColumn("file_path", F.input_file_name())
        same = [F.coalesce(bronze[name], F.lit("")) == ranges[name] for name in SERIES]
        lost = bronze.join(ranges, [*same, bronze["sequence"].between(ranges["first"], ranges["last"])], "left_semi")
        files = [row["file_path"] for row in lost.select("file_path").distinct().collect()]
        # A writer takes files whole, and so is told all that is in them.
        batch = bronze.where(F.col("file_path").isin(*files)).select("date", "exchange", "payload_case", "file_path")
        SilverWriter(self.lake, "repair", identity=None, may_repeat=False).write_missed(batch)
        return sum(item.events for item in missing)


def _events(values: Sequence[bytes]) -> list[NormalizedEvent]:
    return [
        NormalizedEvent.FromString(value.as_py()) for value in unframed(pa.array([bytes(value) for value in values], pa.binary()))
    ]


def _found(letter: DeadLetter) -> Found:
    return Found(letter.sequence, bytes.fromhex(letter.event_id), letter.value, letter.local_ts_us)


def _key(item: Missing) -> Key:
    return item.bus, item.session, item.exchange, item.symbol, item.payload_case


def _unknown(item: Missing) -> str:
    if item.events:
        return "the parts of a book are cut to the limits of its bus, and its dead letters have no more of them"
    return "other events than those that were published are there"


def _take(item: Lacking, event: Found) -> None:
    """A dead letter fills its place."""
    item.holes = [
        part
        for hole in item.holes
        for part in (
            [hole]
            if not hole.first <= event.sequence <= hole.last
            else [Hole(hole.first, event.sequence - 1), Hole(event.sequence + 1, hole.last)]
        )
        if part.first <= part.last
    ]
    item.neighbours[event.sequence] = event.event_id, event.local_us
    item.there = item.there[0] + 1, (item.there[1] + digest_of([event.event_id])) & DIGEST_MASK


def _batches(events: Sequence[tuple[Key, Found]]) -> Iterator[pa.RecordBatch]:
    if events:
        columns = {
            "bus": pa.array([key[0] for key, _ in events], pa.string()),
            "value": pa.array([event.value for _, event in events], pa.binary()),
        }
        yield from pa.table(columns).to_batches(20_000)


def _to_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Table, pa.RecordBatch]]:
    for records in batches:
        count = len(records)
        envelopes = decode_envelopes(records.column("value"))
        columns: dict[str, Any] = {name: records.column(name) for name in records.schema.names}
        columns |= {column.name: pc.struct_field(envelopes, place) for place, column in enumerate(envelopes.type)}
        now = pa.repeat(pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC")), count)
        of_event = [pc.fill_null(columns[name].cast(pa.string()), "") for name in ("exchange", "symbol", "payload_case")]
        key = pc.binary_join_element_wise(*of_event, "|")
        columns |= {
            "date": columns["local_ts"].cast(pa.date32()),
            "key": key,
            "headers": pa.nulls(count, pa.map_(pa.string(), pa.string())),
            "destination": pa.repeat(_DESTINATION, count),
            "position": pc.binary_join_element_wise(
                columns["session"].cast(pa.string()), key, columns["sequence"].cast(pa.string()), "|"
            ),
            "broker_timestamp": now,
        }
        yield from split_refused(EVENTS, columns)


def repair(spark: SparkSession, lake: Lake, outcome: Verification, settings: Settings) -> Verification:
    """Brings what is missing, and looks again; what can't be brought is said on standard error."""
    from .ingest import has_stream, refine

    recorded = None if settings.record_dir is None else RecordedHistory(settings.record_dir)
    find_recorded = None if recorded is None else recorded.find
    client = HistoryClient(settings.api_url, settings.api_key, settings.cache_dir, find_recorded=find_recorded)
    tool = Repair(spark, lake, client, settings.dead_letters, has_recordings=recorded is not None)
    ends = tool.land_ends(outcome)
    if ends:
        # They say what else was published.
        outcome = verify(spark, lake)
    elif outcome.is_whole:
        return outcome
    repaired = tool.fill_bronze(outcome)
    for refused in repaired.refused:
        item = refused.missing
        place = f"{item.exchange} {item.symbol} {item.payload_case} of session {item.session}, {item.bus}"
        numbers = "" if item.first_sequence is None else f", {item.first_sequence} to {item.last_sequence}"
        sys.stderr.write(f"not repaired: {place}{numbers}: {refused.reason}\n")
    again = 0
    if settings.until != "bronze" and outcome.has_silver:
        refine(spark, lake, until="silver", max_batch_bytes=settings.lake_batch_bytes)
        again = tool.fill_silver(verify(spark, lake))
        if settings.until == "gold" and has_stream(lake, settings.gold):
            refine(spark, lake, until="gold", gold=settings.gold, max_batch_bytes=settings.lake_batch_bytes)
        elif settings.until == "gold":
            sys.stderr.write(f"gold of {','.join(settings.gold)} was never made of this lake, and is left to 'lake ingest'\n")
    sys.stderr.write(
        f"{ends + repaired.events:,} events were brought to bronze, {ends + repaired.from_letters:,} of them dead letters;"
        f" {again:,} were taken through silver again\n"
    )
    return verify(spark, lake)
