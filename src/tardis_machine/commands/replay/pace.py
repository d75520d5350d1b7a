"""A replay without a client goes as fast as its buses confirm, and ends when they have confirmed all.

Invariant: a bus is waited for only while it gets on; the events for one that is gone are in the spool, as its receipt says.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import UndeliveredError

if TYPE_CHECKING:
    from ...eventbus.publisher import Publisher

__all__ = ["Pace"]

_LOOK_INTERVAL_S = 0.05


class Pace:
    """Of one replay; `patience_s` is how long a bus may confirm nothing before it is no longer waited for."""

    def __init__(self, publisher: Publisher, patience_s: float) -> None:
        self._publisher = publisher
        self._patience_s = patience_s
        # What each bus had confirmed, and when that last changed.
        self._seen: dict[str, tuple[int, float]] = {}

    async def keep(self) -> None:
        """Waits while a bus has more than its queue holds: a spool need not fill where nobody waits for the lines."""
        while self._gets_on() & {health.bus for health in self._publisher.health() if health.spool_events}:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def _gets_on(self) -> set[str]:
        now = asyncio.get_running_loop().time()
        for receipt in self._publisher.receipts:
            if receipt.confirmed != self._seen.get(receipt.bus, (-1, now))[0]:
                self._seen[receipt.bus] = (receipt.confirmed, now)
        return {bus for bus, (_, since) in self._seen.items() if now - since < self._patience_s}

    async def finish(self) -> None:
        """Returns when everything is resolved; raises when nothing was for too long."""
        while True:
            before = self._resolved()
            try:
                return await self._publisher.flush(self._patience_s)
            except UndeliveredError:
                if self._resolved() == before:
                    raise

    def _resolved(self) -> int:
        return sum(receipt.confirmed + receipt.dead_lettered + receipt.dropped for receipt in self._publisher.receipts)
