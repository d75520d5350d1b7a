"""Where settings come from: argv, environment, TOML, keywords. Each is read into what it gives, by option.

Invariant: a reader judges names, never values; what it can't place becomes a problem, and the value beside it is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from .buses import BUS_MODULES, bus_of, foreign_buses
from .catalogue import Catalogue
from .commands import COMMANDS, all_options
from .option import Option, one_of
from .options.general import CONFIG_OPTION

__all__ = [
    "GivenOption",
    "SettingsSource",
    "as_format_option",
    "read_argv",
    "read_environ",
    "read_format_options",
    "read_keywords",
    "read_toml",
]

Spell = Callable[[Option], str]
"""How a user writes an option in one place."""


@dataclass(frozen=True)
class GivenOption:
    """One option in one source."""

    option: Option
    spelling: str
    """The option as the user wrote it."""
    spell: Spell
    """How the user would write another option there."""
    values: list[object]
    """Texts, or what TOML or Python hold; more than one only where an option may be repeated."""


@dataclass(frozen=True)
class SettingsSource:
    """What one source gives, and what is wrong with it."""

    catalogue: Catalogue
    problems: list[str]
    given: dict[str, GivenOption] = field(default_factory=dict)
    """By the option's name."""

    def give(self, option: Option, spelling: str, spell: Spell, value: object) -> None:
        """Takes an option; a second time it replaces the first, or adds to it where it may be repeated."""
        before = self.given[option.name].values if option.repeated and option.name in self.given else []
        self.given[option.name] = GivenOption(option, spelling, spell, [*before, value])

    def give_once(self, option: Option, spelling: str, spell: Spell, value: object) -> None:
        """Takes an option that can't be given twice."""
        if option.name in self.given:
            self.problems.append(f"{spelling} and {self.given[option.name].spelling} are the same setting, given twice")
        else:
            self.give(option, spelling, spell, value)

    def refuse(self, spelling: str, name: str, spell: Spell) -> None:
        """A name that is no option's."""
        self.problems.append(f"{spelling} is not a setting{self.catalogue.suggest(name, spell)}")


def _as_flag(option: Option) -> str:
    return option.flag


def _as_variable(option: Option) -> str:
    return option.variable


def _as_keyword(option: Option) -> str:
    return option.attribute


def read_argv(argv: Sequence[str], source: SettingsSource) -> None:
    """Flags and arguments: `--name value`, `--name=value`, `--switch`, `--no-switch`, `--switch=false`."""
    arguments = [option for option in source.catalogue.command.options if option.positional]
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            for rest in words:
                _read_argument(rest, arguments, source)
            break
        if not word.startswith("-") or word == "-":
            _read_argument(word, arguments, source)
            continue
        flag, equals, value = word.partition("=")
        option, is_negated = _find_flag(flag, source.catalogue)
        if option is None:
            source.problems.append(_unknown_flag(flag, source.catalogue))
            if not equals and words and not words[0].startswith("-"):
                words.pop(0)  # its value, which may be a secret: not to be reported as a stray argument
        elif is_negated and equals:
            source.problems.append(f"{flag} takes no value")
        elif option.is_switch and not equals:
            follows = words.pop(0) if not is_negated and words and words[0] in ("true", "false") else "true"
            source.give(option, flag, _as_flag, "false" if is_negated else follows)
        elif equals:
            source.give(option, flag, _as_flag, value)
        elif words and not words[0].startswith("--"):
            source.give(option, flag, _as_flag, words.pop(0))
        elif option.bare:
            source.give(option, flag, _as_flag, option.bare)
        else:
            source.problems.append(f"{flag} needs a value: {option.takes}")


def _find_flag(flag: str, catalogue: Catalogue) -> tuple[Option | None, bool]:
    """The option of a flag, and whether it is switched off."""
    name = flag.removeprefix("--")
    option = catalogue.find(name) if name != flag else None
    if option is not None and not option.positional:
        return option, False
    switch = catalogue.find(name.removeprefix("no-")) if flag.startswith("--no-") else None
    return (switch, True) if switch is not None and switch.is_switch else (None, False)


def _unknown_flag(flag: str, catalogue: Catalogue) -> str:
    name = flag.lstrip("-")
    message = f"{flag} is not an option of '{catalogue.command.name}'"
    if catalogue.is_for_others(name):
        takers = [
            f"'{command.name}'"
            for command in COMMANDS.values()
            if any(name in option.names for option in command.options) or (command.takes_buses and bus_of(name) is not None)
        ]
        return f"{message}; it belongs to {one_of(tuple(takers))}"
    return message + catalogue.suggest(name, _as_flag)


def _read_argument(word: str, arguments: list[Option], source: SettingsSource) -> None:
    if arguments:
        option = arguments.pop(0)
        source.give(option, option.flag, _as_flag, word)
    elif any(word == name.partition(" ")[0] for name in COMMANDS):
        source.problems.append(f"the command {word!r} must come before all options")
    else:
        source.problems.append(f"'{source.catalogue.command.name}' takes no argument {word!r}")


def read_environ(environ: Mapping[str, str], source: SettingsSource) -> None:
    """`TM_…` variables, then those that an option has beside its own. An empty variable is not given."""
    catalogue = source.catalogue
    for variable, value in sorted(environ.items()):
        if not variable.startswith("TM_") or not value:
            continue
        name = variable.removeprefix("TM_").lower().replace("_", "-")
        option = catalogue.find(name)
        if option is None or option.positional:
            if not catalogue.is_for_others(name):
                source.refuse(variable, name, _as_variable)
        elif option.name not in source.given or name == option.name:
            source.given[option.name] = GivenOption(option, variable, _as_variable, [value])
    for option in catalogue.command.options:
        for variable in option.variables:
            if environ.get(variable) and option.name not in source.given:
                source.give(option, variable, _as_variable, environ[variable])


def read_toml(config: GivenOption, source: SettingsSource) -> None:
    """A file: `kafka-brokers = …` and `[kafka] brokers = …` say the same, `port = …` and `[server] port = …` too."""
    import tomllib

    file = str(config.values[-1])
    try:
        document = tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        source.problems.append(f"{config.spelling}: can't read {file!r}: {error.strerror}")
        return
    except ValueError as error:
        source.problems.append(f"{config.spelling}: {file!r} is not valid TOML: {error}")
        return
    for key, value in document.items():
        option = source.catalogue.find(key.replace("_", "-"))
        if isinstance(value, dict) and (option is None or not option.takes_mapping):
            for inner, inner_value in value.items():
                _read_toml_key(file, key, inner, inner_value, source)
        else:
            _read_toml_key(file, "", key, value, source)


def _read_toml_key(file: str, table: str, key: str, value: object, source: SettingsSource) -> None:
    def spell(option: Option) -> str:
        return f"{_dotted(option) if table else option.name} in {file}"

    catalogue = source.catalogue
    spelling = f"{table}.{key} in {file}" if table else f"{key} in {file}"
    prefix, name = table.replace("_", "-"), key.replace("_", "-")
    full_name = f"{prefix}-{name}" if table else name
    option = catalogue.find(full_name)
    if option is None and table:
        option = catalogue.find(name)
        option = option if option is not None and option.table == prefix else None
    tables = {(known.table, known_name) for known in all_options() for known_name in known.names}
    if option is CONFIG_OPTION:
        source.problems.append(f"{spelling}: a configuration file can't name another one")
    elif option is not None and not option.positional:
        source.give_once(option, spelling, spell, value)
    elif not catalogue.is_for_others(full_name) and (prefix, name) not in tables:
        is_group = any(prefix == known_table for known_table, _ in tables)
        source.refuse(spelling, name if is_group else full_name, spell)


def _dotted(option: Option) -> str:
    """`kafka.brokers` for an option of a bus, `server.port` for another."""
    return f"{option.table}.{option.name.removeprefix(f'{option.table}-')}"


def as_format_option(option: Option) -> str:
    """`data-types` as Spark's users write it: `dataTypes`."""
    first, *others = option.name.split("-")
    return first + "".join(word.capitalize() for word in others)


def read_format_options(options: Mapping[str, str], source: SettingsSource) -> None:
    """What Spark's users give a format: `dataTypes`, `kafkaBrokers`; Spark makes no difference between upper and lower case."""
    source.catalogue.load_all()
    known = {name.replace("-", ""): option for option in source.catalogue.options for name in option.names}
    for name, value in options.items():
        option = known.get(name.lower().replace("-", "").replace("_", ""))
        if option is None:
            source.refuse(name, name, as_format_option)
        else:
            source.give_once(option, as_format_option(option), as_format_option, value)


def read_keywords(keywords: Mapping[str, Any], source: SettingsSource) -> None:
    """`api_key=…`, `kafka={"brokers": […]}`, `event_bus={"provider": "kafka", …}` or a list of such. None is not given.

    Names may be written as JavaScript does: `eventBus={"provider": "nats", "streamReplicas": 3}`.
    """
    for key, value in keywords.items():
        if value is None:
            continue
        if _name_of(key) == "event-bus":
            several = isinstance(value, list | tuple)
            for index, entry in enumerate(value if several else [value]):
                _read_provider(f"{key}[{index}]" if several else key, entry, source)
        elif key in BUS_MODULES:
            _read_bus(key, key, value, source)
        else:
            _read_keyword(key, value, source)


def _name_of(key: str) -> str:
    """`api_key` and `apiKey` are `api-key`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", key).lower().replace("_", "-")


def _read_keyword(key: str, value: object, source: SettingsSource) -> None:
    from difflib import get_close_matches

    option = source.catalogue.find(_name_of(key.rstrip("_")))
    if option is CONFIG_OPTION:
        source.problems.append(f"{key}: settings given in Python can't come from a file as well")
    elif option is not None:
        source.give_once(option, key, _as_keyword, value)
    elif groups := get_close_matches(key, [*BUS_MODULES, "event_bus"], 1):
        source.problems.append(f"{key} is not a setting: did you mean {groups[0]}?")
    else:
        source.refuse(key, key, _as_keyword)


def _read_provider(label: str, entry: object, source: SettingsSource) -> None:
    buses = (*BUS_MODULES, *foreign_buses())
    if not isinstance(entry, Mapping):
        expected = "expected a mapping with provider and the options of that bus"
        source.problems.append(f"{label}: {expected}, got a {type(entry).__name__}")
    elif (provider := entry.get("provider")) not in buses:
        got = "nothing" if provider is None else repr(provider)
        source.problems.append(f"{label}.provider: expected {one_of(buses)}, got {got}")
    else:
        try:
            source.catalogue.name_bus(provider)
        except SettingsError as error:
            source.problems.extend(error.problems)
            return
        _read_bus(provider, label, {key: value for key, value in entry.items() if key != "provider"}, source)


def _read_bus(bus: str, label: str, options: object, source: SettingsSource) -> None:
    if not isinstance(options, Mapping):
        source.problems.append(f"{label}: expected a mapping of the options of {bus}, got a {type(options).__name__}")
        return

    def spell(option: Option) -> str:
        return f"{label}.{option.name.removeprefix(f'{bus}-').replace('-', '_')}"

    for key, value in options.items():
        name = f"{bus}-{_name_of(str(key))}"
        option = source.catalogue.find(name)
        if option is None:
            source.refuse(f"{label}.{key}", name, spell)
        elif value is not None:
            source.give_once(option, f"{label}.{key}", spell, value)
