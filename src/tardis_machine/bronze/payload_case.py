"""Which case of `NormalizedEvent.payload` a message becomes, and how users may spell it.

Invariant: the names are those of the schema, in its order; routes, keys, headers and tables use no other spelling.
"""

from __future__ import annotations

import re

from ..messages import (
    UNSET,
    BookChange,
    BookSnapshot,
    BookTicker,
    DerivativeTicker,
    Disconnect,
    ErrorMessage,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
    TradeBar,
)

__all__ = ["PAYLOAD_CASES", "data_type_of", "parse_payload_case", "payload_case_of"]

PAYLOAD_CASES = (
    "trade",
    "book_change",
    "book_snapshot",
    "quote",
    "derivative_ticker",
    "liquidation",
    "option_summary",
    "book_ticker",
    "grouped_book_snapshot",
    "trade_bar",
    "error",
    "disconnect",
    "session_end",
)

_CASE_OF_TYPE: dict[type[object], str] = {
    Trade: "trade",
    BookChange: "book_change",
    DerivativeTicker: "derivative_ticker",
    Liquidation: "liquidation",
    OptionSummary: "option_summary",
    BookTicker: "book_ticker",
    TradeBar: "trade_bar",
    ErrorMessage: "error",
    Disconnect: "disconnect",
}

_CAMEL_CASES = {re.sub("_(.)", lambda found: found[1].upper(), case): case for case in PAYLOAD_CASES}


def payload_case_of(message: Message) -> str:
    """The case that carries the message."""
    if isinstance(message, BookSnapshot):
        if message.grouping is not UNSET:
            return "grouped_book_snapshot"
        # A name alone does not make a quote: what has not its shape would lose levels there.
        is_quote = message.name.startswith("quote") and message.depth == len(message.bids) == len(message.asks) == 1
        return "quote" if is_quote else "book_snapshot"
    return _CASE_OF_TYPE[type(message)]


def data_type_of(message: Message) -> str:
    """What a request calls it: `trade_bar_10ms` for what is computed, the message's type for the rest."""
    return message.name if isinstance(message, BookSnapshot | TradeBar) else _CASE_OF_TYPE[type(message)]


def parse_payload_case(text: str) -> str:
    """A case in the schema's spelling, from that or from camel case."""
    case = _CAMEL_CASES.get(text, text)
    if case not in PAYLOAD_CASES:
        raise ValueError(f"{text!r} is not a payload case; expected {', '.join(PAYLOAD_CASES)}")
    return case
