"""How a channel spells symbols: what users type, as the upstream API wants it.

Invariant: pure. A family says once how its channels spell symbols, and names those that do otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..messages import UNSET, Absent

__all__ = ["AS_TYPED", "EMPTY_LIST", "LOWER_CASE", "NO_SYMBOLS", "UPPER_CASE", "Spelling"]


@dataclass(frozen=True)
class Spelling:
    """What a channel is asked for, given the symbols that a user asks for.

    >>> index = Spelling(lambda option: option.split("-")[0], unique=True)
    >>> index.to_symbols(["BTC-240628-60000-C", "BTC-240628-60000-P", "ETH-240628-4000-C"])
    ['BTC', 'ETH']
    """

    spell: Callable[[str], str | None] | None
    """A symbol as the channel spells it, None to leave it out. No function: the channel is never asked by symbol."""
    unique: bool = False
    """Whether two symbols that are spelled alike are asked for once; if not, twice, as the reference does."""
    every_symbol: Sequence[str] | Absent = UNSET
    """What asks for every symbol: no list, or an empty one where the reference sends that."""

    def to_symbols(self, asked: Sequence[str] | None) -> Sequence[str] | Absent:
        """The symbols of a filter; None asks for every symbol."""
        if asked is None or self.spell is None:
            return self.every_symbol
        spelled = [symbol for symbol in map(self.spell, asked) if symbol is not None]
        return list(dict.fromkeys(spelled)) if self.unique else spelled


UPPER_CASE = Spelling(str.upper)
LOWER_CASE = Spelling(str.lower)
AS_TYPED = Spelling(str)
NO_SYMBOLS = Spelling(None)
"""The channel is one for all symbols: its filter has none."""
EMPTY_LIST = Spelling(None, every_symbol=())
"""The same, where the reference asks with an empty list."""
