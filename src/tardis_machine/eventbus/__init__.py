"""Events to buses: encode once, route and batch for each bus, account for every one.

Invariant: importing this imports no bus and no client library; a bus's module is loaded when a plan is made for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from ..settings.buses import bus_module, bus_options

if TYPE_CHECKING:
    from types import ModuleType

    from .publisher import BusPlan, LetterPlan

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
    return BusPlan(bus, module.create_routing(options), options, _plan_letters(name, module, options))


def _plan_letters(name: str, module: ModuleType, options: Mapping[str, Any]) -> LetterPlan | None:
    """A bus of the same kind that sends every payload case to the destination of dead letters."""
    from ..bronze.payload_case import PAYLOAD_CASES
    from .publisher import LetterPlan

    destination = options.get("dead_letter_destination")
    if destination is None:
        return None
    given = {
        **options,
        "routing": dict.fromkeys(PAYLOAD_CASES, destination),
        "destination_template": None,
        "include_payloads": None,
    }
    if "headers" in given:
        given["headers"] = "all"  # they are what says why
    given["cloudevents"] = False  # a letter is not the event itself, and SQS has room for ten attributes
    try:
        return LetterPlan(module.create_bus(given), module.create_routing(given))
    except SettingsError as error:
        # What is wrong is what only this bus was given.
        flags = {option.key: option.flag for option in bus_options(name) if option.key}
        named = [problem.replace(flags["routing"], flags["dead_letter_destination"]) for problem in error.problems]
        raise SettingsError(named) from None
