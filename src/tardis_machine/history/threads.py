"""File and decompression work off the event loop.

Invariant: work that began is over when its call ends, also when that is cancelled: no file is written behind anyone's back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["Threads"]

Params = ParamSpec("Params")
Result = TypeVar("Result")


class Threads:
    """A few threads of our own, so that name resolution and other users of the loop's threads never wait for decompression."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
        """Calls `work` in a thread; once begun it is waited for."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._count, thread_name_prefix="history")
        call = self._executor.submit(work, *args, **kwargs)
        future = asyncio.wrap_future(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not call.cancel():
                await asyncio.wait([future])
            raise

    def close(self) -> None:
        """Lets the threads end."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
