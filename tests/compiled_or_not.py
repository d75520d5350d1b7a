"""Modules that run compiled, and the same modules as Python, side by side, whatever the environment chooses for all others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

import pytest

__all__ = ["import_as_python", "import_compiled"]


def import_as_python(*names: str) -> list[ModuleType]:
    """Copies of modules that run as Python; what these import of each other are the copies, all else is shared."""
    return _import_again(names, "0")


def import_compiled(*names: str) -> list[ModuleType]:
    """The same, with what is compiled of them."""
    return _import_again(names, "1")


def _import_again(names: Sequence[str], compiled: str) -> list[ModuleType]:
    for name in names:
        import_module(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARDIS_MACHINE_COMPILED", compiled)
        for name in names:
            package, _, last = name.rpartition(".")
            # Importing puts the copies there; undoing puts the originals back.
            patch.setattr(sys.modules[package], last, None)
            patch.delitem(sys.modules, name)
            patch.delitem(sys.modules, f"{name}_compiled", raising=False)
        return [import_module(name) for name in names]
