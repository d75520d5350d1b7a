"""What must be as it was: open files and sockets, tasks, and a log without surprises.

Invariant: waits for what may take a moment to be freed, and no longer.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

FREED_WITHIN_S = 2.0
KEPT_ALIVE = ("socket", "<coroutine object RequestHandler.start")
"""HTTP connections that stay open for the next request."""


def open_files() -> list[str]:
    """What this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()).split(":")[0])
        except FileNotFoundError:
            continue  # the one that listed the folder
    return sorted(found)


def tasks() -> list[str]:
    """What runs on this loop, without who asks."""
    return sorted(repr(task.get_coro()).split(" at 0x")[0] for task in asyncio.all_tasks() if task is not asyncio.current_task())


@asynccontextmanager
async def nothing_leaks(*but: str) -> AsyncIterator[None]:
    """Fails when the block leaves a file, a socket or a task behind, `but` for those kinds that may stay."""
    gc.collect()
    before = Counter([*open_files(), *tasks()])
    yield
    deadline = time.monotonic() + FREED_WITHIN_S
    while leaked := Counter(kind for kind in [*open_files(), *tasks()] if kind not in but) - before:
        assert time.monotonic() < deadline, leaked
        await asyncio.sleep(0.05)
        gc.collect()


def assert_no_surprise(caplog: pytest.LogCaptureFixture) -> None:
    """No traceback, and nothing that asyncio complains of."""
    surprises = [
        (record.name, record.getMessage(), record.exc_info)
        for record in caplog.records
        if record.exc_info
        or "Traceback" in record.getMessage()
        or (record.name == "asyncio" and record.levelno >= logging.WARNING)
        or getattr(record, "fields", {}).get("traceback")
    ]
    assert not surprises, surprises
