"""File descriptors: how many there are, and how many clients leave to the rest of the server.

Invariant: connections of clients never take the last descriptors, so that spools, ledgers and the cache can always be written.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

__all__ = ["descriptors_for_clients", "raise_descriptor_limit"]

# Of the disk and the buses; of the history API. Each live request has a process with a socket, and pipes while that starts.
_DISK_AND_BUSES = 64
_UPSTREAM = 60
_LIVE_REQUEST = 2


def raise_descriptor_limit() -> None:
    """Lets this process, and those it starts, have as many descriptors as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says that there is no hard limit, and refuses it as a soft one.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_for_clients(*, workers: int, live_requests: int) -> int:
    """How many clients may have: what the server itself does not need, and half of them where there are few."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    needed = _DISK_AND_BUSES + _UPSTREAM + workers + _LIVE_REQUEST * live_requests
    return max(limit - needed, limit // 2)
