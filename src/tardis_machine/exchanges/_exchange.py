"""What an exchange is: its channels, its mappers by data type and date, how its clients subscribe, and its live feed.

Formats change, and history keeps what was sent at the time. Invariant: before a version's end, strictly, that version is in force; from
it on, the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..filters import Filter
from ..messages import parse_timestamp_us
from ._feed import Live
from ._mapper import DATA_TYPES, DataType, Json, Mapper, MapperFactory

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
    live: Live | None = None
    """None: it has no live data (any more)."""

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """What it can be normalized to, in mapper order."""
        return tuple(kind for kind in DATA_TYPES if kind in self.mappers)


def _end_us(version: Version) -> int | None:
    return None if version.until is None else parse_timestamp_us(version.until)


def validate(exchange: Exchange) -> None:
    """Refuses an exchange whose versions are not in order, or end."""
    for data_type, versions in exchange.mappers.items():
        ends = [_end_us(version) for version in versions]
        if not ends or ends[-1] is not None or None in ends[:-1] or ends[:-1] != sorted(set(ends[:-1])):  # type: ignore[type-var]
            raise ValueError(f"{exchange.name} {data_type}: versions must end in order, and the last must not end")


def version_at(versions: Sequence[Version], at_us: int | None) -> Version:
    """The version in force at an instant; None is now."""
    if at_us is not None:
        for version in versions[:-1]:
            if at_us < _end_us(version):  # type: ignore[operator]
                return version
    return versions[-1]


def make_mappers(exchange: Exchange, data_types: Iterable[str], at_us: int | None, realtime: bool = False) -> list[Mapper]:
    """Fresh mappers, one for each data type, in the order given."""
    return [version_at(exchange.mappers[kind], at_us).factory(exchange.name, realtime) for kind in data_types]


def switch_dates_us(exchange: Exchange, data_types: Iterable[str]) -> list[int]:
    """The instants at which a mapper of these types is replaced; a replay across one is split there."""
    ends = {_end_us(version) for kind in data_types for version in exchange.mappers[kind][:-1]}
    return sorted(end for end in ends if end is not None)
