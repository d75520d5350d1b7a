"""What an option is: declared once, and known by its name to the command line, the environment, TOML files and keyword arguments.

Invariant: an option is plain data. Whatever it is given as, it is brought to text first and read by the one `parse`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

__all__ = ["Option", "by_group", "mask", "one_of", "secrets_in", "to_text"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Option:
    """One setting: `--kafka-brokers`, `TM_KAFKA_BROKERS`, TOML `kafka-brokers` or `[kafka] brokers`, `kafka={"brokers": …}`."""

    name: str
    """In lower case, words joined by hyphens, unique within a command."""
    help: str
    """One line, no full stop at its end."""
    group: str
    """In lower case: the heading it stands under in `--help` and the docs, and a TOML table (`[server] port`)."""
    parse: Callable[[str], Any] = str
    """Text to value; raises ValueError, whose message says what it expects: 'expected a whole number from 1 to 9'."""
    default: Any = None
    """A value, or a function of the environment that finds it when settings are resolved."""
    default_text: str | None = None
    """The default as the docs print it, where it depends on the machine."""
    choices: tuple[str, ...] | None = None
    """The only texts allowed; `parse` is then left alone."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """What people also type for a choice, in lower case; then neither matters whether it is."""
    secret: bool = False
    """Its value is never shown."""
    metavar: str = ""
    """Its value in `--help`; by default what its parser says."""
    aliases: tuple[str, ...] = ()
    """Other names it answers to, everywhere."""
    variables: tuple[str, ...] = ()
    """Further environment variables, asked after its own (`PORT`)."""
    repeated: bool = False
    """The flag may be given several times; its mappings merge."""
    bare: str = ""
    """What the flag stands for without a value; empty where it must have one."""
    required: bool = False
    """There is no default, and nothing goes without it."""
    positional: bool = False
    """An argument without a flag; it has no variable and no TOML key."""
    key: str = ""
    """What `Settings.for_bus` calls it, where that is not its name without the prefix."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", self.name):
            raise ValueError(f"an option's name is words in lower case joined by hyphens, not {self.name!r}")

    @property
    def flag(self) -> str:
        """As the command line writes it."""
        return self.metavar or self.name.upper() if self.positional else f"--{self.name}"

    @property
    def variable(self) -> str:
        """As the environment writes it."""
        return f"TM_{self.name.upper().replace('-', '_')}"

    @property
    def attribute(self) -> str:
        """As Python writes it; `from` is `from_`."""
        name = self.name.replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def is_switch(self) -> bool:
        """Given without a value: `--debug`, `--no-debug`."""
        return getattr(self.parse, "switch", False)

    @property
    def takes_mapping(self) -> bool:
        """Its value is names and values."""
        return bool(getattr(self.parse, "separator", ""))

    @property
    def table(self) -> str:
        """The TOML table it may stand in: the first word of its group."""
        return self.group.partition(" ")[0]

    @property
    def value_name(self) -> str:
        """What stands for its value in `--help`."""
        if self.is_switch:
            return ""
        if self.choices and not self.metavar:
            return "|".join(self.choices)
        name: str = self.metavar or getattr(self.parse, "metavar", "") or "TEXT"
        return f"[{name}]" if self.bare else name

    def read(self, text: str) -> Any:
        """The value of a text; raises ValueError that says what the option expects."""
        if self.choices is not None:
            chosen = text
            if self.synonyms:
                chosen = self.synonyms.get(text.lower(), text.lower())
            if chosen not in self.choices:
                raise ValueError(f"expected {self.takes}")
            return chosen
        return self.parse(text)

    @property
    def takes(self) -> str:
        """What messages say after 'expected'."""
        return one_of(self.choices) if self.choices else getattr(self.parse, "takes", "text")

    def text_of(self, value: object) -> str:
        """The text that `read` takes for a value from TOML or Python; TypeError names a type that it can't be."""
        if isinstance(value, Mapping) and not self.takes_mapping:
            raise TypeError("a mapping")
        if isinstance(value, list | tuple | set | frozenset) and not getattr(self.parse, "many", False):
            raise TypeError("a list")
        if isinstance(value, bool) and not (self.is_switch or self.bare):
            raise TypeError("true" if value else "false")
        return to_text(value, getattr(self.parse, "separator", ""))

    def show(self, value: object) -> str:
        """A value as it may be printed: secrets, and passwords inside it, masked."""
        if value is None:
            return ""
        writer = getattr(self.parse, "writer", None) or self.text_of
        return self.show_text(writer(value))

    def show_text(self, given: str) -> str:
        """What the user wrote as it may be printed, masked in the same way."""
        return "***" if self.secret else mask(given)

    def resolve_default(self, environ: Mapping[str, str]) -> Any:
        """The default's value, on this machine."""
        return self.default(environ) if callable(self.default) else self.default

    def describe_default(self) -> str:
        """The default as the docs print it, the same on every machine."""
        if self.default_text is not None:
            return self.default_text
        if self.default is None or callable(self.default):
            return ""
        return self.show(self.default)


def one_of(choices: tuple[str, ...]) -> str:
    """'a, b or c'."""
    *most, last = choices
    return f"{', '.join(most)} or {last}" if most else last


def by_group(options: Iterable[Option]) -> dict[str, list[Option]]:
    """Options under their headings, in their order."""
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(option)
    return groups


def to_text(value: object, separator: str = ":") -> str:
    """The text that parsers read back as this value. A mapping is `name:value,name:value`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        pairs = ((_quote(_scalar(name), separator), _quote(_scalar(item))) for name, item in value.items())
        return ",".join(f"{name}{separator}{item}" for name, item in pairs)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return ",".join(_quote(_scalar(item)) for item in items)
    raise TypeError(f"a {type(value).__name__}")


def _scalar(value: object) -> str:
    if isinstance(value, str | int | float | PurePath):
        return to_text(value)
    raise TypeError(f"a {type(value).__name__} inside another value")


def _quote(text: str, separator: str = "") -> str:
    needs_quotes = not text or text != text.strip() or text[0] in "\"'" or "," in text or (separator and separator in text)
    return '"' + text.replace('"', '""') + '"' if needs_quotes else text


# A password may hold any character, so a URL's is taken to reach up to the last @ before the next URL of a list.
_USER_INFO = re.compile(r"(?P<head>://(?:[^\s,/:@]*:)?)(?P<secret>(?:[^,]|,(?![a-z][a-z0-9+.-]*://))*)(?=@)", re.IGNORECASE)
_SENSITIVE = r"(?:password|passwd|secret|token|credentials?|authorization|signature|(?:api|access|account|private)[-_.]?key)"
_NAMED = re.compile(
    rf"""(?P<head>[\w.-]*{_SENSITIVE}[\w.-]*["']?\s*[:=]\s*)(?P<secret>"(?:[^"]|"")*"|'(?:[^']|'')*'|[^,&]+)""", re.IGNORECASE
)


def mask(text: str) -> str:
    """The text with what looks like a password replaced: in a URL, and beside a name such as `sasl.password`."""
    for pattern in (_USER_INFO, _NAMED):
        text = pattern.sub(lambda found: f"{found['head']}***", text)
    return text


def secrets_in(text: str) -> list[str]:
    """What `mask` replaces, also without quotes and as the reader of a URL would decode it."""
    from urllib.parse import unquote

    found = [match["secret"] for pattern in (_USER_INFO, _NAMED) for match in pattern.finditer(text)]
    bare = [secret[1:-1].replace(secret[0] * 2, secret[0]) for secret in found if secret[:1] in ('"', "'")]
    return [secret for secret in dict.fromkeys([*found, *bare, *map(unquote, found)]) if secret]
