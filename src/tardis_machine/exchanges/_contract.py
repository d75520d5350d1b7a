"""What an exchange is: its channels, its mappers by data type and date, and how its clients subscribe.

Invariant: everything here is pure. Bytes and decoded JSON come in, messages and frames go out; no clock, socket or environment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..filters import Filter
from ..messages import UNSET, Message

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

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        self.exchange = exchange
        self.realtime = realtime

    def spell_symbol(self, symbol: str) -> str:
        """The symbol as the exchange's channels spell it; a user may have typed it in any case."""
        return symbol.upper()

    def filters(self, symbols: Sequence[str] | None) -> list[Filter]:
        """What to ask upstream for; `None` means every symbol."""
        spelled = UNSET if symbols is None else [self.spell_symbol(symbol) for symbol in symbols]
        return [Filter(channel, spelled) for channel in self.channels]

    @abstractmethod
    def accepts(self, message: Json) -> bool:
        """Whether `map` is to see this message. Called for every message of every channel: keep it to a look-up or two."""

    @abstractmethod
    def map(self, message: Json, local_timestamp: str) -> Iterable[Message]:
        """The normalized messages of a raw one, in order."""


MapperFactory = Callable[[str, bool], Mapper]
"""(exchange, realtime) to a fresh mapper; a mapper class is one."""

Decoder = Callable[[bytes], Json]
"""Raw recorded bytes to the message that mappers see."""

SubscriptionReader = Callable[[Json, int], Sequence[Filter] | None]
"""(a client's frame, date of the replay in us) to the filters it asks for; None when it is no subscription."""


@dataclass(frozen=True)
class Version:
    """The mapper in force until a date; `until` None is the one in force now."""

    factory: MapperFactory
    until: str | None = None


@dataclass(frozen=True)
class Exchange:
    """One exchange as the history API names it."""

    name: str
    docs: str
    channels: tuple[str, ...]
    mappers: Mapping[str, Sequence[Version]]
    """Versions of each mapper, oldest first, the last without an end."""
    subscriptions: SubscriptionReader
    decode: Decoder | None = None
    """None: plain JSON."""
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """What it can be normalized to, in mapper order."""
        return tuple(kind for kind in DATA_TYPES if kind in self.mappers)
