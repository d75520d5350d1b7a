"""History straight to bronze, without a bus: executors fetch, map and encode, each a symbol's day at a time.

A unit is one exchange, symbol and day (the part of it that is asked for). It is replayed as the server would replay it, in a session of
its own whose name says what it is; the session's ledger is its last record, written in the same commit as its events. So a
unit is done when its ledger is in bronze, a job that was stopped goes on with the others, and `lake verify` checks backfills like
anything else. Rows have the bus `backfill`, and the origin `replay`: they are the events that publishing the same replay would have
brought, with the same ids, so silver takes neither twice.

Mappers and what is computed begin anew with each unit, as recordings do with each day.

Invariant: a unit is in bronze whole, once, or not at all.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from ..bronze.bundle import Bundle
from ..bronze.encoding import BronzeEncoder
from ..errors import LakeError, OptionsError, TardisMachineError
from ..eventbus.ledger import Ledger, to_session_end
from ..history.client import HistoryClient
from ..messages import to_timestamp
from ..pipeline.fetching import fetch_lines
from ..pipeline.replay import NormalizedReplay
from ..pipeline.request import NormalizedRequest, parse_normalized_request
from ..telemetry import get_logger
from .appending import Appender
from .backfill_progress import BackfillProgress, BackfillReporter
from .gathering import Gathered
from .gold import parse_products
from .gold.notional import SOURCE
from .instruments import fetch_instruments, keep_instruments
from .lake import Lake, prepare_table
from .spark_errors import sentence
from .tables import EVENTS, Table
from .tasks import cores, each_item, tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..settings import Settings
    from .streams import Counts

__all__ = ["BUS", "Backfill", "Unit", "fetch_unit", "plan_units", "split_days", "without_collector"]

_log = get_logger("lakehouse.backfill")

BUS = "backfill"
DAY_US = 86_400_000_000
UNITS_PER_CORE = 2
"""In one commit: few enough that a stopped job loses little."""
COMMITS_AT_ONCE = 2
"""That are worked for: while the longest unit of one ends, the other cores go on with those of the next."""

# Of what is handed on at once: enough that its costs vanish, or as much as may be held.
_ROWS_IN_BATCH = 40_000
_BYTES_IN_BATCH = 64 * 1024**2


class Unit(msgspec.Struct, frozen=True):
    """What one task brings."""

    session: str
    request: NormalizedRequest


def plan_units(requests: Iterable[NormalizedRequest]) -> list[Unit]:
    """The units of requests, by day and then by symbol; the same request gives the same units."""
    units = []
    for request in requests:
        if not request.symbols:
            raise OptionsError("a backfill needs at least one symbol; name some with --symbols", "symbols")
        for start_us, end_us in split_days(request.from_us, request.to_us):
            # One that is named twice is a unit once.
            for symbol in dict.fromkeys(request.symbols):
                part = msgspec.structs.replace(request, from_us=start_us, to_us=end_us, symbols=[symbol])
                asked = "+".join(sorted(part.data_types))
                span = f"{to_timestamp(start_us)}/{to_timestamp(end_us)}"
                units.append(Unit(f"{BUS}|{part.exchange}|{symbol}|{asked}|{span}", part))
    return units


def split_days(from_us: int, to_us: int) -> Iterator[tuple[int, int]]:
    """A span, cut at midnight: recordings begin anew with each day, and so do mappers and what is computed."""
    while from_us < to_us:
        end_us = min(from_us - from_us % DAY_US + DAY_US, to_us)
        yield from_us, end_us
        from_us = end_us


@dataclass(frozen=True)
class Backfill:
    """Requests, and the lake that they go to."""

    spark: SparkSession
    lake: Lake
    requests: Sequence[NormalizedRequest]
    api_url: str
    api_key: str | None = field(repr=False)
    cache_dir: str | None
    """On each executor; None: the default of the machine."""

    def run(
        self, report: Callable[[BackfillProgress], None] | None = None, is_stopped: Callable[[], bool] = lambda: False
    ) -> BackfillProgress:
        """Brings what is not there yet; stops between two commits when it is told to."""
        units = plan_units(self.requests)
        is_new = prepare_table(self.lake, EVENTS)
        brought = set() if is_new else self._brought()
        left = [unit for unit in units if unit.session not in brought]
        progress = BackfillProgress(len(units), len(units) - len(left), len(units) - len(left))
        size = cores(self.spark) * UNITS_PER_CORE
        reporter = BackfillReporter(self.spark, progress, report)
        has_failed = threading.Event()

        def bring(wave: Sequence[Unit]) -> None:
            if has_failed.is_set() or is_stopped():
                return
            try:
                reporter.add(len(wave), self._bring(wave))
            except BaseException:
                has_failed.set()
                raise

        # What is under way when one fails is still brought.
        with reporter, ThreadPoolExecutor(COMMITS_AT_ONCE, "backfill") as pool:
            waves = [pool.submit(bring, left[start : start + size]) for start in range(0, len(left), size)]
        for wave in waves:
            wave.result()
        return progress

    def _brought(self) -> set[str]:
        """Sessions of units whose ledger is in bronze."""
        ends = self.lake.read(self.spark, EVENTS).where(f"bus = '{BUS}' AND payload_case = 'session_end'")
        return {row["session"] for row in ends.select("session").distinct().collect()}

    def _bring(self, units: Sequence[Unit]) -> int:
        """Fetches units and appends their events, in one commit; how many rows."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        fetch = partial(fetch_unit, api_url=self.api_url, api_key=self.api_key, cache_dir=self.cache_dir)
        to_rows = partial(each_item, units, fetch)
        try:
            appended = Appender(self.lake).append(tasks(self.spark, units), to_rows, [EVENTS])
        except (PySparkException, Py4JJavaError) as error:
            raise LakeError(f"the backfill stopped: {sentence(error)}") from error
        return appended[EVENTS.name].rows


def fetch_unit(unit: Unit, *, api_url: str, api_key: str | None, cache_dir: str | None) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """What an executor does with a unit."""
    encoder = BronzeEncoder(session_id=unit.session, origin="replay", meta={"transport": BUS})
    ledger = Ledger(Path())
    ledger.start(unit.session, BUS, "replay", {}, _now_us())
    position = 0
    with asyncio.Runner() as runner, without_collector():
        # Not the runner's own `run`: for its signal handler it prints what the call before it returned.
        wait = runner.get_loop().run_until_complete
        client = HistoryClient(api_url, api_key, cache_dir)
        stream = _gather(unit.request, client, encoder, ledger)
        try:
            while (gathered := wait(anext(stream, None))) is not None:
                yield EVENTS, gathered.to_batch(BUS, position, _now_us())
                position += gathered.rows
        except TardisMachineError as error:
            # Spark shows the last line of what its workers raise.
            raise LakeError(f"{unit.session}: {error}") from error
        finally:
            wait(stream.aclose())
            wait(client.aclose())
    session = ledger.end(unit.session, complete=True, reason="", now_us=_now_us())
    assert session is not None
    end = Gathered()
    end.add(Bundle.of(encoder.encode_session_end(to_session_end(session))))
    yield EVENTS, end.to_batch(BUS, position, _now_us())


@contextmanager
def without_collector() -> Iterator[None]:
    """While messages are made by the million."""
    # Messages live for microseconds and form no cycles; what does is collected after a unit.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _gather(
    request: NormalizedRequest, client: HistoryClient, encoder: BronzeEncoder, ledger: Ledger
) -> AsyncGenerator[Gathered, None]:
    # Disconnects are always published, asked for or not.
    replay = NormalizedReplay(request, keep_disconnects=True)
    gathered = Gathered()
    async with aclosing(fetch_lines(client, request, replay.periods())) as source:
        async for period, lines in source:
            bundle = encoder.encode(replay.feed(period, lines))
            ledger.add(bundle.tallies, _now_us())
            gathered.add(bundle)
            if gathered.rows >= _ROWS_IN_BATCH or gathered.size_bytes >= _BYTES_IN_BATCH:
                yield gathered
                gathered = Gathered()
    if gathered.rows:
        yield gathered


def _now_us() -> int:
    return time.time_ns() // 1000


def run(settings: Settings) -> int:
    """`lake backfill`: history to bronze, then silver and gold as far as is asked."""
    from .ingest import refine
    from .jobs import open_lake, open_writing_session, stop_signal
    from .metrics import served_metrics
    from .progress import ProgressLine, StatusLine

    request = to_request(settings)
    lake = open_lake(settings)
    with stop_signal() as stop, served_metrics(settings.metrics_port, settings.metrics_host) as metrics:
        spark = open_writing_session(settings, lake)
        cache_dir = None if settings.source("cache_dir") == "default" else str(settings.cache_dir)
        bar, line = StatusLine(), ProgressLine(is_remote=settings.remote is not None)
        job = Backfill(spark, lake, [request], settings.api_url, settings.api_key, cache_dir)

        def report_backfill(progress: BackfillProgress) -> None:
            bar.show(lambda: progress.text)
            metrics.backfilled(progress.rows)

        def report(counts: list[Counts]) -> None:
            line(counts)
            metrics(counts)

        bar.end(job.run(report_backfill, stop.is_set).text)
        if settings.until == "gold" and SOURCE in parse_products(settings.gold).sources:
            _keep_instruments(lake, settings)
        if settings.until != "bronze" and not stop.is_set():
            limit = settings.lake_batch_bytes
            line.end(
                refine(spark, lake, until=settings.until, gold=settings.gold, max_batch_bytes=limit, report=report, stop=stop)
            )
    return 0


def _keep_instruments(lake: Lake, settings: Settings) -> None:
    """What is backfilled is worth what the API says; where it says nothing, gold says so."""
    try:
        rows = asyncio.run(fetch_instruments([settings.exchange], settings.api_url, settings.api_key, settings.cache_dir))
    except LakeError as error:
        _log.warning("the instruments were not fetched, so notional is null where the lake has none", error=str(error))
    else:
        keep_instruments(lake, rows, datetime.now(UTC))


def to_request(settings: Settings) -> NormalizedRequest:
    """What the flags ask for; raises OptionsError that names the flag."""
    fields = {"exchange": "exchange", "symbols": "symbols", "from": "from", "to": "to", "dataTypes": "data-types"}
    options = {
        "exchange": settings.exchange,
        "symbols": list(settings.symbols),
        "from": settings.from_,
        "to": settings.to,
        "dataTypes": list(settings.data_types),
    }
    try:
        return parse_normalized_request(options)
    except OptionsError as error:
        name = (error.field or "").partition("[")[0]
        flag = f"--{fields[name]}" if name in fields else name
        raise OptionsError(f"{flag}{str(error).removeprefix(name)}", error.field) from None
