"""Serves until SIGTERM or Ctrl-C, then drains the buses.

Invariant: exit code 0 means that everything was delivered.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UndeliveredError
from ..server.app import Server
from ..settings import Settings
from ..telemetry import get_logger
from .event_loop import Interruption, run_loop
from .exit_codes import FAILED

if TYPE_CHECKING:
    from ..eventbus.receipt import Receipt

__all__ = ["run"]

log = get_logger("machine")


def run(settings: Settings) -> int:
    """The `serve` command: runs until SIGTERM or Ctrl-C, then drains; 1 when something could not be delivered."""
    return run_loop(_run(settings))


async def _run(settings: Settings) -> int:
    server = Server(settings)
    interruption = Interruption()
    await server.start(settings.host, settings.port)
    # What there is now stays for good: looking through it for cycles took a seventh of the time that passing data on takes.
    gc.freeze()
    await interruption.requested.wait()
    log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
    problem: str | None
    try:
        problem = not_delivered(await interruption.drain(server.stop, server.engine))
    except UndeliveredError as error:
        problem = str(error)
    if problem is not None:
        log.error("stopped with events undelivered", error=problem)
        return FAILED
    log.info("stopped")
    return 0


def not_delivered(receipts: Sequence[Receipt]) -> str | None:
    """One sentence about what was dropped or refused by a bus; None where nothing was."""
    parts = [
        f"{receipt.dropped} events to {receipt.bus} were dropped and {receipt.dead_lettered} are dead letters"
        for receipt in receipts
        if not receipt.is_complete
    ]
    return "; ".join(parts) or None
