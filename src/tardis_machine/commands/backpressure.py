"""Backpressure of the buses on a replay: it goes as fast as they confirm, and ends when they have confirmed all.

Invariant: a bus is waited for only while it makes progress; the events for one that does not are in the spool, as its receipt says.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import UndeliveredError

if TYPE_CHECKING:
    from ..eventbus.publisher import Publisher

__all__ = ["BusBackpressure"]

_POLL_INTERVAL_S = 0.05


class BusBackpressure:
    """Of one replay; a bus that confirms nothing for `patience_s` is no longer waited for."""

    def __init__(self, publisher: Publisher, patience_s: float) -> None:
        self._publisher = publisher
        self._patience_s = patience_s
        # What each bus had confirmed, and when that last changed.
        self._last_confirmed: dict[str, tuple[int, float]] = {}

    async def wait_for_room(self) -> None:
        """Waits while a bus has more than its queue holds: a spool need not fill when nobody waits for the lines."""
        while self._advancing() & {health.bus for health in self._publisher.health() if health.spool_events}:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _advancing(self) -> set[str]:
        """The buses that have confirmed something lately."""
        now = asyncio.get_running_loop().time()
        for receipt in self._publisher.receipts:
            if receipt.confirmed != self._last_confirmed.get(receipt.bus, (-1, now))[0]:
                self._last_confirmed[receipt.bus] = (receipt.confirmed, now)
        return {bus for bus, (_, since) in self._last_confirmed.items() if now - since < self._patience_s}

    async def flush(self) -> None:
        """Returns when every event is resolved; raises UndeliveredError when none was for `patience_s`."""
        while True:
            before = self._resolved()
            try:
                return await self._publisher.flush(self._patience_s)
            except UndeliveredError:
                if self._resolved() == before:
                    raise

    def _resolved(self) -> int:
        return sum(receipt.confirmed + receipt.dead_lettered + receipt.dropped for receipt in self._publisher.receipts)
