"""Protobuf events to Arrow columns, a batch at a time, with what can't be decoded told apart row by row.

Invariant: one bad value costs its own row and no other. A batch is decoded whole; where that fails it is halved until the bad
values stand alone, each with the reason that the decoder gave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from ptars import HandlerPool, PtarsConfig

from ..generated.lakehouse.bronze.v1 import normalized_event_pb2

__all__ = ["PAYLOAD_CASES", "REASON", "check_instants", "decode_each", "decode_fields", "enum_names", "name_enum", "unframed"]

_EVENT = normalized_event_pb2.NormalizedEvent.DESCRIPTOR

PAYLOAD_CASES: tuple[str, ...] = tuple(field.name for field in _EVENT.oneofs_by_name["payload"].fields)
"""The cases of an event's payload, as the schema names them."""

Converter = Callable[[pa.Array], pa.StructArray]
"""Values to one row each; raises ValueError when any of them can't be taken."""

REASON = "refused_because"
"""The field that `decode_each` adds: null where the row is good."""


def decode_each(values: pa.Array, convert: Converter, fields: pa.StructType) -> pa.StructArray:
    """One row for each value: the fields and no reason, or no fields and the reason."""
    pieces = [*_pieces(values, convert, fields)]
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _pieces(values: pa.Array, convert: Converter, fields: pa.StructType) -> list[pa.StructArray]:
    try:
        rows, reason = convert(values), None
    except ValueError as error:
        if len(values) > 1:
            half = len(values) // 2
            return _pieces(values.slice(0, half), convert, fields) + _pieces(values.slice(half), convert, fields)
        rows, reason = pa.nulls(len(values), fields), str(error)
    reasons = pa.array([reason] * len(values), pa.string()) if reason else pa.nulls(len(values), pa.string())
    columns = [pc.struct_field(rows, index) for index in range(fields.num_fields)]
    return [pa.StructArray.from_arrays([*columns, reasons], fields=[*fields, pa.field(REASON, pa.string())])]


def decode_fields(values: pa.Array, fields: tuple[str, ...], presence_of: tuple[str, ...] = ()) -> pa.RecordBatch:
    """The named fields of events, absent ones null; of `presence_of` only whether they are set (any bytes, or null)."""
    if values.null_count:
        raise ValueError("the record has no value")
    return _handler(fields, presence_of).array_to_record_batch(unframed(values))


@cache
def _handler(fields: tuple[str, ...], presence_of: tuple[str, ...]) -> Any:
    # Only what is wanted is decoded: the rest is skipped as unknown fields are, which is three to eight times as fast. Proto2 has
    # presence for scalars without the synthetic oneofs of proto3, so fields can be left out freely; the wire is the same.
    file = FileDescriptorProto()
    normalized_event_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.syntax = "reduced.proto", "proto2"
    for message in file.message_type:
        wanted: Collection[str] | None = (*fields, *presence_of) if message.name == _EVENT.name else None
        kept = [field for field in message.field if wanted is None or field.name in wanted]
        for field in kept:
            field.ClearField("oneof_index")
            field.ClearField("proto3_optional")
            if wanted is not None and field.name in presence_of:
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
        copies = [FieldDescriptorProto.FromString(field.SerializeToString()) for field in kept]
        del message.field[:]
        del message.oneof_decl[:]
        message.field.extend(copies)
    timestamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamps)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(timestamps)
    pool.Add(file)
    reduced = pool.FindFileByName(file.name)
    handlers = HandlerPool([reduced], PtarsConfig(timestamp_unit="us"))
    return handlers.get_for_message(reduced.message_types_by_name[_EVENT.name])


def unframed(values: pa.Array) -> pa.Array:
    """Values without the frame of a schema registry."""
    # No Protobuf message starts with a zero byte, so a value that does is in the frame of a schema registry.
    framed = pc.starts_with(values, pattern=b"\0")
    if not pc.any(framed).as_py():
        return values
    return pa.array([_without_frame(value) if value[:1] == b"\0" else value for value in values.to_pylist()], pa.binary())


def _without_frame(value: bytes) -> bytes:
    # 0, four bytes of schema id, then the path to the message in its file: 0 is short for the first one.
    if value[5:6] != b"\0":
        raise ValueError("the schema registry frame is not of the file's first message")
    return value[6:]


@cache
def enum_names(field_path: str) -> tuple[str, ...]:
    """The names of an enum by number, without their prefix, in lower case: `Trade.side` -> unspecified, buy, sell."""
    message, _, name = field_path.partition(".")
    enum = normalized_event_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name[name].enum_type
    assert enum is not None
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return tuple(enum.values_by_number[number].name.removeprefix(prefix).lower() for number in range(len(enum.values)))


_FIRST_US = -62_135_596_800_000_000
_LAST_US = 253_402_300_799_999_999


def check_instants(instants: pa.Array, name: str) -> pa.Array:
    """The instants, when all of them lie in the years 1 to 9999 that tables can hold."""
    bounds = pc.min_max(instants.cast(pa.int64()))
    earliest, latest = bounds["min"].as_py(), bounds["max"].as_py()
    if earliest is not None and (earliest < _FIRST_US or latest > _LAST_US):
        raise ValueError(f"{name} is not within the years 1 to 9999")
    return instants


def name_enum(numbers: pa.Array, names: tuple[str, ...], field: str) -> pa.Array:
    """Enum numbers to names; a number that this version does not know is refused."""
    highest = pc.max(numbers).as_py()
    if highest is not None and highest >= len(names):
        raise ValueError(f"{field} is {highest}, which this version does not know")
    return pa.array(names).take(numbers)
