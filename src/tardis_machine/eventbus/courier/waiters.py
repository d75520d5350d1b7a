"""Tasks that wait until something changes.

Invariant: whoever waits looks for itself whether what it waits for is there; being woken promises nothing.
"""

from __future__ import annotations

import asyncio

__all__ = ["Waiters"]


class Waiters:
    """Tasks that wait for the same thing."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self, timeout_s: float) -> None:
        """Returns when `wake` is called, or after the time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await asyncio.wait([future], timeout=timeout_s)

    def wake(self) -> None:
        """All that wait go on."""
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)
