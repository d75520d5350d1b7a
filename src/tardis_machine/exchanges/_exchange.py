"""What an exchange is: its channels, its mappers by data type and date, how its clients subscribe, and its live feed.

Formats change, and history keeps what was sent at the time. Invariant: before a version's end, strictly, that version is in force; from
it on, the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..filters import Filter
from ..messages import parse_timestamp_us
from ._feed import LiveApi
from ._mapper import DATA_TYPES, DataType, Json, Mapper, MapperFactory

SubscriptionReader = Callable[[Json, int], Sequence[Filter] | None]
"""(a client's frame, date of the replay in us) to the filters it asks for; None when it is no subscription."""


@dataclass(frozen=True)
class Version:
    """The mapper in force until a date; `until` None is the one in force now."""

    factory: MapperFactory
    until: str | None = None


@dataclass(frozen=True)
class About:
    """What a reader of the documentation wants to know of an exchange, and its messages do not tell."""

    books: str
    """How deep its books are, and how they come."""
    note: str
    """What is peculiar, in a sentence."""
    closed: str = ""
    """When it closed, as far as is known: a day, a month or a year, as `2022-11`."""


@dataclass(frozen=True)
class Exchange:
    """One exchange as the history API names it."""

    name: str
    docs: str
    channels: tuple[str, ...]
    mappers: Mapping[str, Sequence[Version]]
    """Versions of each mapper, oldest first, the last without an end."""
    subscriptions: SubscriptionReader
    live: LiveApi | None = None
    """None: it has no live data (any more)."""
    prepare: Callable[[bytes], bytes] | None = None
    """What is done to the text of recorded messages before it is parsed, such as `long_numbers_as_text`; a feed does so itself."""
    about: About = About("", "")
    """Of the family's `ABOUT`, which the registry adds."""
    subscribes_to_all: bool = False
    """Whether a subscription without filters asks for all channels; elsewhere it names only what was not recorded."""

    @property
    def has_history_only(self) -> str:
        """Why it has no live data, as a sentence; empty where it has."""
        if self.live is not None:
            return ""
        closed = self.about.closed
        when = f" closed {'on' if len(closed) == len('2022-11-11') else 'in'} {closed}:" if closed else " has no live data:"
        return f"{self.name}{when} it has history only"

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """What it can be normalized to, in mapper order."""
        return tuple(kind for kind in DATA_TYPES if kind in self.mappers)


def _end_us(version: Version) -> int | None:
    return None if version.until is None else parse_timestamp_us(version.until)


def validate(exchange: Exchange) -> None:
    """Refuses an exchange that is declared wrongly: the ValueError names it, the field, and all that is wrong."""
    problems = [*_channel_problems(exchange), *_mapper_problems(exchange)]
    if problems:
        raise ValueError("; ".join(f"{exchange.name}: {problem}" for problem in problems))


def _channel_problems(exchange: Exchange) -> Iterator[str]:
    for channel in sorted({channel for channel in exchange.channels if exchange.channels.count(channel) > 1}):
        yield f"channels has {channel!r} more than once"


def _mapper_problems(exchange: Exchange) -> Iterator[str]:
    for data_type, versions in exchange.mappers.items():
        field = f"mappers[{data_type!r}]"
        if data_type not in DATA_TYPES:
            yield f"{field} is of no data type; there are {', '.join(DATA_TYPES)}"
        yield from (f"{field} {problem}" for problem in _version_problems(versions))
        for mapper in [version.factory(exchange.name, False) for version in versions]:
            reader = f"{field} has {type(mapper).__name__}, which"
            for channel in mapper.channels:
                if channel not in exchange.channels:
                    yield f"{reader} reads {channel!r}, and that is not in channels"
            for channel in mapper.spellings:
                if channel not in mapper.channels:
                    yield f"{reader} has a spelling for {channel!r}, and does not read that"


def _version_problems(versions: Sequence[Version]) -> Iterator[str]:
    if not versions:
        yield "has no version"
        return
    if versions[-1].until is not None:
        yield f"ends on {versions[-1].until}: the last version has no end"
    ends: list[int] = []
    for version in versions[:-1]:
        try:
            ends.append(parse_timestamp_us(version.until or ""))
        except (ValueError, IndexError):
            yield f"has a version until {version.until!r}; all but the last end on a date like 2021-12-23T00:00:00.000Z"
    if ends != sorted(set(ends)):
        yield "has versions out of order: each ends later than the one before it"


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
