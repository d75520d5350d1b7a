"""Bus to bronze to silver to gold, once or for ever.

Each layer is a stream that reads the tables of the one before it. So silver is a function of bronze alone, and gold of silver: each
can be rebuilt, it does not care which bus or job brought the events, and each stream needs to be safe only for itself.
The price is a second read of the values.

Invariant: a stream that fails ends the job; what it was at is run again at the next start.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from ..settings.options.lake import DEFAULT_GOLD
from ..telemetry import get_logger
from .bronze import BronzeWriter
from .gold import Chosen, parse_products
from .gold.writer import GoldWriter, read_changes
from .lake import Lake, check_table, prepare_table
from .silver.writer import SilverWriter, read_events
from .sources import Source, SourceReceiver
from .streams import BatchWriter, Counts, progress_of, start_stream, stream_error
from .tables import EVENTS, QUARANTINE, all_tables
from .unread import count_rows
from .upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["DEFAULT_BATCH_BYTES", "LAYERS", "Ingest", "has_stream", "refine"]

DEFAULT_BATCH_BYTES = 256 * 1024**2
LAYERS = ("bronze", "silver", "gold")

Report = Callable[[list[Counts]], None]
"""Told now and then what each stream has written."""

CountLeft = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, int]]
"""What is left behind a batch, by what Spark tells of where its sources are."""


class PlannedStream(NamedTuple):
    """A stream that was not started yet."""

    name: str
    start: Callable[[float | None, Counts | None], tuple[StreamingQuery, BatchWriter]]
    """With a trigger or none, and with what it has counted before."""
    count_left: CountLeft


_log = get_logger("lakehouse.ingest")

_POLL_S = 0.2
_LOOK_S = 2.0
_LOOK_SHARE = 0.05
"""What is left is counted every so many seconds, but for no more than this share of the time."""
_STOP_S = 30.0
_STEP_S = 1.0
"""A clock that goes back by less is waited for."""


@dataclass(frozen=True)
class Ingest:
    """A source, a lake, and how far through its layers the events go."""

    spark: SparkSession
    lake: Lake
    source: Source
    until: str = "silver"
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    gold: Sequence[str] = DEFAULT_GOLD
    """The products that are kept, where it goes as far as gold."""
    auto_optimize: bool = False
    """Whether small files are joined between batches."""

    def __post_init__(self) -> None:
        """A product that there is none of is refused before anything is taken in."""
        if self.until == "gold":
            parse_products(self.gold)

    def run_once(self, report: Report | None = None, stop: threading.Event | None = None) -> list[Counts]:
        """Takes in what is there now, layer by layer, and ends."""
        return self._run(None, report, stop)

    def run(self, trigger_s: float, stop: threading.Event, report: Report | None = None) -> list[Counts]:
        """Takes in what comes, in a batch every `trigger_s`, until `stop` is set."""
        return self._run(trigger_s, report, stop)

    def _run(self, trigger_s: float | None, report: Report | None, stop: threading.Event | None) -> list[Counts]:
        for table in all_tables():
            check_table(self.lake, table)
        for table in (EVENTS, QUARANTINE):
            prepare_table(self.lake, table)
        with self.source.receive(self.spark, once=trigger_s is None) as receiver:
            return _run_streams(self._streams(), trigger_s, report, stop, receiver, auto_optimize=self.auto_optimize)

    def _streams(self) -> Iterable[PlannedStream]:
        source = self.source
        name = f"bronze-{source.name}-{xxh3_64_hexdigest(source.identity().encode())[:8]}"
        stream = source.read_stream(self.spark, self.max_batch_bytes)
        writer = partial(BronzeWriter, bus=source.name, source=stream)
        count_left = partial(source.count_left, self.lake.storage, progress_of(self.lake, name))
        yield PlannedStream(name, partial(start_stream, stream.rows, self.lake, name, writer), count_left)
        yield from _later_streams(self.spark, self.lake, self.until, self.gold, self.max_batch_bytes)


def refine(
    spark: SparkSession,
    lake: Lake,
    *,
    until: str,
    gold: Sequence[str] = DEFAULT_GOLD,
    max_batch_bytes: int = DEFAULT_BATCH_BYTES,
    report: Report | None = None,
    stop: threading.Event | None = None,
) -> list[Counts]:
    """Takes what is in bronze to the layers after it, whoever brought it, and ends."""
    return _run_streams(_later_streams(spark, lake, until, gold, max_batch_bytes), None, report, stop, None)


def _later_streams(
    spark: SparkSession, lake: Lake, until: str, gold: Sequence[str], max_batch_bytes: int
) -> Iterable[PlannedStream]:
    if until == "bronze":
        return
    chosen = parse_products(gold) if until == "gold" else None
    # Before silver runs: both make the tables that are missing.
    changes = None if chosen is None else read_changes(spark, lake, chosen, max_batch_bytes)
    events = read_events(spark, lake, max_batch_bytes)
    yield PlannedStream(
        "silver", partial(start_stream, events, lake, "silver", SilverWriter), partial(count_rows, "silver", lake.storage)
    )
    if changes is None or chosen is None:
        return
    name = _gold_stream(chosen)
    start = partial(start_stream, changes, lake, name, partial(GoldWriter, chosen=chosen))
    yield PlannedStream(name, start, partial(count_rows, "gold", lake.storage))


def _gold_stream(chosen: Chosen) -> str:
    # A product that is new begins with the first row: each choice has a checkpoint of its own.
    return f"gold-{xxh3_64_hexdigest(chosen.identity.encode())[:8]}"


def has_stream(lake: Lake, gold: Sequence[str]) -> bool:
    """Whether this choice of products is kept in a lake."""
    return bool(lake.storage.list_files(f"{progress_of(lake, _gold_stream(parse_products(gold)))}/offsets", "*"))


def _run_streams(
    streams: Iterable[PlannedStream],
    trigger_s: float | None,
    report: Report | None,
    stop: threading.Event | None,
    receiver: SourceReceiver | None,
    *,
    auto_optimize: bool = False,
) -> list[Counts]:
    """Runs streams beside each other, or without a trigger one after the other, each to its end."""
    running: list[RunningStream] = []
    stop = stop or threading.Event()
    try:
        for planned in streams:
            if stop.is_set():
                break
            running.append(_start(planned, trigger_s, auto_optimize=auto_optimize))
            if trigger_s is None:
                _wait(running, stop, report, receiver)
        if trigger_s is not None:
            while (back_s := _wait(running, stop, report, receiver, _WallClock())) and not stop.is_set():
                _log.warning(
                    "the clock was set back, and Spark would wait for as long: streams are started anew", by_s=round(back_s)
                )
                _stop(running)
                running = [
                    _start(stream.planned, trigger_s, stream.writer.counts, auto_optimize=auto_optimize) for stream in running
                ]
    finally:
        _stop(running)
    _look_ahead(running, receiver)
    return [stream.writer.counts for stream in running]


class _WallClock:
    """The time of day, by which Spark waits for the time of the next batch."""

    def __init__(self) -> None:
        self._ahead_s = self._look()

    @staticmethod
    def _look() -> float:
        """How far it is from the clock that only goes on."""
        return time.time() - time.monotonic()

    @property
    def back_s(self) -> float:
        """By how much it was set back; 0.0 for less than what is waited for."""
        back_s = self._ahead_s - self._look()
        return back_s if back_s > _STEP_S else 0.0


class RunningStream(NamedTuple):
    """A stream that was started."""

    planned: PlannedStream
    query: StreamingQuery
    writer: BatchWriter

    def look_ahead(self) -> Mapping[str, int]:
        """What is left behind the last batch."""
        try:
            progress = self.query.lastProgress
            return self.planned.count_left(json.loads(progress.json)["sources"]) if progress is not None else {}
        except Exception as error:
            # Logs and files may go while they are looked at. No job ends because its end is not known.
            _log.debug("what is left can't be counted", stream=self.planned.name, error=str(error))
            return {}


def _start(
    planned: PlannedStream, trigger_s: float | None, counts: Counts | None = None, *, auto_optimize: bool
) -> RunningStream:
    from pyspark.errors import PySparkException

    try:
        query, writer = planned.start(trigger_s, counts)
    except PySparkException as error:
        raise stream_error(planned.name, error) from error
    writer.upkeep = Upkeep(writer.appender) if auto_optimize else None
    return RunningStream(planned, query, writer)


def _wait(
    running: list[RunningStream],
    stop: threading.Event,
    report: Report | None,
    receiver: SourceReceiver | None,
    clock: _WallClock | None = None,
) -> float:
    """Until streams are to stop or have ended; or until the clock was set back, and then by how much."""
    look_at = time.monotonic() + _LOOK_S
    while not stop.wait(_POLL_S):
        if receiver is not None and receiver.failure is not None:
            raise receiver.failure
        for stream in running:
            failure = stream.query.exception()
            if failure is not None:
                # Spark wraps what its own caller raised into a page of text.
                raise stream_error(stream.planned.name, stream.writer.failure or failure) from failure
        if report is not None:
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + max(_look_ahead(running, receiver) / _LOOK_SHARE, _LOOK_S)
            report([stream.writer.counts for stream in running])
        if not any(stream.query.isActive for stream in running):
            break
        if clock is not None and clock.back_s:
            return clock.back_s
    return 0.0


def _look_ahead(running: list[RunningStream], receiver: SourceReceiver | None) -> float:
    """Counts what is left for each stream; how many seconds that took."""
    began = time.monotonic()
    for place, stream in enumerate(running):
        stream.writer.counts.left = {**(receiver.left if receiver is not None and place == 0 else {}), **stream.look_ahead()}
    return time.monotonic() - began


def _stop(running: list[RunningStream]) -> None:
    """Lets the batches at hand end, but not for ever: what is cut off is run again at the next start."""
    deadline = time.monotonic() + _STOP_S
    batches = [stream.writer.counts.batches for stream in running]
    for stream, before in zip(running, batches, strict=True):
        # Another batch may have begun right after that one; it is hardly under way.
        while stream.writer.counts.batches == before and stream.query.isActive and stream.query.status["isTriggerActive"]:
            if time.monotonic() >= deadline:
                _log.warning(
                    "a batch is cut off, and is run again at the next start", stream=stream.planned.name, waited_s=_STOP_S
                )
                break
            time.sleep(_POLL_S)
        # One that does not stop in time ends with the process; one that failed was reported.
        with suppress(Exception):
            stream.query.stop()
