"""NATS subjects: what a name may be, how values are escaped into one, and which subjects a stream takes.

Invariant: an escaped value is one token, and no two values have the same escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...options import admitted_payloads

__all__ = ["any_covers", "check_subject", "covers", "escape_token", "producible_subjects", "without_covered"]

# Dots part tokens, * and > are wildcards, % begins an escape; the rest of printable ASCII stands for itself.
_ESCAPED = re.compile(r"[^!-~]|[%*.>]")
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}")
_EMPTY = "%"


def escape_token(value: str) -> str:
    """A value as (part of) one token: `%2E` for a dot, the bytes of UTF-8 for what is not ASCII, a bare `%` for nothing at all."""
    if not value:
        return _EMPTY
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), value)


def check_subject(subject: str) -> str | None:
    """What is wrong with a subject that is to be published to; None where nothing is."""
    tokens = subject.split(".")
    if not all(tokens):
        return "has an empty token"
    if not all("!" <= character <= "~" for character in subject):
        return "has a space or a character that is not ASCII"
    if any(token in ("*", ">") for token in tokens):
        return "has a wildcard"
    if subject.startswith("$"):
        return "begins with $, which is reserved for the server"
    return None


def producible_subjects(options: Mapping[str, Any]) -> list[str]:
    """Every subject that can come of these options, once; one of a template as a pattern, `*` for a token with a placeholder."""
    template = options.get("destination_template")
    pattern = None if template is None else ".".join("*" if "{{" in t else t for t in _split_template(template))
    cases = admitted_payloads(options.get("include_payloads"))
    routing = options.get("routing") or {}
    found = []
    for case in cases:
        by_template = None if case == "session_end" else pattern
        found.append(routing.get(case) or by_template or options["subject"])
    if options.get("dead_letter_destination"):
        found.append(options["dead_letter_destination"])
    return list(dict.fromkeys(found))


def _split_template(template: str) -> list[str]:
    """Its tokens; a dot inside a placeholder (`{{meta.desk}}`) parts nothing."""
    return _PLACEHOLDER.sub(lambda found: found[0].replace(".", "\0"), template).split(".")


def covers(pattern: str, subject: str) -> bool:
    """Whether a pattern takes everything that another pattern, or a subject, stands for."""
    wide, narrow = pattern.split("."), subject.split(".")
    for index, part in enumerate(wide):
        if part == ">":
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == ">" or part not in ("*", narrow[index]):
            return False
    return len(wide) == len(narrow)


def without_covered(patterns: Sequence[str]) -> list[str]:
    """Those that no other one takes in: what a stream can be made with, as its subjects must not overlap."""
    return [one for one in patterns if not any(other != one and covers(other, one) for other in patterns)]


def any_covers(patterns: Iterable[str], subject: str) -> bool:
    """Whether one of them does."""
    return any(covers(pattern, subject) for pattern in patterns)
