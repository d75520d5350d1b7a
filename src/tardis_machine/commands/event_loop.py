"""The event loop of a command that runs for a while, and the signals that end it.

Invariant: the first signal stops and drains; a second one ends the draining early, and loses nothing.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..engine import Engine
from ..server.descriptors import raise_descriptor_limit

if TYPE_CHECKING:
    from ..eventbus.receipt import Receipt

__all__ = ["Interruption", "run_loop"]

T = TypeVar("T")


class Interruption:
    """SIGTERM and Ctrl-C: the first requests a stop; one that comes while the buses drain ends that at once."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.signal: signal.Signals | None = None
        self._abort_requested = asyncio.Event()
        self._is_draining = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._is_draining:
            self._abort_requested.set()
        elif self.signal is None:
            self.signal = number
            self.requested.set()

    async def drain(self, stop: Callable[[], Awaitable[list[Receipt]]], engine: Engine) -> list[Receipt]:
        """Awaits `stop`; a signal meanwhile puts what is left into the spool."""
        self._is_draining = True
        aborting = asyncio.create_task(self._abort_on_request(engine))
        try:
            return await stop()
        finally:
            aborting.cancel()

    async def _abort_on_request(self, engine: Engine) -> None:
        await self._abort_requested.wait()
        if engine.publisher is not None:
            await engine.publisher.abort()


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Runs a command on the fastest event loop that this system has, with as many descriptors as the system allows."""
    raise_descriptor_limit()
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)
