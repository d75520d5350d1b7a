"""Modules of which a part is compiled, without that part."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

__all__ = ["load_definition"]


def load_definition(module: ModuleType, compiled: ModuleType) -> ModuleType:
    """A module as it is where nothing was compiled."""
    assert module.__file__ is not None
    spec = spec_from_file_location(f"{module.__name__}_alone", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    alone = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, compiled.__name__, None)
        spec.loader.exec_module(alone)
    return alone
