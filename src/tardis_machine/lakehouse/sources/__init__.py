"""What the lake reads: one module for each bus, loaded when it is asked for.

A module has

    OPTIONS: tuple[Option, ...]
        those of its options that its bus does not already have
    identity(settings) -> str
        what is read, without secrets: the same for the same source, another for any other; a checkpoint belongs to it
    read_stream(spark, settings, max_batch_bytes) -> DataFrame
        an unbounded DataFrame with the columns of `COLUMNS`, in that order

Obligations: a batch, once planned, has the same rows whenever it is read again, also by another process that has nothing but the
checkpoint; `position` tells a record apart from every other of the same bus and destination; data that was there and is gone
before it was read is an error, never silence.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["COLUMNS", "SOURCES", "Source", "load_source"]

COLUMNS = ("key", "value", "headers", "position", "broker_timestamp", "destination")
"""Text, bytes, a map of text, text, an instant, text."""

SOURCES = {"files": "tardis_machine.lakehouse.sources.files"}
"""Name to module; a source is added with one line here."""


class Source(Protocol):
    """A module of this package."""

    def identity(self, settings: Any) -> str:
        """What is read."""

    def read_stream(self, spark: SparkSession, settings: Any, max_batch_bytes: int) -> DataFrame:
        """Its records."""


def load_source(name: str) -> Source:
    """The module of a source."""
    if name not in SOURCES:
        raise LakeError(f"--from: there is no source {name!r}, only {', '.join(SOURCES)}")
    return import_module(SOURCES[name])
