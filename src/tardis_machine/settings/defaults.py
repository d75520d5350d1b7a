"""Defaults that depend on the machine: each is found from the environment when settings are resolved.

Invariant: nothing is made or changed on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_dir", "core_count", "state_dir"]


def state_dir(environ: Mapping[str, str]) -> Path:
    """The folder for what must survive a restart: spools and dead letters."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "tardis-machine"


def cache_dir(_environ: Mapping[str, str]) -> Path:
    """The folder for fetched history, in the system's temporary folder."""
    from tempfile import gettempdir

    return Path(gettempdir()) / ".tardis-cache"


def core_count(_environ: Mapping[str, str]) -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
