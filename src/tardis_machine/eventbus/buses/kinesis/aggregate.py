"""Many events in one Kinesis record, in the format of Amazon's Kinesis Producer Library, which its consumer libraries undo.

A record is stored whole or not at all, so that events in it keep their order whatever fails; and a shard counts it as one.

Invariant: `split_aggregate(to_aggregate(key, values))` are the values; bytes that are no aggregate are one value, untouched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import md5

from ....bronze.wire import delimited, tag, varint

__all__ = ["aggregate_bytes", "split_aggregate", "to_aggregate"]

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_KEY, _RECORD, _DATA = tag(1), tag(3), tag(3)
_FIRST_KEY = tag(1, is_varint=True) + varint(0)
_RECORDS_FIELD, _DATA_FIELD = 3, 3
# Tags and lengths around the values: of the key, and at most for each value below 256 MiB.
_OVERHEAD_BYTES = len(_MAGIC) + _DIGEST_BYTES + 4
_VALUE_OVERHEAD_BYTES = 12


def aggregate_bytes(key: str, sizes: int, count: int) -> int:
    """At most so many bytes does an aggregate of `count` values take, which are `sizes` bytes together."""
    return _OVERHEAD_BYTES + len(key.encode()) + sizes + count * _VALUE_OVERHEAD_BYTES


def to_aggregate(key: str, values: Sequence[bytes]) -> bytes:
    """The values of one partition key as the data of one record."""
    parts = [_KEY, delimited(key.encode())]
    for value in values:
        parts += (_RECORD, delimited(b"".join((_FIRST_KEY, _DATA, varint(len(value)), value))))
    message = b"".join(parts)
    return b"".join((_MAGIC, message, md5(message, usedforsecurity=False).digest()))


def split_aggregate(data: bytes) -> list[bytes]:
    """The values that a record's data holds, in order."""
    message = data[len(_MAGIC) : -_DIGEST_BYTES]
    if not data.startswith(_MAGIC) or md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return [data]
    records = [record for number, record in _fields(message) if number == _RECORDS_FIELD]
    return [value for record in records for number, value in _fields(record) if number == _DATA_FIELD]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message; numbers are passed over."""
    place = 0
    while place < len(message):
        key, place = _varint_at(message, place)
        size, place = _varint_at(message, place)
        if key & 7 == 2:
            yield key >> 3, message[place : place + size]
            place += size


def _varint_at(message: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
