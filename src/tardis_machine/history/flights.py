"""Several askers, one piece of work: whoever asks for a key that is under way waits for it.

Invariant: the work goes on while anyone waits for it, and is cancelled, and over, when the last one has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from ..errors import UpstreamError

__all__ = ["Flights"]

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class _Flight(Generic[Result]):
    def __init__(self, task: asyncio.Task[Result]) -> None:
        self.task = task
        self.passengers = 0


class Flights(Generic[Key, Result]):
    """Work under way, by key."""

    def __init__(self) -> None:
        self._flights: dict[Key, _Flight[Result]] = {}

    async def join(self, key: Key, start: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of `start()`, which is called only when the key is not under way."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(start()))
            flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.passengers += 1
        try:
            # One asker's cancellation must not reach the work that others wait for.
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.task.cancelled() and not _is_cancelled():
                raise UpstreamError("the history client was closed while a slice was under way", 503) from None
            raise
        finally:
            flight.passengers -= 1
            if not flight.passengers and not flight.task.done():
                self._land(key, flight)
                await _cancel([flight.task])

    async def close(self) -> None:
        """Cancels all work under way."""
        tasks = [flight.task for flight in self._flights.values()]
        self._flights.clear()
        await _cancel(tasks)

    def _land(self, key: Key, flight: _Flight[Result]) -> None:
        # A later flight of the same key may have taken off after this one was given up.
        if self._flights.get(key) is flight:
            del self._flights[key]


def _is_cancelled() -> bool:
    """Whether it is the task that runs this, not the one it waits for, that was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel(tasks: list[asyncio.Task[Result]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
