"""The registry of event buses: which prefixes options may have, and the module behind each.

Invariant: a bus module is imported only when one of its options is given, or when all options are to be listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from ..errors import SettingsError
from .option import Option

__all__ = ["BUS_MODULES", "bus_module", "bus_of", "bus_options", "foreign_buses", "required_options"]

BUS_MODULES: Mapping[str, str] = {
    "file": "tardis_machine.eventbus.buses.file",
    "kafka": "tardis_machine.eventbus.buses.kafka",
    "redis": "tardis_machine.eventbus.buses.redis_streams",
    "nats": "tardis_machine.eventbus.buses.nats_jetstream",
    "kinesis": "tardis_machine.eventbus.buses.kinesis",
    "sqs": "tardis_machine.eventbus.buses.sqs",
}
"""Prefix to module; a bus is added with one line here.

A module has `OPTIONS: tuple[Option, ...]`, and `REQUIRED: tuple[str, ...]`: the options without which it is off, each a name,
or names with `|` between them of which one is enough.
"""


ENTRY_POINTS = "tardis_machine.event_buses"
"""The entry points of buses in other packages: each a name, and a module of the same kind."""


def foreign_buses() -> tuple[str, ...]:
    """The buses that installed packages bring."""
    from importlib.metadata import entry_points

    return tuple(sorted({found.name for found in entry_points(group=ENTRY_POINTS)} - BUS_MODULES.keys()))


def bus_module(bus: str) -> ModuleType:
    """The module of a bus, imported; SettingsError where that of an installed package is not a bus."""
    if bus in BUS_MODULES:
        return import_module(BUS_MODULES[bus])
    from importlib.metadata import entry_points

    (found, *_) = entry_points(group=ENTRY_POINTS, name=bus)
    try:
        module: ModuleType = found.load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        raise SettingsError([f"the bus {bus} can't be loaded from {found.value}: {type(error).__name__}: {error}"]) from error
    missing = [name for name in ("OPTIONS", "REQUIRED", "create_bus", "create_routing") if not hasattr(module, name)]
    if missing:
        raise SettingsError([f"the bus {bus} can't be used: {found.value} has no {', '.join(missing)}"])
    strays = [option.name for option in module.OPTIONS if not option.name.startswith(f"{bus}-")]
    if strays:
        raise SettingsError([f"the bus {bus} can't be used: its options must begin with {bus}-, unlike {', '.join(strays)}"])
    return module


def bus_of(name: str) -> str | None:
    """The bus whose prefix an option's name has."""
    return next((bus for bus in BUS_MODULES if name.startswith(f"{bus}-")), None)


def bus_options(bus: str) -> tuple[Option, ...]:
    """All options of a bus; imports its module."""
    options: tuple[Option, ...] = bus_module(bus).OPTIONS
    return options


def required_options(bus: str) -> tuple[tuple[Option, ...], ...]:
    """What a bus needs to be on: of each group of options, one."""
    by_name = {option.name: option for option in bus_options(bus)}
    required: tuple[str, ...] = bus_module(bus).REQUIRED
    return tuple(tuple(by_name[name] for name in names.split("|")) for names in required)
