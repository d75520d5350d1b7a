"""Data types as a request names them: what to normalize for them, what to compute, and what to show.

Invariant: a name that nothing answers to is an error that says what does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import OptionsError
from ..messages import BookChange, BookTicker, DerivativeTicker, Liquidation, Message, OptionSummary, Trade
from .book_snapshot import BookSnapshots
from .contract import Computable
from .trade_bar import TradeBars

__all__ = ["DataTypes", "parse_data_types"]

COMPUTABLES: tuple[type[Computable], ...] = (TradeBars, BookSnapshots)
"""Every computed type."""

NORMALIZED: dict[str, type[Message]] = {
    "trade": Trade,
    "book_change": BookChange,
    "derivative_ticker": DerivativeTicker,
    "liquidation": Liquidation,
    "option_summary": OptionSummary,
    "book_ticker": BookTicker,
}
"""Every normalized type, in the order in which mappers see a message."""

_LONGEST_NAME = 200
_SHOWN_LENGTH = 80
"""Of a name that is none, in its error."""


@dataclass(frozen=True)
class DataTypes:
    """What was asked for."""

    normalizers: tuple[str, ...]
    """The data types to normalize, asked for or computed from, in mapper order."""

    computables: tuple[Computable, ...]
    """The computed ones, in the order asked for."""

    shown: frozenset[type[Message]]
    """The types of message that were asked for; others only served to compute them."""

    @property
    def weight(self) -> int:
        """About what one source message causes at most, in levels of a book; 0 where nothing is computed."""
        return sum(item.weight for item in self.computables)


def parse_data_types(data_types: Sequence[str | Computable]) -> DataTypes:
    """Reads names such as a request holds; a Computable stands for itself. OptionsError for a name that is none.

    >>> parse_data_types(["quote", "derivative_ticker"]).normalizers
    ('book_change', 'derivative_ticker')
    """
    asked = [_parse(item) if isinstance(item, str) else item for item in data_types]
    computables = tuple(item for item in asked if isinstance(item, Computable))
    plain = {item for item in asked if isinstance(item, type)}
    sources = {item.SOURCE for item in computables}
    return DataTypes(
        normalizers=tuple(name for name, message_type in NORMALIZED.items() if message_type in plain | sources),
        computables=computables,
        shown=frozenset(plain | {item.RESULT for item in computables}),
    )


def _parse(name: str) -> type[Message] | Computable:
    message_type = NORMALIZED.get(name)
    if message_type is not None:
        return message_type
    for kind in COMPUTABLES if len(name) <= _LONGEST_NAME else ():
        try:
            computable = kind.parse(name)
        except ValueError:
            raise _unknown(name, kind.FORMS) from None
        if computable is not None:
            return computable
    forms = [form for kind in COMPUTABLES for form in kind.FORMS]
    near = get_close_matches(name[:_SHOWN_LENGTH], [*NORMALIZED, *forms], 1)
    raise _unknown(name, near or [*NORMALIZED, *forms])


def _unknown(name: str, known: Sequence[str]) -> OptionsError:
    given = name if len(name) <= _SHOWN_LENGTH else f"{name[:_SHOWN_LENGTH]}..."
    return OptionsError(f"dataTypes: unknown data type '{given}'; expected {', '.join(known)}", "dataTypes")
