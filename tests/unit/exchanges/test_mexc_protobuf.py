"""Protobuf as MEXC sends it, against what Protobuf's encoder writes."""

from __future__ import annotations

import pytest

from tardis_machine.bronze.wire import delimited, tag, varint
from tardis_machine.exchanges.mexc.protobuf import int32, int64, message, messages, read_message, text

LEVEL = {1: text("price")}
FORM = {1: text("name"), 2: int32("kind"), 3: int64("time"), 4: message("best", LEVEL), 300: messages("levels", LEVEL)}


def number(field: int, value: int) -> bytes:
    return tag(field, is_varint=True) + varint(value)


def content(field: int, value: bytes) -> bytes:
    return tag(field) + delimited(value)


def test_each_kind_of_field() -> None:
    level = content(1, b"1.5")
    data = content(1, "é".encode()) + number(2, 7) + number(3, 1790000000050) + content(4, level) + content(300, level) * 2
    assert read_message(FORM, data) == {
        "name": "é",
        "kind": 7,
        "time": "1790000000050",
        "best": {"price": "1.5"},
        "levels": [{"price": "1.5"}, {"price": "1.5"}],
    }


def test_what_is_absent_is_absent_and_what_may_be_repeated_is_empty() -> None:
    assert read_message(FORM, b"") == {"levels": []}


@pytest.mark.parametrize("value", [0, 127, 128, 2**31 - 1, -1, -(2**31)])
def test_numbers_of_32_bits(value: int) -> None:
    assert read_message(FORM, number(2, value))["kind"] == value


@pytest.mark.parametrize("value", [0, 2**53 + 1, 2**63 - 1, -1, -(2**63)])
def test_numbers_of_64_bits_keep_every_digit(value: int) -> None:
    assert read_message(FORM, number(3, value))["time"] == str(value)


def test_unknown_fields_are_skipped_and_the_last_of_several_counts() -> None:
    unknown = number(9, 2**60) + content(9, b"abc") + bytes([9 << 3 | 1]) + bytes(8) + bytes([9 << 3 | 5]) + bytes(4)
    assert read_message(FORM, content(1, b"a") + unknown + content(1, b"b")) == {"name": "b", "levels": []}


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert read_message(FORM, content(1, b"a\xff"))["name"] == "a\ufffd"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (content(1, b"abc")[:-1], "field 1 has 3 bytes, but the message ends before them"),
        (bytes([9 << 3 | 1]) + bytes(7), "field 9 has 8 bytes, but the message ends before them"),
        (tag(2, is_varint=True), "a number has no end"),
        (tag(2, is_varint=True) + b"\xff" * 11, "a number has no end"),
        (bytes([9 << 3 | 3]), "field 9 has the wire type 3"),
        (number(1, 5), "field 1, name, has the wire type 0, not 2"),
        (content(2, b"5"), "field 2, kind, has the wire type 2, not 0"),
        (content(4, content(1, b"abc")[:-1]), "field 1 has 3 bytes"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_message(FORM, data)
