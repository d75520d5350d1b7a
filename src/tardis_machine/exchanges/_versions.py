"""Which mapper was in force when: an exchange's formats change, and history keeps what was sent at the time.

Invariant: before a version's end, strictly, that version; from it on, the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..messages import parse_timestamp_us
from ._contract import Exchange, Mapper, Version


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
