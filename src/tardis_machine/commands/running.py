"""How a command runs that does not end by itself: its event loop, and the signals that end it.

Invariant: the first signal stops and drains; a second one gives up draining, and loses nothing.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ..engine import Engine

if TYPE_CHECKING:
    from ..eventbus.receipt import Receipt

__all__ = ["Interruption", "run_loop"]


class Interruption:
    """SIGTERM and Ctrl-C: the first asks to stop; one that comes while the buses are drained, to end now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.signal: signal.Signals | None = None
        self._hurry = asyncio.Event()
        self._is_draining = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take, number)

    def _take(self, number: signal.Signals) -> None:
        if self._is_draining:
            self._hurry.set()
        elif self.signal is None:
            self.signal = number
            self.asked.set()

    async def drain(self, stop: Callable[[], Awaitable[list[Receipt]]], engine: Engine) -> list[Receipt]:
        """Stops with `stop`; a signal meanwhile puts what is left into the spool."""
        self._is_draining = True
        hurrying = asyncio.create_task(self._abort_when_asked(engine))
        try:
            return await stop()
        finally:
            hurrying.cancel()

    async def _abort_when_asked(self, engine: Engine) -> None:
        await self._hurry.wait()
        if engine.publisher is not None:
            await engine.publisher.abort()


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Runs a command on the fastest event loop that this system has."""
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)
