"""What of a live stream is published: each data type once, but for what another stream publishes.

Invariant: the first event of a book is a snapshot, whenever it is that this stream begins to publish it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from ...messages import UNSET, BookChange, BookSnapshot, Disconnect, Message, TradeBar
from ...pipeline.topics import LiveTopic
from .contract import PublishSpec

if TYPE_CHECKING:
    from ...bronze.event import Event

__all__ = ["CONTROL", "LivePublication"]

CONTROL = frozenset({"disconnect", "error"})
"""The data types of what is told about connections; no client needs to ask for them."""


class LivePublication:
    """The events of one stream's session."""

    def __init__(self, publish: PublishSpec) -> None:
        self._encoder = publish.make_encoder()
        # Data types of every symbol, and data types of a symbol.
        self._withheld_types: frozenset[str] = frozenset()
        self._withheld: frozenset[tuple[str, str]] = frozenset()
        # What is published unless it is withheld.
        self._data_types: frozenset[str] = frozenset()

    def events(self, messages: Sequence[Message], data_types: frozenset[str] | None) -> Sequence[Event]:
        """The events of messages, but for what is withheld, and only of some data types; None: of all."""
        if data_types is not None:
            messages = [message for message in messages if _data_type_of(message) in data_types]
        if self._withheld or self._withheld_types:
            messages = [part for message in messages if (part := self._without_withheld(message)) is not None]
        return self._encoder.encode(messages) if messages else ()

    def _without_withheld(self, message: Message) -> Message | None:
        if not isinstance(message, Disconnect) or message.symbols is UNSET:
            return None if self._is_withheld(message) else message
        # A lost connection ends the books of its symbols for whoever reads the bus: those of another stream go on.
        symbols = [symbol for symbol in message.symbols if self._is_any_published(symbol)]
        return structs.replace(message, symbols=symbols) if symbols else None

    def _is_any_published(self, symbol: str) -> bool:
        data_types = self._data_types - CONTROL - self._withheld_types
        return any((data_type, symbol) not in self._withheld for data_type in data_types)

    def set_data_types(self, data_types: frozenset[str], books: Sequence[BookChange]) -> Sequence[Event]:
        """From now on these are published, all together; the events that this begins with."""
        was_published, self._data_types = "book_change" in self._data_types, data_types
        return () if was_published else self._begin(books)

    def withhold(self, topics: Iterable[LiveTopic], books: Sequence[BookChange]) -> Sequence[Event]:
        """From now on another stream publishes these, and no others; the events that this begins with."""
        withheld = [book for book in books if self._is_withheld(book)]
        topics = list(topics)
        self._withheld_types = frozenset(topic.data_type for topic in topics if not topic.names)
        self._withheld = frozenset((topic.data_type, name) for topic in topics for name in topic.names)
        return self._begin(withheld)

    def _begin(self, books: Sequence[BookChange]) -> Sequence[Event]:
        return self.events(books, self._data_types)

    def _is_withheld(self, message: Message) -> bool:
        data_type = _data_type_of(message)
        return data_type in self._withheld_types or (data_type, getattr(message, "symbol", "")) in self._withheld


def _data_type_of(message: Message) -> str:
    """As requests name it."""
    if isinstance(message, (BookSnapshot, TradeBar)):
        return message.name
    tag = type(message).__struct_config__.tag
    assert isinstance(tag, str)
    return tag
