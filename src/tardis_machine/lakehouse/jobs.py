"""The lake commands: settings in, exit code out. What they do is in modules of its own, which take plain arguments.

Invariant: SIGTERM and SIGINT let the batch at hand end, and the exit code is 0.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .lake import Lake
from .session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..settings import Settings
    from .streams import Counts

__all__ = ["ingest"]


def ingest(settings: Settings) -> int:
    """`lake ingest`: a bus to the lake, until it is told to stop or, with `once`, until it has read what is there."""
    from .ingest import Ingest
    from .metrics import served_metrics
    from .progress import ProgressLine
    from .sources import create_source

    source = create_source(settings.from_, settings)
    lake = open_lake(settings)
    with stop_signal() as stop, served_metrics(settings.metrics_port, settings.metrics_host) as metrics:
        job = Ingest(
            open_writing_session(settings, lake),
            lake,
            source,
            until=settings.until,
            max_batch_bytes=settings.lake_batch_bytes,
            gold=settings.gold,
            auto_optimize=not settings.once if settings.auto_optimize is None else settings.auto_optimize,
        )
        progress = ProgressLine(is_remote=settings.remote is not None)

        def report(counts: list[Counts]) -> None:
            progress(counts)
            metrics(counts)

        counts = job.run_once(report, stop) if settings.once else job.run(settings.trigger, stop, report)
        progress.end(counts)
    return 0


def open_lake(settings: Settings) -> Lake:
    """The lake that is to be filled; what can't be done is found out before Spark takes its seconds to start."""
    from .gold import parse_products

    if settings.until == "gold":
        parse_products(settings.gold)
    lake = Lake.at(settings.lake, settings.lake_option)
    lake.create()
    return lake


def open_session(
    settings: Settings, lake: Lake, *, long_running: bool = False, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that the settings ask for; `conf` where it is not only what they say."""
    return start_session(
        master=settings.master,
        remote=settings.remote,
        conf=settings.spark_conf if conf is None else conf,
        storage=lake.storage,
        jars_dir=settings.spark_jars,
        long_running=long_running,
    )


def open_writing_session(settings: Settings, lake: Lake) -> SparkSession:
    """The session of a job that goes on for long; LakeError where executors would write elsewhere than the driver looks."""
    from .probing import check_shared

    spark = open_session(settings, lake, long_running=True)
    if settings.remote is not None or not settings.master.startswith("local"):
        check_shared(spark, lake)
    return spark


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets; outside the main thread, which alone hears signals, nothing does."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
