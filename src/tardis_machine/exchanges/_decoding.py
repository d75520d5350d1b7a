"""Recorded lines, parsed: the clock of each, and its message.

Invariant: a message is what the JSON parser makes of it, but that rows may be left as text where nobody asks for more (`_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson

from ..recorded_line import clock_of, message_of

__all__ = ["decode_lines", "decode_messages"]


def decode_lines(lines: Sequence[bytes], with_rows: bool = False) -> tuple[Sequence[str | None], list[Any], Exception | None]:
    """Clocks, messages, and why what follows them is none; both are None for an empty line, which is a lost connection.

    `with_rows` allows rows to be left as text; only what was compiled does that, as it is a matter of speed.
    """
    clocks = [clock_of(line) if line else None for line in lines]
    messages: list[Any] = []
    for line in lines:
        try:
            messages.append(orjson.loads(message_of(line)) if line else None)
        except Exception as error:
            return clocks, messages, error
    return clocks, messages, None


def decode_messages(texts: Sequence[bytes]) -> tuple[list[Any], Exception | None]:
    """Messages that have no clock, and why what follows them is none."""
    messages: list[Any] = []
    try:
        messages.extend(map(orjson.loads, texts))
    except Exception as error:
        return messages, error
    return messages, None


# Where it was compiled, nearly all is parsed there; a message of unusual form is left to the parser above.
with suppress(ImportError):
    from ._decoding_compiled import *  # noqa: F403
