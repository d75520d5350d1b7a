"""Compiled or not, fields are written the same, and as the Protobuf library writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.internal.encoder import _SignedVarintEncoder
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.bronze.wire") for load in (import_compiled, import_as_python))
BOTH = pytest.mark.parametrize("wire", [compiled, python], ids=["compiled", "python"])


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__


def test_what_is_compiled_is_what_is_used() -> None:
    for name in ("delimited", "encode_timestamp", "varint"):
        assert getattr(compiled, name).__module__ == "tardis_machine.bronze.wire_compiled"
        assert getattr(python, name).__module__ == "tardis_machine.bronze.wire"


@given(st.one_of(st.integers(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 1 << 15), st.booleans()))
@example(2**63)
@example(2**64)
@example(-(2**63) - 1)
def test_numbers_of_any_size(value: int) -> None:
    assert compiled.varint(value) == python.varint(value)
    assert compiled.encode_timestamp(value) == python.encode_timestamp(value)


@given(st.integers(-(2**63), 2**63 - 1))
@BOTH
def test_a_varint_is_that_of_the_library(wire: Any, value: int) -> None:
    written: list[bytes] = []
    _SignedVarintEncoder()(written.append, value, False)
    assert wire.varint(value) == b"".join(written)


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
@example(0)
@example(-1)
@example(-1_000_000)
@example(1_000_000)
@BOTH
def test_a_timestamp_is_that_of_the_library(wire: Any, us: int) -> None:
    stamp = Timestamp()
    stamp.FromMicroseconds(us)
    assert wire.encode_timestamp(us) == wire.delimited(stamp.SerializeToString())


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300, 70_000])
def test_what_is_delimited_has_its_length_in_front(length: int) -> None:
    assert compiled.delimited(b"x" * length) == python.delimited(b"x" * length) == python.varint(length) + b"x" * length


@pytest.mark.parametrize("value", [None, "7", 1.5])
def test_what_can_not_be_written_is_refused(value: Any) -> None:
    for name in ("delimited", "encode_timestamp", "varint"):
        assert outcome(getattr(compiled, name), value) == outcome(getattr(python, name), value)
