"""Protobuf's wire format by hand, for what a Bronze event is made of.

Invariant: the bytes are those that the Protobuf library would write (shortest varints, no zeros in fields without presence), so
that hashes of them are stable. By hand it takes half the time of building the message field by field.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

from ..messages import parse_timestamp_us, to_json

__all__ = ["SHORT", "Instant", "decimal", "decimals", "delimited", "encode_timestamp", "heads", "tag", "to_instant", "varint"]

SHORT = [bytes((n,)) for n in range(128)]
"""Varints of one byte: nearly all lengths."""
_MORE = [bytes((n | 128,)) for n in range(128)]


def varint(value: int) -> bytes:
    """A varint; a negative number takes ten bytes, as two's complement of 64 bits."""
    if value < 0:
        value &= 0xFFFF_FFFF_FFFF_FFFF
    if value < 1 << 7:
        return SHORT[value]
    if value < 1 << 14:
        return _MORE[value & 127] + SHORT[value >> 7]
    return _MORE[value & 127] + _MORE[value >> 7 & 127] + varint(value >> 14)


def tag(number: int, *, is_varint: bool = False) -> bytes:
    """The key in front of a field: length-delimited unless told otherwise."""
    return varint(number << 3 | (0 if is_varint else 2))


@cache
def heads(number: int) -> Sequence[bytes]:
    """Tag and length of a length-delimited field, by the length; lengths from 512 on are not among them."""
    return [tag(number) + varint(length) for length in range(512)]


def delimited(data: bytes) -> bytes:
    """The value of a length-delimited field."""
    return varint(len(data)) + data


# Letters as integers: `in` finds one of those in bytes ten times faster than it finds bytes.
_OF_EXPONENT, _OF_NULL = b"en"


def decimals(values: Sequence[Any]) -> list[bytes]:
    """Numbers as decimal text in plain notation, all at once; TypeError where one is absent or prints as null.

    The text is that of the JSON form, but for its exponents: the same digits in both.
    """
    text = to_json(values)
    if _OF_NULL in text:
        raise TypeError("null has no decimal text")
    texts = text[1:-1].split(b",")
    return [_plain(number) for number in texts] if _OF_EXPONENT in text else texts


def decimal(value: float) -> bytes | None:
    """One number as decimal text in plain notation; None where it prints as null."""
    text = to_json(value)
    if _OF_NULL in text:
        return None
    return _plain(text) if _OF_EXPONENT in text else text


def _plain(text: bytes) -> bytes:
    return format(Decimal(text.decode()), "f").encode()


Instant: TypeAlias = tuple[bytes, int, bool]
"""A google.protobuf.Timestamp, length first; microseconds since 1970; whether its text has three fraction digits, not six."""


class _Seconds(dict[str, tuple[Sequence[bytes], int]]):
    """The whole seconds of a timestamp's text, remembered: ticks share theirs with many others.

    To what stands before the nanoseconds (length, seconds, tag), by how many bytes these take, and to microseconds since 1970.
    """

    def __missing__(self, text: str) -> tuple[Sequence[bytes], int]:
        us = parse_timestamp_us(f"{text}.000Z")
        if len(self) >= 4096:
            self.clear()
        second = self[text] = _timestamp_heads(us // 1_000_000), us
        return second


class _Milliseconds(dict[str, tuple[bytes, int]]):
    """The rest of a timestamp's text, from its point on, where it is one of a thousand: to nanoseconds and microseconds."""

    def __missing__(self, text: str) -> tuple[bytes, int]:
        us = int(text[1:-1]) * 1000
        fraction = self[text] = _nanos(us), us
        return fraction


_SECONDS = _Seconds()
_MILLISECONDS = _Milliseconds()


def to_instant(text: str) -> Instant:
    """A timestamp in the form that messages hold."""
    if len(text) == 24:
        nanos, fraction_us = _MILLISECONDS[text[19:]]
        heads, us = _SECONDS[text[:19]]
        return heads[len(nanos)] + nanos, us + fraction_us, True
    if text[19] == ".":
        heads, us = _SECONDS[text[:19]]
        fraction_us = int(text[20:26])
        if fraction_us >= _FOUR_BYTES_US:
            n = fraction_us * 125
            high = _HIGH_NANOS[n >> 18]
            nanos = _LOW_NANOS[n & 2047] + _MORE[n >> 11 & 127] + high
        else:
            nanos = _nanos(fraction_us)
        return heads[len(nanos)] + nanos, us + fraction_us, False
    us = parse_timestamp_us(text)  # a year beyond 9999 or before 0, which takes more letters
    return encode_timestamp(us), us, text[-5] == "."


def encode_timestamp(us: int) -> bytes:
    """A google.protobuf.Timestamp, length first."""
    seconds, fraction_us = divmod(us, 1_000_000)
    nanos = _nanos(fraction_us)
    return _timestamp_heads(seconds)[len(nanos)] + nanos


def _timestamp_heads(seconds: int) -> Sequence[bytes]:
    field = b"\x08" + varint(seconds) if seconds else b""
    return [delimited(field), *(SHORT[len(field) + 1 + n] + field + b"\x10" for n in range(1, 6))]


def _nanos(us: int) -> bytes:
    return varint(us * 1000) if us else b""


# Nanoseconds that are whole microseconds end in three zero bits: their two lowest bytes are one of 2,048 pairs, which is a table
# that stays in the processor's cache. 125 times the microseconds are the nanoseconds without those bits.
_LOW_NANOS = [_MORE[n << 3 & 127] + _MORE[n >> 4] for n in range(2048)]
_HIGH_NANOS = [varint(n) for n in range((1_000_000_000 >> 21) + 1)]
_FOUR_BYTES_US = 2098  # from 2 ** 21 nanoseconds on
