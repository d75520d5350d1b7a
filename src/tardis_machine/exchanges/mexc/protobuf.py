"""Protobuf messages, read as the JSON that the recorder has of them: numbers of 64 bits are text.

Invariant: bytes that are no message of the form given are a ValueError. Fields that the form does not name are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

__all__ = ["Field", "int32", "int64", "message", "messages", "read_message", "text"]

_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_FIXED_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_LONGEST_VARINT = 10


class Field(NamedTuple):
    """A field of a message; a form is made of them, by their numbers."""

    name: str
    wire_type: int
    read: Callable[[Any], Any]
    """What stands on the wire, bytes or a number, to JSON."""
    is_repeated: bool = False


def text(name: str) -> Field:
    """Text; bytes that are no UTF-8 are replaced."""
    return Field(name, _DELIMITED, _to_text)


def int32(name: str) -> Field:
    """A number."""
    return Field(name, _VARINT, partial(_signed, 32))


def int64(name: str) -> Field:
    """A number that is read as text, as a double may not hold it."""
    return Field(name, _VARINT, _to_number_text)


def message(name: str, form: Mapping[int, Field]) -> Field:
    """Another message."""
    return Field(name, _DELIMITED, partial(read_message, form))


def messages(name: str, form: Mapping[int, Field]) -> Field:
    """Any number of them; a list, which is empty where there is none."""
    return Field(name, _DELIMITED, partial(read_message, form), is_repeated=True)


def read_message(form: Mapping[int, Field], data: bytes) -> dict[str, Any]:
    """The fields that are there, by name."""
    found: dict[str, Any] = {field.name: [] for field in form.values() if field.is_repeated}
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, wire_type = tag >> 3, tag & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, place = _read_varint(data, place)
        else:
            if wire_type == _DELIMITED:
                size, place = _read_varint(data, place)
            elif wire_type in _FIXED_SIZES:
                size = _FIXED_SIZES[wire_type]
            else:
                raise ValueError(f"field {number} has the wire type {wire_type}, which Protobuf has no more")
            value = data[place : place + size]
            place += size
            if place > len(data):
                raise ValueError(f"field {number} has {size} bytes, but the message ends before them")
        field = form.get(number)
        if field is None:
            continue
        if wire_type != field.wire_type:
            raise ValueError(f"field {number}, {field.name}, has the wire type {wire_type}, not {field.wire_type}")
        if field.is_repeated:
            found[field.name].append(field.read(value))
        else:
            found[field.name] = field.read(value)
    return found


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    for byte in data[place : place + _LONGEST_VARINT]:
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("a number has no end")


def _to_text(data: bytes) -> str:
    return data.decode(errors="replace")


def _signed(bits: int, value: int) -> int:
    """Two's complement of the lowest bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _to_number_text(value: int) -> str:
    return str(_signed(64, value))
