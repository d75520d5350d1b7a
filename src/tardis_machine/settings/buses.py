"""The registry of event buses: which prefixes options may have, and the module behind each.

Invariant: a bus module is imported only when one of its options is given, or when all options are to be listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from .option import Option

__all__ = ["BUS_MODULES", "bus_of", "bus_options", "required_options"]

BUS_MODULES: Mapping[str, str] = {"file": "tardis_machine.eventbus.file"}
"""Prefix to module; a bus is added with one line here.

A module has `OPTIONS: tuple[Option, ...]`, and `REQUIRED: tuple[str, ...]`: the options without which it is off, each a name,
or names with `|` between them of which one is enough.
"""


def bus_of(name: str) -> str | None:
    """The bus whose prefix an option's name has."""
    return next((bus for bus in BUS_MODULES if name.startswith(f"{bus}-")), None)


def bus_options(bus: str) -> tuple[Option, ...]:
    """All options of a bus; imports its module."""
    options: tuple[Option, ...] = import_module(BUS_MODULES[bus]).OPTIONS
    return options


def required_options(bus: str) -> tuple[tuple[Option, ...], ...]:
    """What a bus needs to be on: of each group of options, one."""
    by_name = {option.name: option for option in bus_options(bus)}
    required: tuple[str, ...] = import_module(BUS_MODULES[bus]).REQUIRED
    return tuple(tuple(by_name[name] for name in names.split("|")) for names in required)
