"""Defaults that depend on the machine: each is found from the environment when settings are resolved.

Invariant: nothing is made or changed on disk, and every folder belongs to this user alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import SettingsError

__all__ = ["cache_dir", "core_count", "state_dir"]

_NAME = "tardis-machine"


def state_dir(environ: Mapping[str, str]) -> Path:
    """The folder for what must survive a restart: spools and dead letters."""
    return _xdg_dir(environ, "XDG_STATE_HOME", ".local/state") / _NAME


def cache_dir(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The folder for fetched history: in this user's cache folder, where the system has it."""
    if platform == "darwin":
        return _home(environ) / "Library" / "Caches" / _NAME
    if platform == "win32":
        given = environ.get("LOCALAPPDATA")
        return (Path(given) if given else _home(environ) / "AppData" / "Local") / _NAME / "Cache"
    return _xdg_dir(environ, "XDG_CACHE_HOME", ".cache") / _NAME


def _xdg_dir(environ: Mapping[str, str], variable: str, in_home: str) -> Path:
    """As the XDG Base Directory Specification has it, which ignores a relative path."""
    given = Path(environ.get(variable, ""))
    return given if given.is_absolute() else _home(environ) / in_home


def _home(environ: Mapping[str, str]) -> Path:
    given = environ.get("HOME")
    try:
        return Path(given) if given else Path.home()
    except RuntimeError:
        problem = "this user has no home folder: set HOME, or cache-dir and spool-dir"
        raise SettingsError([problem]) from None


def core_count(_environ: Mapping[str, str]) -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
