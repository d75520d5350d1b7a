"""The file bus alone: one batch after another, cut already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tardis_machine.eventbus.buses.file import FileBus
from tardis_machine.eventbus.contract import Record

BATCH_RECORDS = 50_000
EVENTS = 600_000
TARGETS = {"": 300_000}


async def send_ready(keywords: Mapping[str, Any], records: Sequence[Record], begin: Callable[[], None]) -> None:
    """Returns when all files are in place."""
    bus = FileBus(keywords["dir"])
    await bus.connect()
    begin()
    for start in range(0, len(records), BATCH_RECORDS):
        await bus.send(records[start : start + BATCH_RECORDS])
