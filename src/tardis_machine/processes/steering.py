"""What others may do to a replay while it runs.

Invariant: it concerns this replay alone, and nothing of it is needed for the replay to end.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..errors import TardisMachineError

__all__ = ["Steering"]


class Steering(msgspec.Struct, frozen=True):
    """Of one job."""

    command: Callable[..., None]
    """Tells the job something; see ReplayJob."""
    fail: Callable[[TardisMachineError], None]
    """Ends it with this, after what it has made."""
