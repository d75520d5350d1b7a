"""From what was given on the command line, in the environment, in a TOML file or as keywords to the settings in force.

Invariant: every problem there is comes out in one SettingsError, each named as the user wrote it, and none holds a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import SettingsError
from .bus_option import expand_bus_options
from .buses import bus_options, required_options
from .catalogue import Catalogue
from .commands import COMMANDS
from .option import Option, mask, one_of, secrets_in
from .options.general import CONFIG_OPTION
from .sources import GivenOption, SettingsSource, read_argv, read_environ, read_format_options, read_keywords, read_toml
from .values import Refused

__all__ = ["Settings", "from_format_options", "from_keywords", "resolve"]

_SHOWN_LENGTH = 80


class Settings(Mapping[str, Any]):
    """What is in force: `settings.cache_dir` or `settings["cache_dir"]`, options as Python writes them.

    The options of a bus are there when one of them was given; `for_bus` is the way to them.
    """

    def __init__(
        self, values: Mapping[str, Any], sources: Mapping[str, str], options: Sequence[Option], buses: Sequence[str]
    ) -> None:
        self._values = dict(values)
        self._sources = dict(sources)
        self.options = tuple(options)
        self.buses = tuple(buses)
        """The buses that are on."""

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"no setting {name!r}") from None

    def __repr__(self) -> str:
        shown = (f"{option.attribute}={option.show(self[option.attribute])!r}" for option in self.options)
        return f"Settings({', '.join(shown)})"

    def source(self, name: str) -> str:
        """Where a value came from, as the user would look for it: `--port`, `TM_PORT`, `port in conf.toml`, `default`."""
        return self._sources[name]

    def for_bus(self, bus: str) -> dict[str, Any]:
        """The options of a bus that is on, without its prefix, the common ones under the same names for every bus."""
        if bus not in self.buses:
            needed = " and ".join(one_of(tuple(option.flag for option in options)) for options in required_options(bus))
            raise SettingsError([f"the {bus} bus is off; it needs {needed}"])
        return {
            option.key or option.name.removeprefix(f"{bus}-").replace("-", "_"): self[option.attribute]
            for option in bus_options(bus)
        }

    def secrets(self) -> list[str]:
        """The texts that no output may hold."""
        found: list[str] = []
        for option in self.options:
            value = self[option.attribute]
            if value is not None:
                found.extend([option.text_of(value)] if option.secret else secrets_in(option.text_of(value)))
                if option.secret and isinstance(value, tuple):
                    found.extend(value)
        return found


def resolve(argv: Sequence[str], environ: Mapping[str, str] | None = None, *, command: str = "serve") -> Settings:
    """The settings of a command: the command line beats the environment, which beats the file, which beats defaults.

    Without `environ` it is the process's own.
    """
    environ = os.environ if environ is None else environ
    catalogue = Catalogue(COMMANDS[command])
    problems: list[str] = []
    from_argv, from_environ, from_file = (SettingsSource(catalogue, problems) for _ in range(3))
    read_argv(argv, from_argv)
    read_environ(environ, from_environ)
    config = from_argv.given.get(CONFIG_OPTION.name) or from_environ.given.get(CONFIG_OPTION.name)
    if config is not None:
        read_toml(config, from_file)
    given = {**from_file.given, **from_environ.given, **from_argv.given}
    expand_bus_options(given, catalogue, problems)
    return _settle(given, catalogue, environ, problems)


def from_keywords(keywords: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of the server from keyword arguments; the environment serves only to find default folders."""
    environ = os.environ if environ is None else environ
    catalogue = Catalogue(COMMANDS["serve"])
    source = SettingsSource(catalogue, [])
    read_keywords(keywords, source)
    expand_bus_options(source.given, catalogue, source.problems)
    return _settle(source.given, catalogue, environ, source.problems)


def from_format_options(name: str, options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a format that Spark reads: its options beat the environment."""
    from .formats import FORMATS

    environ = os.environ if environ is None else environ
    catalogue = Catalogue(FORMATS[name])
    problems: list[str] = []
    from_options, from_environ = (SettingsSource(catalogue, problems) for _ in range(2))
    read_format_options(options, from_options)
    read_environ(environ, from_environ)
    given = {**from_environ.given, **from_options.given}
    return _settle(given, catalogue, environ, problems)


def _settle(given: Mapping[str, GivenOption], catalogue: Catalogue, environ: Mapping[str, str], problems: list[str]) -> Settings:
    buses = [bus for bus in catalogue.loaded_buses if _is_on(bus, given, catalogue, problems)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in catalogue.options:
        found = given.get(option.name)
        if found is not None:
            values[option.attribute] = _read(found, problems)
            sources[option.attribute] = found.spelling
        elif option.required:
            problems.append(f"{option.flag} is required: {option.takes}")
        else:
            values[option.attribute] = option.resolve_default(environ)
            sources[option.attribute] = "default"
    if problems:
        raise SettingsError(problems)
    return Settings(values, sources, catalogue.options, buses)


def _is_on(bus: str, given: Mapping[str, GivenOption], catalogue: Catalogue, problems: list[str]) -> bool:
    """Whether all that a bus needs is given; some of it, or other options of the bus alone, is a problem."""
    options_of_bus = bus_options(bus)
    mine = [found for found in given.values() if found.option in options_of_bus]
    if not mine and bus not in catalogue.named_buses:
        return False
    meant = given.keys() | catalogue.suggested
    required = required_options(bus)
    missing = [options for options in required if not any(option.name in meant for option in options)]
    if missing and not mine:
        names = " and ".join(one_of(tuple(option.name.removeprefix(f"{bus}-") for option in options)) for options in missing)
        problems.append(f"the {bus} bus needs its {names}")
    elif missing:
        known = {option.name for options in required for option in options}
        witness = next((found for found in mine if found.option.name in known), mine[0])
        names = " and ".join(one_of(tuple(witness.spell(option) for option in options)) for options in missing)
        verb = "is" if len(missing) == 1 else "are"
        problems.append(f"{names} {verb} required when {witness.spelling} is given")
    return not missing


def _read(given: GivenOption, problems: list[str]) -> Any:
    """The value, or a problem and None."""
    option = given.option
    values: list[Any] = []
    for value in given.values:
        try:
            text = value if isinstance(value, str) else option.text_of(value)
        except TypeError as error:
            problems.append(f"{given.spelling}: expected {option.takes}, got {error}")
            continue
        try:
            values.append(option.read(text))
        except ValueError as error:
            problems.append(f"{given.spelling}: {_describe(option, text, error)}")
    if len(values) > 1:
        return {name: item for value in values for name, item in value.items()}
    return values[0] if values else None


def _describe(option: Option, text: str, error: ValueError) -> str:
    """What is wrong with a value, and the value where it may be shown."""
    if option.secret:
        message = mask(str(error).replace(text, "***") if text else str(error))
        return f"{message} (the value is not shown)"
    shown = option.show_text(text)
    shown = shown if len(shown) <= _SHOWN_LENGTH else f"{shown[:_SHOWN_LENGTH]}…"
    message = mask(str(error))
    return f"{message} (got {shown!r})" if isinstance(error, Refused) else f"{message}, got {shown!r}"
