"""Serves until SIGTERM or Ctrl-C, then drains the buses.

Invariant: exit code 0 means that everything was delivered.
"""

from __future__ import annotations

from ..errors import UndeliveredError
from ..server.app import Server
from ..settings import Settings
from ..telemetry import get_logger
from .event_loop import Interruption, run_loop

__all__ = ["run"]

log = get_logger("machine")


def run(settings: Settings) -> int:
    """The `serve` command: runs until SIGTERM or Ctrl-C, then drains; 1 when something could not be delivered."""
    return run_loop(_run(settings))


async def _run(settings: Settings) -> int:
    server = Server(settings)
    interruption = Interruption()
    await server.start(settings.host, settings.port)
    await interruption.requested.wait()
    log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
    try:
        await interruption.drain(server.stop, server.engine)
    except UndeliveredError as error:
        log.error("stopped with events undelivered", error=str(error))
        return 1
    log.info("stopped")
    return 0
