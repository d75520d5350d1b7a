"""Where a replay goes on live: which of what was heard live has been told by history.

Invariant: pure. Of what both told one is let through, and all that history has not told is: an event by its id, or by all that it says;
books and tickers, which come in order, by the exchange's time. A book goes on from what live data says it is at that point, so that it
is right wherever the seam lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import structs

from ..messages import BookChange, Disconnect, ErrorMessage, Liquidation, Message, Trade, parse_timestamp_us
from .current_state import CurrentState

__all__ = ["Seam"]

_Key = tuple[object, ...]


class _Last:
    """The latest of one type and symbol that history told, and all that it said of that instant."""

    __slots__ = ("instant_us", "messages")

    def __init__(self) -> None:
        self.instant_us = -1
        self.messages: list[Message] = []

    def take(self, instant_us: int, message: Message) -> None:
        if instant_us > self.instant_us:
            self.instant_us, self.messages = instant_us, []
        if instant_us == self.instant_us:
            self.messages.append(_said(message))

    def has(self, instant_us: int, message: Message) -> bool:
        return instant_us < self.instant_us or (instant_us == self.instant_us and _said(message) in self.messages)


class Seam:
    """Of one request. History is told to it from `since_us` on, a while before live data is heard."""

    def __init__(self, since_us: int) -> None:
        self._since_us = since_us
        # How often each event was told.
        self._events: Counter[_Key] = Counter()
        self._last: dict[tuple[type[Message], str], _Last] = {}
        # What live data says of books that history has told further than this.
        self._books: dict[str, CurrentState] = {}
        # Books that go on live.
        self._live_books: set[str] = set()

    def tell(self, messages: Iterable[Message]) -> None:
        """What history says next."""
        for message in messages:
            if isinstance(message, (Trade, Liquidation)):
                self._events[_key_of(message)] += 1
            elif not isinstance(message, (Disconnect, ErrorMessage)):
                last = self._last.setdefault((type(message), message.symbol), _Last())
                last.take(_instant_us(message), message)

    def sift(self, messages: Iterable[Message]) -> list[Message]:
        """Of what was heard next, that which history has not told."""
        out: list[Message] = []
        for message in messages:
            if isinstance(message, BookChange):
                if message.symbol not in self._live_books:
                    out += self._turn(message)
                    continue
            elif isinstance(message, (Trade, Liquidation)):
                if self._is_told(message):
                    continue
            elif not isinstance(message, (Disconnect, ErrorMessage)) and self._has(message):
                continue
            out.append(message)
        return out

    def _has(self, message: Message) -> bool:
        assert not isinstance(message, (Disconnect, ErrorMessage))
        last = self._last.get((type(message), message.symbol))
        return last is not None and last.has(_instant_us(message), message)

    def _is_told(self, event: Trade | Liquidation) -> bool:
        # Some exchanges begin with the last trades before the subscription.
        if _instant_us(event) < self._since_us:
            return True
        key = _key_of(event)
        if not self._events[key]:
            return False
        self._events[key] -= 1
        return True

    def _turn(self, change: BookChange) -> list[Message]:
        """What comes of a change of a book that has not gone on live: nothing, or the book as it is now and the change."""
        if self._has(change):
            self._books.setdefault(change.symbol, CurrentState()).take((change,))
            return []
        self._live_books.add(change.symbol)
        known = self._books.pop(change.symbol, None)
        return [change] if known is None or change.is_snapshot else [*known.books(), change]


def _key_of(event: Trade | Liquidation) -> _Key:
    identity = event.id if event.id else (event.timestamp, event.side, event.price, event.amount)
    return type(event), event.symbol, identity


def _instant_us(message: Message) -> int:
    """The exchange's time; ours where it says none."""
    return parse_timestamp_us(message.timestamp or message.local_timestamp)


def _said(message: Message) -> Message:
    """All but when we heard it."""
    return structs.replace(message, local_timestamp="")
