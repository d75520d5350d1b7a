"""What the lake reads: one module for each bus, imported when it is asked for. `contract` says what a source is.

Invariant: a module has `create_source(settings) -> Source`, and reads settings nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from ...errors import LakeError
from .contract import FindLost, Source, SourceReceiver, SourceStream, ToRecords

if TYPE_CHECKING:
    from ...settings import Settings

__all__ = ["SOURCES", "FindLost", "Source", "SourceReceiver", "SourceStream", "ToRecords", "create_source"]

SOURCES: Mapping[str, str] = {name: f"{__name__}.{name}" for name in ("files", "kafka", "redis", "nats", "kinesis", "sqs")}
"""Name to module; a source is added with one word here."""


def create_source(name: str, settings: Settings) -> Source:
    """The source of this name, as the settings have it; SettingsError where they lack what it needs."""
    if name not in SOURCES:
        raise LakeError(f"there is no source {name!r}; choose one of {', '.join(SOURCES)} with --from")
    source: Source = import_module(SOURCES[name]).create_source(settings)
    return source
