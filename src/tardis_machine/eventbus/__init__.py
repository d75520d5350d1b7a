"""Events to buses: encode once, route and batch for each bus, account for every one.

Invariant: importing this imports no bus and no client library; a bus's module is loaded when a plan is made for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..settings.buses import BUS_MODULES

if TYPE_CHECKING:
    from .publisher import BusPlan

__all__ = ["plan_bus"]


def plan_bus(name: str, options: Mapping[str, Any]) -> BusPlan:
    """A bus ready for a Publisher, from its options as `Settings.for_bus` gives them.

    Its module has OPTIONS and REQUIRED (see `settings.buses`), `create_bus(options)` and `create_routing(options)`.
    """
    from .publisher import BusPlan

    module = import_module(BUS_MODULES[name])
    return BusPlan(module.create_bus(options), module.create_routing(options), options)
