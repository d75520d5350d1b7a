"""Messages to mappers, many at a time: what there is to do for each of millions of lines, whatever exchange they are of.

Invariant: messages reach the mappers one after the other, in the mappers' order, and what came of them stays in `out` whatever
happens afterwards. What is passed on from an exchange without being read, as a symbol is, has its kind in `out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..brief import brief
from ..messages import (
    UNSET,
    BookChange,
    BookTicker,
    DerivativeTicker,
    JsNumber,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
    js_number,
)
from ._mapper import Json

__all__ = ["Call", "check_form", "feed_messages"]

Call = tuple[Callable[[Json], bool], Callable[[Json, str], Iterable[Message]]]
"""A mapper's two methods."""


_Kinds = frozenset[type[Any]]

_TEXTS: _Kinds = frozenset((str, type(None), type(UNSET)))
_IDS: _Kinds = _TEXTS | {int, JsNumber}
_FLAGS: _Kinds = frozenset((bool, type(None), type(UNSET)))
_KINDS: Mapping[type[Any], Mapping[str, _Kinds]] = {
    Trade: {"symbol": _TEXTS, "id": _IDS, "side": _TEXTS},
    BookChange: {"symbol": _TEXTS, "is_snapshot": _FLAGS},
    DerivativeTicker: {"symbol": _TEXTS},
    Liquidation: {"symbol": _TEXTS, "id": _IDS, "side": _TEXTS},
    OptionSummary: {"symbol": _TEXTS, "underlying_index": _TEXTS},
    BookTicker: {"symbol": _TEXTS},
}


def check_form(message: Message) -> None:
    """TypeError where a list, an object or the like stands for a name or a flag: no client, table or bus could read it.

    An id may be a number, and is then made to print as in JavaScript.
    """
    for name, kinds in _KINDS.get(type(message), {}).items():
        value = getattr(message, name)
        if name == "id" and type(value) is float:
            setattr(message, name, js_number(value))
        elif type(value) not in kinds:
            raise TypeError(f"{name} is {brief(value)}, which it can't be")


def feed_messages(
    calls: Sequence[Call], clocks: Sequence[str | None], messages: list[Json], start: int, out: list[Message]
) -> tuple[int, Exception | None]:
    """Maps messages from `start` on to the next lost connection: where it stopped, and what a mapper raised there, if one did."""
    place = start
    append = out.append
    try:
        for place in range(start, len(messages)):
            clock = clocks[place]
            if clock is None:
                return place, None
            message = messages[place]
            for accepts, to_messages in calls:
                if accepts(message):
                    for made in to_messages(message, clock):
                        check_form(made)
                        append(made)
    except Exception as error:
        return place, error
    return len(messages), None


# Where it was compiled, this is done there.
with suppress(ImportError):
    from ._feeding_compiled import *  # noqa: F403
