"""aiobotocore and Kinesis with ready bytes: PutRecords of 500 records, whatever their keys, eight calls at once.

That keeps no order for a key where a record fails. The bus does so with aggregates, which raw has none of, or one record of a key a
call, which raw then has too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.raw.aws import send_in_calls
from tardis_machine.eventbus.contract import Record

EVENTS = 20_000
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "without order": {"aggregate": False, "order": "none"},
    "one of a key a call": {"aggregate": False},
}


async def send_ready(keywords: Mapping[str, Any], records: Sequence[Record], begin: Callable[[], None]) -> None:
    """Returns when the stream has confirmed all."""

    async def put(client: Any, batch: Sequence[Record]) -> None:
        entries = [{"Data": record.event.value, "PartitionKey": record.route.key} for record in batch]
        answer = await client.put_records(StreamName=keywords["stream"], Records=entries)
        assert answer["FailedRecordCount"] == 0, answer

    is_ordered = keywords.get("order", "key") == "key" and not keywords.get("aggregate")
    await send_in_calls("kinesis", keywords, records, 500, 8, put, is_ordered=is_ordered, begin=begin)
