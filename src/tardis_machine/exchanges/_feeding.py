"""Recorded lines to mappers, many at a time: what there is to do for each of millions of lines, whatever exchange they are of.

Invariant: messages reach the mappers one after the other, in the mappers' order, and what came of them stays in `out` whatever
happens afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ..messages import Message
from ..recorded_line import KEY_LENGTH, MESSAGE_START
from ._mapper import Json

__all__ = ["Call", "feed_messages", "join_lines"]

Call = tuple[Callable[[Json], bool], Callable[[Json, str], Iterable[Message]]]
"""A mapper's two methods."""


def join_lines(lines: Sequence[bytes]) -> tuple[list[str], bytes] | None:
    """Clocks, and the messages as one JSON array: one call of the parser takes a fifth less. None where a connection was lost."""
    if b"" in lines:
        return None
    # All at once takes half the time.
    clocks = (b"Z\n".join([line[:KEY_LENGTH] for line in lines]) + b"Z").decode().split("\n")
    return clocks, b"[" + b",".join([line[MESSAGE_START:] for line in lines]) + b"]"


def feed_messages(
    calls: Sequence[Call], clocks: Sequence[str | None], messages: list[Json], start: int, out: list[Message]
) -> tuple[int, Exception | None]:
    """Maps messages from `start` on to the next lost connection: where it stopped, and what a mapper raised there, if one did."""
    place = start
    extend = out.extend
    try:
        for place in range(start, len(messages)):
            clock = clocks[place]
            if clock is None:
                return place, None
            message = messages[place]
            for accepts, to_messages in calls:
                if accepts(message):
                    extend(to_messages(message, clock))
    except Exception as error:
        return place, error
    return len(messages), None


# Where it was compiled, this is done there; lines of unusual form are left to the functions above.
with suppress(ImportError):
    from ._feeding_compiled import *  # noqa: F403
