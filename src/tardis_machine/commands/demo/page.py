"""The end of the demo, where it is asked to stay: the machine on the demo's own data, for a browser.

Invariant: it publishes nothing; what the demo counted stays as it was.
"""

from __future__ import annotations

from typing import Any

from ...errors import SettingsError
from ...server.app import TardisMachine
from ...settings import Settings
from ..event_loop import Interruption, run_loop
from .client import upstream
from .display import Display
from .plan import DemoPlan

__all__ = ["PORT", "keep_serving"]

PORT = 8000


def keep_serving(plan: DemoPlan, settings: Settings, display: Display) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    with upstream(plan, settings, display) as (options, _):
        run_loop(_serve(options, display))


async def _serve(options: dict[str, Any], display: Display) -> int:
    machine = TardisMachine(**options)
    interruption = Interruption()
    try:
        await machine.start(port=PORT)
    except SettingsError:
        # Somebody else's server is there.
        await machine.start(port=0)
    try:
        display.print_line("page", f"http://localhost:{machine.port}/ until Ctrl-C")
        await interruption.requested.wait()
    finally:
        await machine.stop()
    return 0
