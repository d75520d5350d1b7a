"""`--bus NAME --bus-option k=v`: any bus by its name, also one that an installed package brings.

Invariant: what is given this way becomes an option of the named bus, read and shown by that option's own rules; nothing else is kept.
"""

from __future__ import annotations

from functools import partial

from ..errors import SettingsError
from .buses import BUS_MODULES, bus_options, foreign_buses
from .catalogue import Catalogue
from .option import Option, one_of
from .sources import GivenOption

__all__ = ["expand_bus_options"]


def expand_bus_options(given: dict[str, GivenOption], catalogue: Catalogue, problems: list[str]) -> None:
    """Replaces `bus-option` by the options it stands for, and makes the buses that `bus` names known."""
    named, pairs = given.get("bus"), given.pop("bus-option", None)
    buses = [] if named is None else _read_buses(named, catalogue, problems)
    if pairs is None:
        return
    if named is None:
        problems.append(f"{pairs.spelling} needs {pairs.spell(_named_by(catalogue))}, which names the bus")
    for value in pairs.values:
        try:
            options = pairs.option.read(value if isinstance(value, str) else pairs.option.text_of(value))
        except TypeError as error:
            problems.append(f"{pairs.spelling}: expected {pairs.option.takes}, got {error}")
            continue
        except ValueError as error:
            problems.append(f"{pairs.spelling}: {error} (the value is not shown)")
            continue
        for name, text in options.items():
            _give(name, text, buses, pairs, given, problems)


def _named_by(catalogue: Catalogue) -> Option:
    option = catalogue.find("bus")
    assert option is not None
    return option


def _read_buses(named: GivenOption, catalogue: Catalogue, problems: list[str]) -> list[str]:
    found: list[str] = []
    try:
        wanted = [bus for value in named.values for bus in named.option.read(named.option.text_of(value))]
    except (TypeError, ValueError):
        return []  # reported where all values are read
    known = (*BUS_MODULES, *foreign_buses())
    for bus in wanted:
        if bus not in known:
            problems.append(f"{named.spelling}: expected {one_of(known)}, got {bus!r}")
            continue
        try:
            catalogue.name_bus(bus)
            found.append(bus)
        except SettingsError as error:
            problems += error.problems
    return found


def _give(name: str, text: str, buses: list[str], pairs: GivenOption, given: dict[str, GivenOption], problems: list[str]) -> None:
    """`k` is an option of every named bus that has it, `NAME.k` of that bus alone."""
    bus, dot, rest = name.partition(".")
    chosen, key = ([bus], rest) if dot and bus in buses else (buses, name)
    key = key.replace("_", "-")
    matches = [(one, option) for one in chosen for option in bus_options(one) if f"{one}-{key}" in option.names]
    for one, option in matches:
        spell = partial(_spell, pairs.spelling, one)
        if option.name in given:
            problems.append(f"{spell(option)} and {given[option.name].spelling} are the same setting, given twice")
        else:
            given[option.name] = GivenOption(option, f"{pairs.spelling} {key}", spell, [text])
    if not matches and buses:
        known = dict.fromkeys(option.name.removeprefix(f"{one}-") for one in chosen for option in bus_options(one))
        problems.append(f"{pairs.spelling}: {key!r} is not an option of {one_of(tuple(chosen))}; expected {one_of(tuple(known))}")


def _spell(spelling: str, bus: str, option: Option) -> str:
    return f"{spelling} {option.name.removeprefix(f'{bus}-')}"
