"""Protobuf's wire format by hand, for what a Bronze event is made of.

Invariant: the bytes are those that the Protobuf library would write (shortest varints, no zeros in fields without presence), so
that hashes of them are stable.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import TypeAlias

from ..messages import parse_timestamp_us, to_json

__all__ = ["Instant", "decimal", "delimited", "encode_timestamp", "tag", "to_instant", "varint"]

_ONE_BYTE = [bytes((n,)) for n in range(128)]
"""Varints of one byte: nearly all tags and lengths."""


def varint(value: int) -> bytes:
    """A varint; a negative number takes ten bytes, as two's complement of 64 bits."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(number: int, *, is_varint: bool = False) -> bytes:
    """The key in front of a field: length-delimited unless told otherwise."""
    return varint(number << 3 | (0 if is_varint else 2))


def delimited(data: bytes) -> bytes:
    """The value of a length-delimited field."""
    return varint(len(data)) + data


def decimal(value: float) -> bytes | None:
    """A number as decimal text without exponent; None where it prints as null. Its digits are those of its JSON form."""
    text = to_json(value)
    if text == b"null":
        return None
    return format(Decimal(text.decode()), "f").encode() if b"e" in text else text


Instant: TypeAlias = tuple[bytes, int, bool]
"""A google.protobuf.Timestamp, length first; microseconds since 1970; whether its text has three fraction digits, not six."""


def to_instant(text: str) -> Instant:
    """A timestamp in the form that messages hold."""
    us = parse_timestamp_us(text)
    return encode_timestamp(us), us, text[-5] == "."


_SECONDS, _NANOSECONDS = tag(1, is_varint=True), tag(2, is_varint=True)


def encode_timestamp(us: int) -> bytes:
    """A google.protobuf.Timestamp, length first."""
    seconds, fraction_us = divmod(us, 1_000_000)
    fields = _SECONDS + varint(seconds) if seconds else b""
    if fraction_us:
        fields += _NANOSECONDS + varint(fraction_us * 1000)
    return delimited(fields)


# Where it was compiled, what is frequent is done there; numbers of more than 64 bits are left to the functions above.
with suppress(ImportError):
    from .wire_compiled import *  # noqa: F403
