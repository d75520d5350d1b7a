"""What a mapper is: it turns one exchange's raw messages into one type of normalized message.

Invariant: pure. Decoded JSON comes in, messages go out; no clock, socket or environment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from ..filters import Filter
from ..messages import Message
from ._spelling import UPPER_CASE, Spelling

Json = Any
DataType = Literal["trade", "book_change", "derivative_ticker", "liquidation", "option_summary", "book_ticker"]

DATA_TYPES: tuple[DataType, ...] = (
    "trade",
    "book_change",
    "derivative_ticker",
    "liquidation",
    "option_summary",
    "book_ticker",
)
"""The order in which mappers see a message, and so the order of what they emit."""


class Mapper(ABC):
    """Turns one exchange's raw messages into one type of normalized message; may hold state, does no I/O.

    One is made for each connection of the recorder: a lost connection ends it, and a new one starts empty. A mapper never sees
    messages of two connections. It may raise on a message that it can't take; what it yielded stands, and it sees the next.
    """

    channels: tuple[str, ...]
    """Upstream channels it reads; `filters` asks for them. Of the class, or of the instance where they depend on the exchange."""

    spelling: ClassVar[Spelling] = UPPER_CASE
    """How its channels spell symbols; a user may have typed them in any case."""

    spellings: ClassVar[Mapping[str, Spelling]] = MappingProxyType({})
    """The channels that spell them otherwise: an index by its own name, a stream that has no symbols."""

    unread: bytes = b""
    """How recorded messages begin that its channels bring and no mapper takes: they need not be parsed. Empty: there are none."""

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        self.exchange = exchange
        self.realtime = realtime

    def filters(self, symbols: Sequence[str] | None) -> list[Filter]:
        """What to ask upstream for, a filter for each channel; None asks for every symbol."""
        return [Filter(name, self.spellings.get(name, self.spelling).to_symbols(symbols)) for name in self.channels]

    @abstractmethod
    def accepts(self, message: Json) -> bool:
        """Whether `map` is to see this message. Called for every message of every channel: keep it to a look-up or two."""

    @abstractmethod
    def map(self, message: Json, local_timestamp: str) -> Iterable[Message]:
        """The normalized messages of a raw one, in order."""


MapperFactory = Callable[[str, bool], Mapper]
"""(exchange, realtime) to a fresh mapper; a mapper class is one."""
