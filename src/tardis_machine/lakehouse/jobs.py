"""The lake commands: settings in, exit code out. What they do is in modules of its own, which take plain arguments.

Invariant: SIGTERM and SIGINT let the batch at hand end, and the exit code is 0.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .lake import Lake
from .session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..settings import Settings

__all__ = ["ingest"]


def ingest(settings: Settings) -> int:
    """`lake ingest`: a bus to the lake, until it is told to stop or, with `once`, until it has read what is there."""
    from .ingest import Ingest
    from .progress import ProgressLine
    from .sources import create_source

    source = create_source(settings.from_, settings)
    lake = open_lake(settings)
    with stop_signal() as stop:
        job = Ingest(
            open_session(settings, long_running=True),
            lake,
            source,
            until=settings.until,
            max_batch_bytes=settings.lake_batch_bytes,
            gold=settings.gold,
        )
        progress = ProgressLine(is_remote=settings.remote is not None)
        counts = job.run_once(progress, stop) if settings.once else job.run(settings.trigger, stop, progress)
        progress.end(counts)
    return 0


def open_lake(settings: Settings) -> Lake:
    """The lake that is to be filled; what can't be done is found out before Spark takes its seconds to start."""
    from .gold import parse_products

    if settings.until == "gold":
        parse_products(settings.gold)
    lake = Lake.at(settings.lake)
    lake.create()
    return lake


def open_session(settings: Settings, *, long_running: bool = False) -> SparkSession:
    """The session that the settings ask for."""
    return start_session(
        master=settings.master,
        remote=settings.remote,
        conf=settings.spark_conf,
        jars_dir=settings.spark_jars,
        long_running=long_running,
    )


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
