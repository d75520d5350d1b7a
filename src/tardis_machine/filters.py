"""What is asked of the history API: channels, and symbols of them.

Invariant: the optimized form is canonical, as its JSON is hashed into the cache path that other clients share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["Filter", "merge_filters", "optimize_filters", "to_compact_json"]


class Filter(msgspec.Struct, frozen=True):
    """One channel; without symbols, all of them."""

    channel: str
    symbols: Sequence[str] | UnsetType = UNSET


def merge_filters(filters: Iterable[Filter]) -> list[Filter]:
    """One filter a channel, in the order in which channels and symbols first occur; a filter that is alone stays as it is."""
    lists: dict[str, list[Sequence[str]]] = {}
    for item in filters:
        of_channel = lists.setdefault(item.channel, [])
        if item.symbols is not UNSET:
            of_channel.append(item.symbols)
    return [Filter(channel, _joined(of_channel)) for channel, of_channel in lists.items()]


def _joined(lists: Sequence[Sequence[str]]) -> list[str] | UnsetType:
    if not lists:
        return UNSET
    return list(lists[0]) if len(lists) == 1 else list(dict.fromkeys(chain.from_iterable(lists)))


def optimize_filters(filters: Iterable[Filter]) -> list[Filter]:
    """The canonical form: one filter a channel, symbols without repeats, both sorted by code unit."""
    return [
        Filter(item.channel, UNSET if item.symbols is UNSET else sorted(set(item.symbols), key=_code_units))
        for item in sorted(merge_filters(filters), key=lambda item: _code_units(item.channel))
    ]


def _code_units(text: str) -> bytes:
    """JavaScript sorts text by UTF-16 code unit."""
    return text.encode("utf-16-be", "surrogatepass")


def to_compact_json(filters: Sequence[Filter]) -> bytes:
    """The JSON that is sent upstream and hashed for the cache."""
    return msgspec.json.encode(filters)
