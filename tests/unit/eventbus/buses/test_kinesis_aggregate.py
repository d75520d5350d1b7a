from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.eventbus.buses.kinesis.aggregate import aggregate_bytes, split_aggregate, to_aggregate

# Field by field, as the format's schema has them: key table, then records of key index and data.
MESSAGE = bytes.fromhex("0a01 6b  1a07 0800 1a03 616263  1a05 0800 1a01 64")
DIGEST = bytes.fromhex("7874ca7fafdd844a1aff9650fbe8c6bd")


def test_the_bytes_are_those_of_the_format() -> None:
    assert to_aggregate("k", [b"abc", b"d"]) == bytes.fromhex("f3899ac2") + MESSAGE + DIGEST


@given(st.text(max_size=20), st.lists(st.binary(max_size=300), min_size=1, max_size=8))
def test_what_was_put_together_comes_apart(key: str, values: list[bytes]) -> None:
    data = to_aggregate(key, values)
    assert split_aggregate(data) == values
    assert len(data) <= aggregate_bytes(key, sum(map(len, values)), len(values))


@given(st.binary(max_size=100))
def test_what_is_no_aggregate_is_left_alone(data: bytes) -> None:
    assert split_aggregate(data) == [data]


def test_a_damaged_aggregate_is_left_alone() -> None:
    data = bytearray(to_aggregate("k", [b"abc"]))
    data[8] ^= 1
    assert split_aggregate(bytes(data)) == [bytes(data)]
