"""What a stream has told so far, as far as it still holds: order books, and the last ticker of each kind.

Invariant: who starts with these messages and takes all that come after them has the same books as who heard everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..messages import BookChange, BookLevel, BookTicker, DerivativeTicker, Disconnect, Message, OptionSummary

__all__ = ["CurrentState"]

_Told: TypeAlias = DerivativeTicker | OptionSummary | BookTicker


class CurrentState:
    """Of one connection; a lost one leaves nothing that holds."""

    def __init__(self) -> None:
        self._books: dict[str, _Book] = {}
        # The last of each type and symbol.
        self._tickers: dict[tuple[type[_Told], str], _Told] = {}

    def take(self, messages: Iterable[Message]) -> None:
        """Takes what came next."""
        for message in messages:
            if isinstance(message, BookChange):
                if message.is_snapshot:
                    self._books[message.symbol] = _Book()
                elif message.symbol not in self._books:
                    continue
                self._books[message.symbol].take(message)
            elif isinstance(message, (DerivativeTicker, OptionSummary, BookTicker)):
                self._tickers[type(message), message.symbol] = message
            elif isinstance(message, Disconnect):
                self._books.clear()
                self._tickers.clear()

    def books(self) -> list[BookChange]:
        """Each book as one snapshot, at the times of its last change."""
        return [book.to_snapshot() for book in self._books.values()]

    def messages(self) -> Sequence[Message]:
        """All that a newcomer has to know."""
        return [*self.books(), *self._tickers.values()]


class _Book:
    """The levels of one book by price, as its last changes gave them."""

    __slots__ = ("_asks", "_bids", "_last")

    def __init__(self) -> None:
        self._bids: dict[object, BookLevel] = {}
        self._asks: dict[object, BookLevel] = {}
        self._last: BookChange

    def take(self, change: BookChange) -> None:
        for side, levels in ((self._bids, change.bids), (self._asks, change.asks)):
            for level in levels:
                if level.amount != 0:
                    side[level.price] = level
                else:
                    side.pop(level.price, None)
        self._last = change

    def to_snapshot(self) -> BookChange:
        last = self._last
        bids, asks = (
            [level for level in side.values() if isinstance(level.price, (int, float))] for side in (self._bids, self._asks)
        )
        bids.sort(key=_price, reverse=True)
        asks.sort(key=_price)
        return BookChange(last.symbol, last.exchange, True, bids, asks, last.timestamp, last.local_timestamp)


def _price(level: BookLevel) -> float:
    return level.price  # type: ignore[return-value]
