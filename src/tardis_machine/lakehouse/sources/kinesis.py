"""Kinesis as a source: a partition is a shard, and a place in it is a sequence number.

A shard says neither where it ends nor how many records it has. But it takes only so many bytes a second, and is found by time: a batch is
a stretch of time, which planning ends at the first record behind it. Of the newest stretch the last second is read, as nothing else tells
which record is the last. So planning takes a few requests, however much a batch holds. A shard that was split or merged comes to its end,
and only then are its children begun.

Invariant: a range is read with AFTER_SEQUENCE_NUMBER, up to and with a record that planning has seen. Planning first looks for the record
of the offset itself, and so does who has read a batch; where that is gone, what came after it may be gone too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import TransientDeliveryError
from ...eventbus.buses.aws import AwsClient, Kind, Problem
from ...eventbus.buses.kinesis import access_of, stream_address
from ...eventbus.buses.kinesis.aggregate import split_aggregate
from .options import AwsSourceOptions
from .partitions import OffsetRange, Offsets, PartitionedSource, PartitionOffset, PartitionReader
from .records import ROW_BYTES, Columns

if TYPE_CHECKING:
    from ...settings import Settings

__all__ = ["KinesisOptions", "KinesisReader", "create_source"]

_STEP = 10_000
"""What one call gives at most."""
_SHARD_BYTES_A_SECOND = 1024**2
"""What a shard takes at most."""
_LAST_S = 1.0
"""Of the newest records, how much time is read to find the last one."""
_FURTHER = 4
"""By how much further back is looked for it than before, where nothing came for long."""
_CONNECTIONS = 4


class KinesisOptions(AwsSourceOptions, frozen=True, kw_only=True):
    """The streams, where they are, and who asks."""

    stream: str


def create_source(settings: Settings) -> PartitionedSource:
    """All shards of the streams that the Kinesis bus of the settings writes to."""
    options = KinesisOptions.from_settings(settings, KinesisReader.name)
    return PartitionedSource(KinesisReader, options, ("stream", "routing", "region", "endpoint_url"))


class KinesisReader(PartitionReader[KinesisOptions]):
    """Reads shards with GetRecords. A partition is named `stream/shard`."""

    name = "kinesis"
    tells_its_end = False
    asks_what_is_lost = True

    def __init__(self, options: KinesisOptions) -> None:
        super().__init__(options)
        self._streams = list(dict.fromkeys([options.stream, *(options.routing or {}).values()]))
        self._client = AwsClient(access_of(options.to_mapping()), "kinesis", _CONNECTIONS)
        # By partition, a place, and where the records behind it come from.
        self._iterators: dict[str, tuple[str, str]] = {}

    async def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """Each shard to its last record, or as far as what it takes at most is its share of the limit; children when their parents are
        read."""
        offsets, span_s = dict(start), limit * ROW_BYTES / _SHARD_BYTES_A_SECOND
        shards = {f"{stream}/{shard['ShardId']}": shard for stream in self._streams for shard in await self._shards(stream)}
        ready = [
            partition
            for partition, shard in shards.items()
            if not (partition in offsets and offsets[partition].closed)
            and all(
                parent not in shards or (parent in offsets and offsets[parent].closed) for parent in _parents(partition, shard)
            )
        ]
        for partition in ready:
            ends_at = shards[partition].get("SequenceNumberRange", {}).get("EndingSequenceNumber")
            offsets[partition] = await self._next_offset(partition, offsets.get(partition), span_s / len(ready), ends_at)
        for partition, offset in start.items():
            if partition not in shards and not offset.closed:
                # Expired with all that was not read.
                offsets[partition] = PartitionOffset(
                    at=offset.at, read=offset.read, began=offset.began, closed=True, torn=offset.torn + 1
                )
        return offsets

    async def _shards(self, stream: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        asked: Mapping[str, Any] = stream_address(stream)
        while True:
            answer = await self._call("list_shards", f"list the shards of the Kinesis stream {stream}", **asked)
            found += answer["Shards"]
            if not answer.get("NextToken"):
                return found
            asked = {"NextToken": answer["NextToken"]}

    async def _next_offset(
        self, partition: str, offset: PartitionOffset | None, span_s: float, ends_at: str | None
    ) -> PartitionOffset:
        """Where a stretch of time ends behind an offset; `ends_at`: the end of a shard that takes no more."""
        known = offset or PartitionOffset(at="", read=0, began=0)
        at, torn = known.at, known.torn
        if at and not await self._has(partition, at):
            at, torn = "", torn + 1
        records, is_end, is_closed = await self._some(partition, at)
        if not records:
            # Where nothing is there yet by which a loss could be placed, it is placed later.
            is_closed = is_closed or ends_at is not None
            return msgspec.structs.replace(known, closed=is_closed) if is_end and torn == known.torn else known
        since_s = _time_s(records[0])
        # The client asks for whole seconds.
        until_s = ceil(since_s + span_s)
        found = await self._first_at(partition, until_s) if until_s < time.time() else None
        if found is None and ends_at is not None:
            return msgspec.structs.replace(known, at=ends_at, closed=True, torn=torn)
        last = found or await self._last(partition, records[0])
        # Times are about right: the order of numbers is what counts.
        numbers = (record["SequenceNumber"] for record in (records[0], last))
        return msgspec.structs.replace(known, at=max(numbers, key=int), torn=torn)

    async def _some(self, partition: str, after: str) -> tuple[list[Mapping[str, Any]], bool, bool]:
        """The next record behind a place, if there is one, over answers that have none; as `_records`."""
        while True:
            found = await self._records(partition, after, 1)
            if found[0] or found[1]:
                return found

    async def _last(self, partition: str, first: Mapping[str, Any]) -> Mapping[str, Any]:
        """The newest record; `first`: one that there is."""
        since_s, now_s, reach_s = _time_s(first), time.time(), _LAST_S
        while (found := await self._first_at(partition, max(now_s - reach_s, since_s))) is None and now_s - reach_s > since_s:
            reach_s *= _FURTHER
        # It lies between the last two places that were looked at: until it is near the later one, the half that has it is taken.
        low_s, high_s = max(now_s - reach_s, since_s), now_s - reach_s / _FURTHER
        while found is not None and high_s - low_s > _LAST_S:
            middle_s = (low_s + high_s) / 2
            later = await self._first_at(partition, middle_s)
            low_s, high_s, found = (low_s, middle_s, found) if later is None else (middle_s, high_s, later)
        # A service whose clock is behind refuses the time of its own records: then all are read.
        last, is_end = found or first, False
        while not is_end:
            records, is_end, _ = await self._records(partition, last["SequenceNumber"], _STEP)
            last = records[-1] if records else last
        return last

    async def _first_at(self, partition: str, at_s: float) -> Mapping[str, Any] | None:
        """The first record of a time, or later; none of a time that the service's clock has not reached, which it refuses."""
        stream, shard = partition.rsplit("/", 1)
        place = {**stream_address(stream), "ShardId": shard, "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": int(at_s)}
        opened = await self._call_unless_refused("get_shard_iterator", f"read the Kinesis shard {partition}", **place)
        following: str | None = opened["ShardIterator"] if opened else None
        while following:
            answer = await self._call("get_records", f"read the Kinesis shard {partition}", ShardIterator=following, Limit=1)
            if answer["Records"]:
                found: Mapping[str, Any] = answer["Records"][0]
                return found
            following = answer.get("NextShardIterator") if answer.get("MillisBehindLatest") else None
        return None

    async def find_lost(self, start: Offsets, end: Offsets, rows: int) -> int | None:
        """Nothing, as long as the records are there that come before the batch: the oldest ones go first."""
        for partition, offset in end.items():
            before = start.get(partition)
            if before is None or before.at == offset.at:
                continue
            if offset.torn > before.torn or (before.at and not await self._has(partition, before.at)):
                return None
        return 0

    @staticmethod
    def order(offset: PartitionOffset) -> tuple[int, int, bool]:
        """Numbers of records grow."""
        return offset.torn, int(offset.at or 0), offset.closed

    async def _has(self, partition: str, sequence: str) -> bool:
        """Whether the record of an offset is still there; one that a call behind it is open for need not be looked for."""
        if partition in self._iterators and self._iterators[partition][0] == sequence:
            return True
        stream, shard = partition.rsplit("/", 1)
        at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": sequence}
        doing = f"read the Kinesis shard {partition}"
        found = await self._call_unless_refused("get_shard_iterator", doing, **stream_address(stream), ShardId=shard, **at)
        answer = found and await self._call_unless_refused("get_records", doing, ShardIterator=found["ShardIterator"], Limit=1)
        return answer is not None and any(record["SequenceNumber"] == sequence for record in answer["Records"])

    async def split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
        """One range: a shard is read by one at a time."""
        if not end.at or (start is not None and start.at == end.at):
            return []
        is_same = start is not None and start.torn == end.torn
        return [OffsetRange(partition, start.at if start is not None and is_same else "", end.at)]

    async def fetch(self, part: OffsetRange, after: str) -> tuple[Columns, str]:
        """The next records; an aggregate is taken apart."""
        found = Columns()
        while not found.positions and after != part.until:
            records, is_end, _ = await self._records(part.partition, after, _STEP)
            for record in records:
                sequence = record["SequenceNumber"]
                if int(sequence) > int(part.until):
                    return found, part.until
                values = split_aggregate(record["Data"])
                time_us = int(_time_s(record) * 1_000_000)
                for index, value in enumerate(values):
                    position = f"{part.partition.rsplit('/', 1)[1]}:{sequence}" + (f":{index}" if len(values) > 1 else "")
                    stream = part.partition.rsplit("/", 1)[0]
                    found.add(record["PartitionKey"], value, (), position=position, time_us=time_us, destination=stream)
                after = sequence
            if is_end:
                break
        return found, after

    async def _records(self, partition: str, after: str, limit: int) -> tuple[list[Mapping[str, Any]], bool, bool]:
        """Some records behind a place; whether the shard has no more now; and whether it will never have."""
        place, known = self._iterators.pop(partition, ("", ""))
        iterator = known if known and place == after else await self._iterator(partition, after)
        answer = await self._call("get_records", f"read the Kinesis shard {partition}", ShardIterator=iterator, Limit=limit)
        records: list[Mapping[str, Any]] = answer["Records"]
        following = answer.get("NextShardIterator")
        if following:
            self._iterators[partition] = (records[-1]["SequenceNumber"] if records else after, following)
        return records, not following or (not records and not answer.get("MillisBehindLatest")), not following

    async def _iterator(self, partition: str, after: str) -> str:
        if after:
            return await self._open(partition, {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after})
        return await self._open(partition, {"ShardIteratorType": "TRIM_HORIZON"})

    async def _open(self, partition: str, where: Mapping[str, Any]) -> str:
        stream, shard = partition.rsplit("/", 1)
        doing = f"read the Kinesis shard {partition}"
        answer = await self._call("get_shard_iterator", doing, **stream_address(stream), ShardId=shard, **where)
        iterator: str = answer["ShardIterator"]
        return iterator

    async def _call(self, operation: str, doing: str, **parameters: Any) -> Mapping[str, Any]:
        answer = await self._ask(operation, doing, **parameters)
        if isinstance(answer, Problem):
            raise answer.at_send() if answer.kind is not Kind.INVALID else TransientDeliveryError(answer.sentence)
        return answer

    async def _call_unless_refused(self, operation: str, doing: str, **parameters: Any) -> Mapping[str, Any] | None:
        answer = await self._ask(operation, doing, **parameters)
        if isinstance(answer, Problem) and answer.kind is not Kind.INVALID:
            raise answer.at_send()
        return None if isinstance(answer, Problem) else answer

    async def _ask(self, operation: str, doing: str, **parameters: Any) -> Mapping[str, Any] | Problem:
        await self._client.open()
        return await self._client.call(operation, doing, **parameters)

    async def close(self) -> None:
        """Ends connections; iterators are of no use after that long."""
        self._iterators.clear()
        await self._client.close()


def _parents(partition: str, shard: Mapping[str, Any]) -> list[str]:
    stream = partition.rsplit("/", 1)[0]
    return [f"{stream}/{shard[name]}" for name in ("ParentShardId", "AdjacentParentShardId") if shard.get(name)]


def _time_s(record: Mapping[str, Any]) -> float:
    found: float = record["ApproximateArrivalTimestamp"].timestamp()
    return found
