"""The options that one command takes, by name, with those of a bus loaded when the first of them is asked for.

Invariant: a look-up of a name without a bus's prefix imports no bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .buses import BUS_MODULES, bus_of, bus_options
from .commands import Command, all_options
from .option import Option

__all__ = ["Catalogue"]


class Catalogue:
    """What a command takes."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.loaded_buses: list[str] = []
        self.named_buses: set[str] = set()
        """Those that were named, and so are meant to be on whether or not options of theirs are given."""
        self.suggested: set[str] = set()
        """Options that were probably meant by a name that is none."""
        self._by_name: dict[str, Option] = {}
        self._add(command.options)

    def _add(self, options: Iterable[Option]) -> None:
        for option in options:
            self._by_name.update(dict.fromkeys(option.names, option))

    def load_bus(self, bus: str) -> None:
        """Makes a bus's options known."""
        if bus not in self.loaded_buses:
            self._add(bus_options(bus))
            self.loaded_buses.append(bus)

    def name_bus(self, bus: str) -> None:
        """Makes the options known of a bus that is meant to be on."""
        self.load_bus(bus)
        self.named_buses.add(bus)

    def load_all(self) -> None:
        """Makes every option known, for help and suggestions."""
        for bus in BUS_MODULES if self.command.takes_buses else ():
            self.load_bus(bus)

    def find(self, name: str) -> Option | None:
        """The option of a name or alias."""
        bus = bus_of(name)
        if bus is not None and self.command.takes_buses:
            self.load_bus(bus)
        return self._by_name.get(name)

    @property
    def options(self) -> list[Option]:
        """All that are known by now, once each."""
        return list(dict.fromkeys(self._by_name.values()))

    def is_for_others(self, name: str) -> bool:
        """Whether other commands know the name, so that it is no mistake to have it in the environment or a file."""
        if bus_of(name) is not None and not self.command.takes_buses:
            return True
        return any(name in option.names and not option.positional for option in all_options())

    def suggest(self, name: str, spell: Callable[[Option], str]) -> str:
        """': did you mean …?' for a name that is none, or nothing."""
        from difflib import get_close_matches

        self.load_all()
        names = [known for known, option in self._by_name.items() if not option.positional]
        nearest = get_close_matches(name.lower().replace("_", "-"), names, 1, 0.6)
        if not nearest:
            return ""
        option = self._by_name[nearest[0]]
        self.suggested.add(option.name)
        return f": did you mean {spell(option)}?"
