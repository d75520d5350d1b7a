"""`tardis-machine replay --dead-letter`: sends dead letters again.

Invariant: a file of letters is removed when the bus has resolved all of it; what it refuses again is written to new files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..engine import start_publisher
from ..errors import SettingsError
from ..settings import Settings

__all__ = ["resend_dead_letters"]


async def resend_dead_letters(settings: Settings) -> int:
    """The exit code: 0 when the buses have confirmed all of them."""
    folder = settings.dead_letter if isinstance(settings.dead_letter, Path) else None
    if not settings.buses:
        raise SettingsError(["--dead-letter needs a bus to send the dead letters to, but none is on"])
    if folder is not None and len(settings.buses) > 1:
        raise SettingsError([f"--dead-letter with a folder needs exactly one bus, but {' and '.join(settings.buses)} are on"])
    if folder is not None and not folder.is_dir():
        raise SettingsError([f"--dead-letter: {str(folder)!r} is not a folder"])
    publisher = await start_publisher(settings)
    try:
        for bus in settings.buses:
            sent = await publisher.replay_dead_letters(bus, settings.shutdown_timeout, folder)
            print(f"{bus}: {sent} dead {'letter' if sent == 1 else 'letters'} sent again")
    finally:
        try:
            await publisher.close(settings.shutdown_timeout)
        finally:
            for receipt in publisher.receipts:
                print(receipt, file=sys.stderr)
    return 0 if all(receipt.is_complete for receipt in publisher.receipts) else 1
