from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.sample.seeded_random import RandomWalk, key_of, mix, unit


def test_hashes_are_the_same_on_every_platform() -> None:
    assert mix(1, 2, 3) == 0xD0734750FDE362B3
    assert key_of("bitmex|XBTUSD") == 0xC346BD95_02EA70E9
    assert RandomWalk(7, 0.001).at(1_700_000_000).hex() == "-0x1.5873050691f7cp-3"


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_a_hash_as_a_number_is_in_range_and_takes_order_to_heart(one: int, other: int) -> None:
    assert 0.0 <= unit(one, other) < 1.0
    assert one == other or mix(one, other) != mix(other, one)


@given(st.integers(0, 4_000_000_000))
def test_a_path_has_no_jumps(second: int) -> None:
    path = RandomWalk(3, 0.00004)
    assert abs(path.at(second + 1) - path.at(second)) < 0.0005


def test_a_path_moves() -> None:
    path = RandomWalk(3, 0.00004)
    values = [path.at(1_700_000_000 + day * 86_400) for day in range(60)]
    assert 0.005 < max(values) - min(values) < 0.8
