"""Bytes recorded once, which every later version must read and write alike; and readers older than the writer.

An entry of `golden/<case>.json` is never changed: a new field gets an entry of its own (the failing test prints the bytes).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given

from tardis_machine.bronze.encoding import PAYLOAD_CASES, BronzeEncoder
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import DESCRIPTOR, NormalizedEvent
from tests.strategies import messages

GOLDEN = {case: json.loads((Path(__file__).parent / "golden" / f"{case}.json").read_text()) for case in PAYLOAD_CASES}
ENTRIES = [pytest.param(case, name, id=f"{case}-{name}") for case, entries in GOLDEN.items() for name in entries]


def to_event(fields: dict[str, Any]) -> NormalizedEvent:
    return ParseDict(fields, NormalizedEvent())


def to_fields(event: Message) -> dict[str, Any]:
    return MessageToDict(event, preserving_proto_field_name=True)


@pytest.mark.parametrize(("case", "name"), ENTRIES)
def test_recorded_bytes_are_read_and_written_alike(case: str, name: str) -> None:
    entry = GOLDEN[case][name]
    event = NormalizedEvent.FromString(bytes.fromhex(entry["hex"]))
    assert event.WhichOneof("payload") == case
    # Zeros that were set are in the fields, and what was not set is not: absent is not zero.
    assert to_fields(event) == entry["event"]
    assert to_event(entry["event"]).SerializeToString(deterministic=True).hex() == entry["hex"]


@pytest.mark.parametrize("case", PAYLOAD_CASES)
def test_recorded_bytes_hold_every_field(case: str) -> None:
    found: set[str] = set()
    for entry in GOLDEN[case].values():
        found |= set(paths_of(entry["event"], NormalizedEvent.DESCRIPTOR))
    expected = set(all_paths(NormalizedEvent.DESCRIPTOR, case))
    assert expected - found == set()


@pytest.mark.parametrize("case", PAYLOAD_CASES)
def test_only_the_required_ones(case: str) -> None:
    event = to_event(GOLDEN[case]["required"]["event"])
    payload = getattr(event, case)
    optional = [field.name for field in payload.DESCRIPTOR.fields if not field.is_repeated and not payload.HasField(field.name)]
    assert optional
    assert to_fields(NormalizedEvent.FromString(event.SerializeToString())) == GOLDEN[case]["required"]["event"]


def paths_of(fields: dict[str, Any], descriptor: Descriptor, prefix: str = "") -> Iterator[str]:
    for name, value in fields.items():
        yield prefix + name
        nested = descriptor.fields_by_name[name].message_type
        if nested is None or nested.full_name == Timestamp.DESCRIPTOR.full_name or nested.GetOptions().map_entry:
            continue
        for item in value if isinstance(value, list) else [value]:
            yield from paths_of(item, nested, f"{prefix}{name}.")


def all_paths(descriptor: Descriptor, case: str | None = None, prefix: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        if case and field.containing_oneof and field.containing_oneof.name == "payload" and field.name != case:
            continue
        yield prefix + field.name
        nested = field.message_type
        if nested is not None and nested.full_name != Timestamp.DESCRIPTOR.full_name and not nested.GetOptions().map_entry:
            yield from all_paths(nested, prefix=f"{prefix}{field.name}.")


def first_version() -> type[Message]:
    """The schema without all that was added: what the oldest consumer knows."""
    file = FileDescriptorProto()
    DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        if message.name == "NormalizedEvent":
            kept = [field for field in message.field if field.number not in (7, 8, 20, 21, 152)]
        else:
            kept = [field for field in message.field if field.number < 20]
        # A field with presence has a oneof of its own on the inside: those without a field may not stay.
        oneofs = sorted({field.oneof_index for field in kept if field.HasField("oneof_index")})
        fields, names = copies(kept), [message.oneof_decl[index].name for index in oneofs]
        for field in fields:
            if field.HasField("oneof_index"):
                field.oneof_index = oneofs.index(field.oneof_index)
        del message.field[:], message.oneof_decl[:]
        message.field.extend(fields)
        for name in names:
            message.oneof_decl.add(name=name)
    pool = descriptor_pool.DescriptorPool()
    stamps = FileDescriptorProto()
    Timestamp.DESCRIPTOR.file.CopyToProto(stamps)
    pool.Add(stamps)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("lakehouse.bronze.v1.NormalizedEvent"))


def copies(fields: list[FieldDescriptorProto]) -> list[FieldDescriptorProto]:
    return [FieldDescriptorProto.FromString(field.SerializeToString()) for field in fields]


FIRST_VERSION = first_version()


def test_the_first_version_lacks_what_was_added() -> None:
    fields = FIRST_VERSION.DESCRIPTOR.fields_by_name
    assert "trade" in fields
    assert not {"event_id", "sequence", "null_fields", "session_end"} & set(fields)
    assert "bids" not in fields["book_change"].message_type.fields_by_name


@given(messages())
def test_what_a_reader_does_not_know_survives_it(message: Any) -> None:
    [event] = BronzeEncoder(session_id="s", origin="replay").encode([message])
    passed_on = FIRST_VERSION.FromString(event.value).SerializeToString()
    assert NormalizedEvent.FromString(passed_on) == NormalizedEvent.FromString(event.value)


@pytest.mark.parametrize("case", PAYLOAD_CASES)
def test_what_we_do_not_know_survives_us(case: str) -> None:
    unknown = bytes.fromhex("fa3e0568656c6c6f")  # field 1007 of a later version, in the envelope and in the payload
    event = to_event(GOLDEN[case]["all"]["event"])
    getattr(event, case).MergeFromString(unknown)
    value = event.SerializeToString() + unknown
    passed_on = NormalizedEvent.FromString(value).SerializeToString()
    assert passed_on.count(unknown) == 2
    assert NormalizedEvent.FromString(passed_on) == NormalizedEvent.FromString(value)
