"""What a stream has told so far, as far as it still holds: order books, and the last ticker of each kind.

Invariant: who starts with these messages and takes all that come after them has the same books as who heard everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, get_args

from msgspec import structs

from ..computed.order_book import OrderBook
from ..messages import BookChange, BookTicker, DerivativeTicker, Disconnect, Message, OptionSummary

__all__ = ["CurrentState"]

_Told: TypeAlias = DerivativeTicker | OptionSummary | BookTicker
_TOLD = frozenset(get_args(_Told))


class CurrentState:
    """Of one connection; a lost one leaves nothing that holds."""

    def __init__(self) -> None:
        # Of each symbol, and the last change of each.
        self._books: dict[str, OrderBook] = {}
        self._changes: dict[str, BookChange] = {}
        # The last of each type and symbol.
        self._tickers: dict[tuple[type[_Told], str], _Told] = {}

    def take(self, messages: Iterable[Message]) -> None:
        """Takes what came next."""
        for message in messages:
            if type(message) is BookChange:
                symbol = message.symbol
                book = self._books.get(symbol)
                if book is None:
                    if not message.is_snapshot:
                        continue
                    # What one who heard everything knows: crossed levels too.
                    book = self._books[symbol] = OrderBook(remove_crossed=False)
                book.update(message)
                self._changes[symbol] = message
            # Of a trade, that it is an instance of none of these takes longer to find out than all else that is done with it.
            elif type(message) in _TOLD and isinstance(message, _Told):
                self._tickers[type(message), message.symbol] = message
            elif type(message) is Disconnect:
                self._books.clear()
                self._changes.clear()
                self._tickers.clear()

    def books(self) -> list[BookChange]:
        """Each book as one snapshot, at the times of its last change."""
        return [
            structs.replace(self._changes[symbol], is_snapshot=True, bids=list(book.bids()), asks=list(book.asks()))
            for symbol, book in self._books.items()
        ]

    def messages(self) -> Sequence[Message]:
        """All that a newcomer has to know."""
        return [*self.books(), *self._tickers.values()]
