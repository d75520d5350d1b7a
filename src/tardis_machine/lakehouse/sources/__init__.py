"""What the lake reads: one module for each bus, loaded when it is asked for.

A module has

    identity(settings) -> str
        what is read, without secrets: the same for the same source, another for any other; a checkpoint belongs to it
    read_stream(spark, settings, max_batch_bytes) -> Stream
        an unbounded DataFrame, and how workers make records of its rows (`records`)
    expected_rows(start, end) -> int | None     (where records may be gone before they are read)
        how many rows lie between two offsets of the checkpoint; None where some are gone and nobody knows how many
    count_left(settings, progress) -> {what: how many}     (where rows can't be counted like that)
        what the stream with this checkpoint has not read yet
    feed(settings, once) -> a context     (where something has to bring the records)
        runs beside the stream; what the context gives has `failure`, what ended it, and `left`, what it has not brought yet

Obligations: a batch, once planned, has the same rows whenever it is read again, also by another process that has nothing but the
checkpoint; `position` tells a record apart from every other of the same bus and destination; data that was there and is gone before
it was read is missing from the rows that are expected, and so is reported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...errors import LakeError

__all__ = ["SOURCES", "load_source"]

SOURCES = {name: f"{__name__}.{name}" for name in ("files", "kafka", "redis", "nats", "kinesis", "sqs")}
"""Name to module; a source is added with one word here."""


def load_source(name: str) -> Any:
    """The module of a source."""
    if name not in SOURCES:
        raise LakeError(f"--from: there is no source {name!r}, only {', '.join(SOURCES)}")
    return import_module(SOURCES[name])
