"""Aggregated records as Amazon documents them for consumers, read by the Protobuf library from their schema."""

from __future__ import annotations

from hashlib import md5
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES = 16
_Field = descriptor_pb2.FieldDescriptorProto


def _aggregated_record() -> Any:
    """The class of the message around the records; hash keys and tags, which nobody here writes, are left out."""
    file = descriptor_pb2.FileDescriptorProto(name="aggregated_record.proto", package="tests")
    record = file.message_type.add(name="Record")
    record.field.add(name="partition_key_index", number=1, type=_Field.TYPE_UINT64, label=_Field.LABEL_REQUIRED)
    record.field.add(name="data", number=3, type=_Field.TYPE_BYTES, label=_Field.LABEL_REQUIRED)
    whole = file.message_type.add(name="AggregatedRecord")
    whole.field.add(name="partition_key_table", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_REPEATED)
    whole.field.add(name="records", number=3, type=_Field.TYPE_MESSAGE, type_name=".tests.Record", label=_Field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.AggregatedRecord"))


AggregatedRecord = _aggregated_record()


def user_records(partition_key: str, data: bytes) -> list[tuple[str, bytes]]:
    """Partition keys and values of the records in one record of the service; data that is no aggregate is one."""
    message, digest = data[len(MAGIC) : -DIGEST_BYTES], data[-DIGEST_BYTES:]
    if not data.startswith(MAGIC) or md5(message, usedforsecurity=False).digest() != digest:
        return [(partition_key, data)]
    whole = AggregatedRecord.FromString(message)
    return [(whole.partition_key_table[record.partition_key_index], record.data) for record in whole.records]
