"""A value that somebody sent, as it stands in a sentence about it.

Invariant: no more of it is looked at than is shown, however deep or wide it is.
"""

from __future__ import annotations

from reprlib import Repr

__all__ = ["brief"]

_SHOWN_LENGTH = 80

_repr = Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 3, _SHOWN_LENGTH, _SHOWN_LENGTH


def brief(value: object) -> str:
    """What its sender may recognise; None is `nothing`.

    >>> brief(["trade", 5, None]), brief("x" * 1000)[:10]
    ("['trade', 5, None]", "'xxxxxxxxx")
    """
    text = "nothing" if value is None else _repr.repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."
