"""The kinds of value that options take: each reads text, and says in one phrase what it takes.

Invariant: a parser raises nothing but ValueError, and `parse(to_text(value)) == value` for every value it returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = [
    "Refused",
    "ValueParser",
    "duration",
    "duration_ms",
    "host_names",
    "hosts",
    "integer",
    "items",
    "origins",
    "pairs",
    "path",
    "size_bytes",
    "switch",
    "text",
    "url",
]

T = TypeVar("T")


class Refused(ValueError):
    """Says what is wrong with a value, more exactly than what its parser expects."""


@dataclass(frozen=True)
class ValueParser(Generic[T]):
    """Callable that reads a text, with what `--help` and messages say of it."""

    reader: Callable[[str], T]
    takes: str
    """What messages say after 'expected'."""
    metavar: str
    writer: Callable[[T], str] | None = None
    """A value as a user would write it; the reverse of `reader`."""
    switch: bool = False
    many: bool = False
    """Takes a list too, or with a separator a mapping."""
    separator: str = ""

    def __call__(self, given: str) -> T:
        try:
            return self.reader(given)
        except Refused:
            raise
        except ValueError:
            raise ValueError(f"expected {self.takes}") from None


def text(takes: str = "a non-empty line of text", metavar: str = "TEXT", *, lines: bool = False) -> ValueParser[str]:
    """One line of text, or with `lines` any number of them."""

    def read(given: str) -> str:
        if not given.strip() or not (lines or given.isprintable()):
            raise ValueError
        return given

    return ValueParser(read, takes, metavar)


def integer(minimum: int, maximum: int | None = None, metavar: str = "N") -> ValueParser[int]:
    """A whole number within bounds, both included."""

    def read(given: str) -> int:
        value = int(given)
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError
        return value

    bounds = f"of {minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
    return ValueParser(read, f"a whole number {bounds}", metavar)


_BYTES_IN = {"b": 1} | {
    unit: base**power for power, letter in enumerate("kmgt", 1) for unit, base in ((f"{letter}ib", 1024), (f"{letter}b", 1000))
}


def size_bytes(minimum: int = 0, maximum: int | None = None) -> ValueParser[int]:
    """A number of bytes: 67108864, 64MiB, 1.5GB."""

    def read(given: str) -> int:
        value = _read_quantity(given, _BYTES_IN, "b")
        if value != int(value) or value < minimum or (maximum is not None and value > maximum):
            raise ValueError
        return int(value)

    bounds = {0: "", 1: " above 0"}.get(minimum, f" of {minimum} bytes or more")
    bounds = bounds if maximum is None else f" from {minimum} to {maximum} bytes"
    return ValueParser(read, f"a size{bounds}, such as 67108864, 64MiB or 4GiB", "SIZE", _write_size)


def _write_size(value: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % _BYTES_IN[unit.lower()] == 0:
            return f"{value // _BYTES_IN[unit.lower()]}{unit}"
    return str(value)


_MICROSECONDS_IN = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def duration(minimum: float = 0.0, maximum: float | None = None) -> ValueParser[float]:
    """Seconds: 5, 5s, 500ms, 1m."""

    def read(given: str) -> float:
        value = _read_quantity(given, _MICROSECONDS_IN, "s") / 1_000_000
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError
        return value

    bounds = _duration_bounds(minimum, maximum, "s")
    return ValueParser(read, f"a duration{bounds}, such as 5s, 500ms or 1m (a bare number is seconds)", "TIME", _write_seconds)


def _write_seconds(value: float) -> str:
    return f"{round(value * 1_000_000)}us" if 0 < value < 0.001 else f"{value!r}s".replace(".0s", "s")


def duration_ms(minimum: int = 0, maximum: int | None = None) -> ValueParser[int]:
    """Milliseconds: 250, 250ms, 5s."""

    def read(given: str) -> int:
        value = _read_quantity(given, _MICROSECONDS_IN, "ms") / 1_000
        if value != int(value) or value < minimum or (maximum is not None and value > maximum):
            raise ValueError
        return int(value)

    return ValueParser(read, f"whole milliseconds{_duration_bounds(minimum, maximum, 'ms')}, such as 250, 500ms or 5s", "MS")


def _duration_bounds(minimum: float, maximum: float | None, unit: str) -> str:
    if maximum is not None:
        return f" from {minimum:g}{unit} to {maximum:g}{unit}"
    return f" of {minimum:g}{unit} or more" if minimum else ""


def _read_quantity(given: str, units: Mapping[str, int], bare_unit: str) -> int | float:
    found = re.fullmatch(r"\s*(\d+(\.\d+)?)\s*([a-z]*)\s*", given, re.IGNORECASE | re.ASCII)
    unit = units.get(found[3].lower() or bare_unit) if found else None
    if found is None or unit is None:
        raise ValueError
    return (float(found[1]) if found[2] else int(found[1])) * unit


def _read_switch(given: str) -> bool:
    lowered = given.strip().lower()
    if lowered in ("true", "yes", "on", "1"):
        return True
    if lowered in ("false", "no", "off", "0"):
        return False
    raise ValueError


switch: ValueParser[bool] = ValueParser(_read_switch, "true or false", "", switch=True)
"""On or off; on the command line a flag without a value."""


def _read_path(given: str) -> Path:
    if not given.strip() or "\0" in given:
        raise ValueError
    return Path(given).expanduser()


path: ValueParser[Path] = ValueParser(_read_path, "a path", "PATH")
"""A file or folder; `~` is the home directory."""


def url(*schemes: str) -> ValueParser[str]:
    """A URL with a host and one of these schemes."""

    def read(given: str) -> str:
        from urllib.parse import urlsplit

        parts = urlsplit(given)
        if parts.scheme not in schemes or not parts.hostname or re.search(r"\s", given) or parts.port == 0:
            raise ValueError
        return given

    return ValueParser(read, f"a URL that starts with {' or '.join(f'{scheme}://' for scheme in schemes)} and has a host", "URL")


_HOST = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?", re.IGNORECASE | re.ASCII)


def hosts(default_port: int) -> ValueParser[tuple[str, ...]]:
    """`host:port`, separated by commas; a port left out is the default one."""

    def read_host(given: str) -> str:
        found = _HOST.fullmatch(given)
        port = int(found["port"] or default_port) if found else 0
        if found is None or not 0 < port < 65536:
            raise ValueError
        return f"{found['host']}:{port}"

    return _list_of(read_host, f"host:port, separated by commas (the port is {default_port} if left out)", "HOST:PORT,…")


def _read_origin(given: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(given.lower())
    is_bare = given.lower() == f"{parts.scheme}://{parts.netloc}" and "@" not in parts.netloc
    if given != "*" and not (parts.scheme in ("http", "https") and parts.hostname and is_bare and parts.port != 0):
        raise ValueError
    # A browser leaves out the port that goes without saying.
    usual = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return given.lower().removesuffix(usual) if usual else given


def _read_host_name(given: str) -> str:
    if given != "*" and not re.fullmatch(r"[\w-]+(\.[\w-]+)*", given, re.ASCII):
        raise ValueError
    return given.lower()


def items(item: Callable[[str], T], *, takes: str, metavar: str = "NAME,…") -> ValueParser[tuple[T, ...]]:
    """Items separated by commas, none of them empty; an item that holds a comma is quoted."""
    return _list_of(item, takes, metavar)


def _list_of(item: Callable[[str], T], takes: str, metavar: str) -> ValueParser[tuple[T, ...]]:
    return ValueParser(lambda given: tuple(item(part) for part in _split_items(given)), takes, metavar, many=True)


origins: ValueParser[tuple[str, ...]] = _list_of(
    _read_origin, "origins such as https://app.example.com, without a path, separated by commas; or *", "ORIGIN,…"
)
"""Where web pages come from, as a browser writes it."""

host_names: ValueParser[tuple[str, ...]] = _list_of(
    _read_host_name, "names of hosts without a port, separated by commas; or *", "NAME,…"
)
"""Names of hosts."""


def pairs(
    separator: str = ":",
    *,
    name: Callable[[str], str] = str,
    value: Callable[[str], Any] = str,
    takes: str | None = None,
) -> ValueParser[dict[str, Any]]:
    """`name:value,name:value`; a value (or a name) that holds a comma is quoted.

    With `=`, a comma that no `name=` follows is part of the value, so that `debug=broker,topic` needs no quotes.
    """

    def read(given: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for raw_name, raw_value in _split_pairs(given, separator):
            key = name(raw_name)
            if key in found:
                raise Refused(f"{key!r} is given twice")
            found[key] = value(raw_value)
        return found

    what = takes or f"name{separator}value pairs separated by commas (quote a value that holds a comma)"
    return ValueParser(read, what, f"NAME{separator}VALUE,…", many=True, separator=separator)


def _split_items(given: str) -> Iterator[str]:
    position = 0 if given.strip() else len(given) + 1
    while position <= len(given):
        item, was_quoted, position = _scan(given, position, ",")
        if not item and not was_quoted:
            raise ValueError
        yield item
        position += 1


def _split_pairs(given: str, separator: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0 if given.strip() else len(given) + 1
    may_continue = False
    while position <= len(given):
        name, was_quoted, position = _scan(given, position, f"{separator},")
        if position < len(given) and given[position] == separator and (name or was_quoted):
            value, was_quoted, position = _scan(given, position + 1, ",")
            found.append((name, value))
            may_continue = separator == "=" and not was_quoted
        elif may_continue and not was_quoted and (position == len(given) or given[position] == ","):
            found[-1] = (found[-1][0], f"{found[-1][1]},{name}")
        else:
            raise ValueError
        position += 1
    return found


def _scan(given: str, position: int, stops: str) -> tuple[str, bool, int]:
    """A quoted or bare piece of text, whether it was quoted, and where the stop after it (or the end) is."""
    start = _skip_spaces(given, position)
    quote = given[start : start + 1]
    if quote not in ('"', "'"):
        end = min((at for at in (given.find(stop, position) for stop in stops) if at >= 0), default=len(given))
        return given[position:end].strip(), False, end
    pieces: list[str] = []
    start += 1
    while True:
        end = given.find(quote, start)
        if end < 0:
            raise Refused("a quote is not closed")
        pieces.append(given[start:end])
        if given[end + 1 : end + 2] != quote:  # a doubled quote is a quote inside the value
            break
        pieces.append(quote)
        start = end + 2
    end = _skip_spaces(given, end + 1)
    if end < len(given) and given[end] not in stops:
        raise Refused("text follows a closing quote")
    return "".join(pieces), True, end


def _skip_spaces(given: str, position: int) -> int:
    while position < len(given) and given[position].isspace():
        position += 1
    return position
