"""aiobotocore and SQS with ready bytes: SendMessageBatch of ten messages in base64, three attributes each, 16 calls at once.

To a FIFO queue, where order for a group is to be kept through every failure, a call has one message of a group, as the bus's has.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.raw.aws import send_in_calls
from tardis_machine.eventbus.contract import Record
from tests.contract.buses.sqs import SqsUnderTest

EVENTS = 5000


def _standard(bus: SqsUnderTest) -> Mapping[str, Any]:
    return {"queue-url": bus.server.create_queue("standard")}


VARIANTS = {"": {}, "standard queue": _standard}


async def send_ready(keywords: Mapping[str, Any], records: Sequence[Record], begin: Callable[[], None]) -> None:
    """Returns when the queue has confirmed all."""
    queue = keywords["queue-url"]

    def to_entry(record: Record, number: int) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "Id": str(number),
            "MessageBody": b64encode(record.event.value).decode(),
            "MessageAttributes": {name: {"DataType": "String", "StringValue": value.decode()} for name, value in record.headers},
        }
        if queue.endswith(".fifo"):
            entry |= {"MessageGroupId": record.key, "MessageDeduplicationId": record.deduplication_id}
        return entry

    async def put(client: Any, batch: Sequence[Record]) -> None:
        entries = [to_entry(record, number) for number, record in enumerate(batch)]
        answer = await client.send_message_batch(QueueUrl=queue, Entries=entries)
        assert len(answer["Successful"]) == len(batch), answer

    await send_in_calls("sqs", keywords, records, 10, 16, put, is_ordered=queue.endswith(".fifo"), begin=begin)
