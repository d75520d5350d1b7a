"""Events to buses: encode once, route and batch for each bus, account for every one.

Invariant: importing this imports no bus and no client library; a bus's module is loaded when a plan is made for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from ..settings.buses import bus_module

if TYPE_CHECKING:
    from .publisher import BusPlan

__all__ = ["plan_bus"]


def plan_bus(name: str, options: Mapping[str, Any]) -> BusPlan:
    """A bus ready for a Publisher, from its options as `Settings.for_bus` gives them.

    Its module has OPTIONS and REQUIRED (see `settings.buses`), `create_bus(options)` and `create_routing(options)`.
    """
    from .publisher import BusPlan

    module = bus_module(name)
    bus = module.create_bus(options)
    if bus.name != name:
        raise SettingsError([f"the bus {name} can't be used: its module calls it {bus.name!r}"])
    return BusPlan(bus, module.create_routing(options), options)
