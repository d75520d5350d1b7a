"""How much a mapper or a feed remembers when symbols and prices never come to an end.

Invariant: what is counted is what can be reached from the object's own fields, but for functions, classes and modules.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.exchanges.fuzz import raws_of, transcript_of
from tests.exchanges.transcript import Section

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_WORD = re.compile(r"[A-Za-z]+|\d+")


def held_by(owner: object) -> int:
    """How many values an object holds, in all that it is made of."""
    seen: set[int] = set()
    waiting: list[Any] = [owner]
    count = 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type) or callable(value):
            continue
        seen.add(id(value))
        count += 1
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            waiting += value
        elif not isinstance(value, str | bytes | int | float):
            waiting += vars(value).values() if hasattr(value, "__dict__") else ()
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            waiting += [getattr(value, name) for name in slots if hasattr(value, name)]
    return count


def names_of(section: Section) -> list[str]:
    """What its messages and its filters call a symbol, or what is in its place."""
    names: dict[str, None] = dict.fromkeys(section.symbols)
    for step in section.steps:
        if step.verb == "FILTER":
            names.update(dict.fromkeys(step.text.split()[1:]))
        elif step.verb == "=" and isinstance(symbol := step.fields.get("symbol"), str):
            names[symbol] = None
    names.pop("[]", None)
    return [name for name in names if name]


def never_the_same(section: Section, exchange: str) -> Callable[[int], Iterator[bytes]]:
    """The messages of a section by round: in each, symbols and channel ids that were not there before, and other prices."""
    names = sorted(names_of(section), key=len, reverse=True)
    found = re.compile("|".join(re.escape(name) for name in names) or r"\Z.", re.IGNORECASE)
    messages = []
    for raw in raws_of(section):
        try:
            messages.append(json.loads(raw))
        except ValueError:
            continue

    def rename(number: int) -> Callable[[re.Match[str]], str]:
        # The first word alone: what follows may be a date or a strike. Letters stand for digits, so that it stays a word.
        letters = "".join(chr(ord("A") + int(digit)) for digit in str(number))
        return lambda match: _WORD.sub(
            lambda word: f"{word[0]}{number if word[0].isdigit() else letters.lower() if word[0].islower() else letters}",
            match[0],
            count=1,
        )

    def moved(value: Any, number: int, name: Callable[[re.Match[str]], str]) -> Any:
        if isinstance(value, dict):
            return {found.sub(name, key): moved(item, number, name) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item, number, name) for item in value]
        if isinstance(value, str):
            if found.search(value):
                return found.sub(name, value)
            return f"{value}{number}" if _NUMBER.fullmatch(value) and "." in value else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value + number if is_number else value

    def of_round(number: int) -> Iterator[bytes]:
        name = rename(number)
        for message in messages:
            yield json.dumps(moved(message, number, name)).encode()

    return of_round


def history_sections(exchange: str) -> Sequence[Section]:
    return transcript_of(exchange).of("history")
