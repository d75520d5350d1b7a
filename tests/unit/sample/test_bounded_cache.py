from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.sample.bounded_cache import BoundedCache


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 120))))
def test_the_bound_holds_and_the_newest_is_there(puts: list[tuple[int, int]]) -> None:
    kept: BoundedCache[int] = BoundedCache(100)
    sizes: dict[int, int] = {}
    for key, size in puts:
        kept.put(key, size, size)
        sizes[key] = size
        assert kept.get(key) == size
        held = {each: value for each in range(10) if (value := kept.get(each)) is not None}
        assert kept.total_bytes == sum(held.values())
        assert kept.total_bytes <= 100 or held == {key: size}
        assert all(sizes[each] == value for each, value in held.items())


def test_what_was_used_longest_ago_goes_first() -> None:
    kept: BoundedCache[str] = BoundedCache(2)
    kept.put("a", "A", 1)
    kept.put("b", "B", 1)
    assert kept.get("a") == "A"
    kept.put("c", "C", 1)
    assert kept.get("b") is None
    assert kept.get("a") == "A"
