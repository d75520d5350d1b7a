"""Compiled or not, the same messages become the same bytes; what runs as Python says what is right."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import Thread
from types import MemberDescriptorType
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.bronze.event import Event
from tardis_machine.messages import UNSET, BookChange, BookLevel, BookSnapshot, ErrorMessage, Message, Trade, to_timestamp
from tests.compiled_or_not import import_as_python, import_compiled
from tests.strategies import book_changes, messages, trades

MODULES = [f"tardis_machine.bronze.{name}" for name in ("wire", "payloads", "sealing", "encoding")]
_, payloads, sealing, compiled = import_compiled(*MODULES)
_, payloads_as_python, sealing_as_python, python = import_as_python(*MODULES)

LOCAL = "2019-06-01T00:00:28.619123Z"
OBJECT_OR_ERROR = 16
"""CPython's T_OBJECT_EX: a pointer to an object; where there is none, the attribute is missing."""
STAMP = "2019-06-01T00:00:28.600Z"
PRICES = [0, 1, -7, 8000.5, 1e-7, 1.5e22, 2**53 + 1, 10**19, float("nan"), float("inf"), True, None, UNSET, "8000.5", "1,2"]
TIMES = [
    STAMP,
    "2019-06-01T00:00:28.000Z",
    "2019-06-01T00:00:28.000000Z",
    "2019-06-01T00:00:28.000001Z",
    "2019-06-01T00:00:28.002097Z",
    "2019-06-01T00:00:28.268436Z",
    "2019-06-01T00:00:28.999999Z",
    "1970-01-01T00:00:00.000Z",
    "1970-01-01T00:00:00.500Z",
    "1969-12-31T23:59:59.999Z",
    "0001-01-01T00:00:00.000Z",
    "9999-12-31T23:59:59.999999Z",
    "+010000-01-01T00:00:00.000Z",
    "-000001-01-01T00:00:00.000000Z",
    None,
]


def run(
    module: Any, batches: Sequence[Sequence[Message]], book_changes: Literal["message", "level"] = "message"
) -> tuple[list[Event], list[tuple[bytes, int, int]]] | str:
    """The events of all batches, and what those of each stream come to; where a message can't be encoded, what is said of it."""
    bronze = module.BronzeEncoder(session_id="s", origin="replay", meta={"a": "b"}, book_changes=book_changes, clock_us=lambda: 7)
    try:
        bundles = [bronze.encode(batch) for batch in batches]
        return [event for bundle in bundles for event in bundle], [
            (columns.digest, columns.size_bytes, columns.largest_bytes) for bundle in bundles for columns in bundle.columns
        ]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def assert_same(*batches: Sequence[Message]) -> None:
    for mode in ("message", "level"):
        assert run(compiled, batches, mode) == run(python, batches, mode)  # type: ignore[arg-type]


def trade(**fields: Any) -> Trade:
    plain = {"symbol": "XBTUSD", "exchange": "bitmex", "id": "7", "price": 8000.5, "amount": 1, "side": "buy"}
    return Trade(**{**plain, "timestamp": STAMP, "local_timestamp": LOCAL, **fields})


def change(bids: list[Any], asks: list[Any], **fields: Any) -> BookChange:
    plain = {"symbol": "XBTUSD", "exchange": "bitmex", "is_snapshot": False, "timestamp": STAMP, "local_timestamp": LOCAL}
    return BookChange(**{**plain, "bids": bids, "asks": asks, **fields})


def test_what_is_compiled_is_what_is_used() -> None:
    compiled_ones = [payloads.encode_levels, sealing.EventNumbering, sealing.StreamSealer, sealing.seal_messages]
    assert {one.__module__.rpartition(".")[2] for one in compiled_ones} == {"payloads_compiled", "sealing_compiled"}
    others = (payloads_as_python.encode_levels, sealing_as_python.StreamSealer, python.seal_messages)
    assert {one.__module__.rpartition(".")[2] for one in others} == {"payloads", "sealing"}


class MemberDefinition(ctypes.Structure):
    """CPython's PyMemberDef, up to what is read of it."""

    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t))


class MemberDescriptor(ctypes.Structure):
    """CPython's PyMemberDescrObject."""

    _fields_ = (
        ("reference_count", ctypes.c_ssize_t),
        ("object_type", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("qualified_name", ctypes.c_void_p),
        ("member", ctypes.POINTER(MemberDefinition)),
    )


@pytest.mark.parametrize("kind", [Trade, BookChange, BookLevel])
def test_fields_are_where_compiled_modules_read_them(kind: type[msgspec.Struct]) -> None:
    """An object of msgspec keeps a field as a pointer at the offset that its class tells: `_declarations.pxd` relies on it."""
    values = [object() for _ in kind.__struct_fields__]
    made = kind(*values)
    for name, value in zip(kind.__struct_fields__, values, strict=True):
        descriptor = vars(kind)[name]
        assert type(descriptor) is MemberDescriptorType
        member = MemberDescriptor.from_address(id(descriptor)).member.contents
        assert (member.name, member.type) == (name.encode(), OBJECT_OR_ERROR)
        assert ctypes.c_void_p.from_address(id(made) + member.offset).value == id(value)
        delattr(made, name)
        assert ctypes.c_void_p.from_address(id(made) + member.offset).value is None


@settings(max_examples=300)
@given(stream=st.lists(st.one_of(trades(), book_changes(), messages()), max_size=20), cut=st.integers(0, 20))
def test_any_messages(stream: list[Message], cut: int) -> None:
    assert_same(stream[:cut], stream[cut:], [*stream, *stream])


@pytest.mark.parametrize("price", PRICES)
def test_numbers(price: Any) -> None:
    """Plain ones around it are written as if it were not there."""
    level = BookLevel(price, 1)
    assert_same([trade(), trade(price=price), trade(amount=price), trade(amount=3)])
    assert_same([change([level], []), change([BookLevel(1, 2)], [BookLevel(3, price), level]), trade(), change([], [level])])


@pytest.mark.parametrize("text", TIMES)
def test_times(text: str | None) -> None:
    assert_same([trade(timestamp=text), change([BookLevel(1, 2)], [], timestamp=text), trade(timestamp=STAMP)])
    if text is not None:
        assert_same([trade(), trade(local_timestamp=text), trade(local_timestamp=text), trade()])


@pytest.mark.parametrize(
    "text", ["", "2019", "2019-06-01T00:00:28.6x0Z", "2019-06-01T00:00:28.60012xZ", "2019-06-01T00:00:28,600Z", 5]
)
def test_what_is_no_time_is_refused_alike(text: Any) -> None:
    assert_same([trade(), trade(timestamp=text)])
    assert_same([trade(), trade(local_timestamp=text)])


@pytest.mark.parametrize(
    "trade_id", ["", "7" * 511, "7" * 512, "7" * 70_000, "é", "\U0001f600", "\x00", UNSET, None, 12, 1.5, "\ud800"]
)
def test_ids(trade_id: Any) -> None:
    assert_same([trade(id=trade_id), trade()])


@pytest.mark.parametrize("side", ["buy", "sell", "unknown", "Buy", None, ["buy"]])
def test_sides(side: Any) -> None:
    assert_same([trade(), trade(side=side)])


@pytest.mark.parametrize("flag", [True, False, None, 1])
def test_flags(flag: Any) -> None:
    assert_same([change([], [], is_snapshot=flag), change([BookLevel(1, 2)], [], is_snapshot=flag)])


@pytest.mark.parametrize("count", [0, 1, 2, 40, 41, 5_000])
def test_many_levels(count: int) -> None:
    levels = [BookLevel(8000 + n / 2, n) for n in range(count)]
    assert_same([change(levels, []), change([], levels), change(levels, levels), change([*levels, None], [])])


@pytest.mark.parametrize("odd", [*PRICES, BookLevel(UNSET, UNSET)])
def test_levels_of_snapshots(odd: Any) -> None:
    level = odd if isinstance(odd, BookLevel) else BookLevel(8000.5, odd)
    for levels in ([], [level], [BookLevel(n, n / 4) for n in range(50)], [BookLevel(1, 2), level, None]):
        for bids, asks in ((levels, []), ([BookLevel(1, 2)], levels)):
            assert_same([BookSnapshot("XBTUSD", "bitmex", "book", 50, 0, UNSET, bids, asks, STAMP, LOCAL)])


def test_equal_events_and_clocks_that_step_back() -> None:
    times = [to_timestamp(1_559_347_200_000_000 + step) for step in (5, 5, 7, 7, 7, 5, 5, 9, 0, 9)]
    stream = [trade(local_timestamp=at) for at in times]
    assert_same(stream, stream)
    assert_same(*[[message] for message in stream * 3])


def test_sequences_grow_over_their_bytes() -> None:
    assert_same([trade()] * 130, [trade(), change([], [])] * 16_400)


def test_what_is_left_out_is_not_encoded() -> None:
    for module in (compiled, python):
        bronze = module.BronzeEncoder(session_id="s", origin="replay", include=frozenset({"error"}))
        wrong = trade(timestamp="no time at all")
        assert [event.stream.payload_case for event in bronze.encode([wrong, ErrorMessage("", LOCAL, "x")])] == ["error"]
        assert len(bronze.encode([])) == 0


def test_a_message_that_can_not_be_encoded_leaves_the_others_in_step() -> None:
    found = []
    for module in (compiled, python):
        bronze = module.BronzeEncoder(session_id="s", origin="replay", clock_us=lambda: 7)
        with pytest.raises(Exception, match="side"):
            bronze.encode([trade(), trade(side="none")])
        found.append(list(bronze.encode([trade(), trade(symbol="ETHUSD")])))
    assert found[0] == found[1]


def test_encoders_of_several_threads_do_not_meet() -> None:
    # An id that is no text is written by Python, which lets other threads run in between.
    stream = [trade(symbol=f"S{n % 7}", id=12 if n % 3 else "7", amount=n) for n in range(2_000)]
    alone, _ = run(compiled, [stream])
    found: list[object] = []

    def encode() -> None:
        bronze = compiled.BronzeEncoder(session_id="s", origin="replay", meta={"a": "b"}, clock_us=lambda: 7)
        for _ in range(10):
            bronze.encode(stream)
        fresh = compiled.BronzeEncoder(session_id="s", origin="replay", meta={"a": "b"}, clock_us=lambda: 7)
        found.append(list(fresh.encode(stream)))

    threads = [Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4
