"""Slots that several askers share: who holds the fewest gets the next one.

Invariant: no slot is free while anyone waits who may have it, and no asker holds all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

__all__ = ["FairSlots"]


class FairSlots:
    """`count` slots. One asker may hold five sixths of them, so that the next one never waits for a slow answer to another."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._most_for_one = max(count - max(count // 6, 1), 1)
        self._held: Counter[Hashable] = Counter()
        # By asker, in the order in which they began to wait.
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def held_by(self, asker: Hashable) -> AsyncIterator[None]:
        """Waits for a slot; it is the asker's within the context."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(waiter)
        self._hand_out()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._forget(asker, waiter)
            else:
                self._release(asker)
            raise
        try:
            yield
        finally:
            self._release(asker)

    def _hand_out(self) -> None:
        while self._free:
            entitled = [asker for asker in self._waiting if self._held[asker] < self._most_for_one]
            if not entitled:
                return
            asker = min(entitled, key=self._held.__getitem__)
            waiter = self._waiting[asker][0]
            self._forget(asker, waiter)
            if not waiter.done():
                self._free -= 1
                self._held[asker] += 1
                waiter.set_result(None)

    def _forget(self, asker: Hashable, waiter: asyncio.Future[None]) -> None:
        queue = self._waiting.get(asker)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[asker]

    def _release(self, asker: Hashable) -> None:
        self._free += 1
        self._held[asker] -= 1
        if not self._held[asker]:
            del self._held[asker]
        self._hand_out()
