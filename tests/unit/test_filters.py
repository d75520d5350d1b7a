"""Filters are merged as the reference does it, in time that grows with their number and not with its square."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tardis_machine.filters import Filter, merge_filters

FILTERS = st.lists(st.builds(Filter, st.sampled_from("ab"), st.just(UNSET) | st.lists(st.sampled_from("xyz"), max_size=3)))


def merge_plainly(filters: list[Filter]) -> list[Filter]:
    """One filter after the other, each joined with all that came before it."""
    merged: dict[str, list[str] | None] = {}
    for item in filters:
        known = merged.setdefault(item.channel, None)
        if item.symbols is not UNSET:
            merged[item.channel] = list(item.symbols) if known is None else list(dict.fromkeys((*known, *item.symbols)))
    return [Filter(channel, UNSET if symbols is None else symbols) for channel, symbols in merged.items()]


@given(FILTERS)
def test_merged_is_what_the_plain_way_gives(filters: list[Filter]) -> None:
    assert merge_filters(filters) == merge_plainly(filters)


class Counted(str):
    """A symbol that counts how often it is looked at."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()


def test_each_symbol_is_looked_at_once_or_twice() -> None:
    count = 2_000
    filters = [Filter("trade", [Counted(number)]) for number in range(count)]
    [merged] = merge_filters(filters)
    assert merged.symbols == [str(number) for number in range(count)]
    assert count <= Counted.looks <= 2 * count
