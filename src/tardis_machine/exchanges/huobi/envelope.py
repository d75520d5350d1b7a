"""What all of Huobi's messages share: a channel that names the symbol, JSON numbers, levels that are pairs, ids of many digits.

Invariant: pure. Numbers that need no conversion come out as they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ...messages import UNSET, BookLevel, Side
from .._long_numbers import quoted
from .._mapper import Json
from .._parsing import levels_as_sent, verbatim
from .._rows import is_array
from .._spelling import Spelling

__all__ = ["MARKET_SPELLING", "sides_of", "symbol_of", "to_levels", "to_side", "with_long_ids"]


def _spell(symbol: str) -> str:
    """Derivatives have `_` or `-` in their names, and those are in upper case."""
    return symbol.upper() if "_" in symbol or "-" in symbol else symbol.lower()


MARKET_SPELLING = Spelling(_spell)
"""Of trades, books and the best of books."""


@lru_cache(20_000)
def symbol_of(channel: str) -> str:
    """`market.btcusdt.mbp.400` is of BTCUSDT."""
    return channel.split(".")[1].upper()


def sides_of(book: Json) -> tuple[Sequence[Any], Sequence[Any]]:
    """Bids and asks; empty where they are missing, or are no list."""
    bids, asks = book.get("bids"), book.get("asks")
    return bids if is_array(bids) else (), asks if is_array(asks) else ()


def to_levels(pairs: Iterable[Sequence[Any]]) -> list[BookLevel]:
    """`[[price, amount], …]` of JSON numbers."""
    try:
        return levels_as_sent(pairs)
    except IndexError:
        columns = [(*pair, UNSET, UNSET)[:2] for pair in pairs]
        return [BookLevel(verbatim(price), verbatim(amount)) for price, amount in columns]


def to_side(direction: Any) -> Side:
    """Whose side: `buy` and `sell` are written as we do."""
    return "buy" if direction == "buy" else "sell" if direction == "sell" else "unknown"


# Of `id` and of `tradeId`; other fields of trades that end so are no numbers. One search for both, as each trade pays for it.
_LONG_ID = re.compile(rb'(d"\s*:\s*)(-?\d{19,})(?![\d.eE])')
_LONG_TRADE_ID = re.compile(rb'(tradeId"\s*:\s*)(-?\d{19,})(?![\d.eE])')


def with_long_ids(text: bytes) -> bytes:
    """The text of a message with quotes around ids of trades that are too long for the JSON parser: spot's have 23 digits."""
    if b".trade.detail" not in text:
        return text
    # Who has a `tradeId` is not known by its `id`, which then may be rounded.
    has_trade_ids = text.count(b'"tradeId"') >= text.count(b'"direction"')
    return (_LONG_TRADE_ID if has_trade_ids else _LONG_ID).sub(quoted, text)
