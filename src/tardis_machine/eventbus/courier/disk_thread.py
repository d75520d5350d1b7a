"""The one thread of a bus that touches its disk.

Invariant: pieces of work run one after another, in the order they were given; the event loop never waits for the disk itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["DiskThread"]

T = TypeVar("T")


class DiskThread:
    """Runs what blocks on the disk: the work of spool, ledger and dead letters."""

    def __init__(self, bus: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{bus}-disk")

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of a piece of work."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    async def run_timed(self, work: Callable[..., T], *arguments: Any) -> tuple[T, float]:
        """The result, and the seconds that the work took, without the wait for other work."""

        def timed() -> tuple[T, float]:
            started = time.monotonic()
            return work(*arguments), time.monotonic() - started

        return await self.run(timed)

    def close(self) -> None:
        """Takes no more work."""
        self._executor.shutdown(wait=False)
