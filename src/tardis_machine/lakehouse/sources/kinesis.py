"""Kinesis as a source: a partition is a shard, and a place in it is a sequence number.

A shard does not say where it ends: planning reads it, as a batch later does, and keeps the numbers alone. A shard that was split or
merged comes to its end, and only then are its children begun.

Invariant: a range is read with AFTER_SEQUENCE_NUMBER. Planning first looks for the record of the offset itself; where that is gone, what
came after it may be gone too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import TransientDeliveryError
from ...eventbus.buses.aws import AwsClient, Kind, Problem
from ...eventbus.buses.kinesis import access_of, stream_address
from ...eventbus.buses.kinesis.aggregate import split_aggregate
from .options import AwsSourceOptions
from .partitions import OffsetRange, Offsets, PartitionedSource, PartitionOffset, PartitionReader
from .records import Columns

if TYPE_CHECKING:
    from ...settings import Settings

__all__ = ["KinesisOptions", "KinesisReader", "create_source"]

_STEP = 10_000
"""What one call gives at most."""
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

    def __init__(self, options: KinesisOptions) -> None:
        super().__init__(options)
        self._streams = list(dict.fromkeys([options.stream, *(options.routing or {}).values()]))
        self._client = AwsClient(access_of(options.to_mapping()), "kinesis", _CONNECTIONS)
        # Where a partition's next records come from, behind a place.
        self._iterators: dict[tuple[str, str], str] = {}

    async def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """Each shard to its last record, or as far as its share of the limit goes; children when their parents are read."""
        offsets = dict(start)
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
            offsets[partition] = await self._next_offset(partition, offsets.get(partition), max(limit // len(ready), 1))
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

    async def _next_offset(self, partition: str, offset: PartitionOffset | None, limit: int) -> PartitionOffset:
        known = offset or PartitionOffset(at="", read=0, began=0)
        at, read, torn = known.at, known.read, known.torn
        if at and not await self._has(partition, at):
            at, torn = "", torn + 1
        closed = False
        while limit > 0 and not closed:
            records, is_end, is_closed = await self._records(partition, at, min(limit, _STEP))
            for record in records:
                # An aggregate is many rows, and can't be divided between batches.
                rows = len(split_aggregate(record["Data"]))
                at, read, limit = record["SequenceNumber"], read + rows, limit - rows
                if limit <= 0:
                    break
            closed = is_closed and (not records or at == records[-1]["SequenceNumber"])
            if is_end:
                break
        if torn > known.torn and not at:
            # Nothing is there yet by which the loss could be placed.
            return known
        return PartitionOffset(at=at, read=read, began=0, closed=closed, torn=torn)

    async def _has(self, partition: str, sequence: str) -> bool:
        """Whether the record of a offset is still there; one that a call behind it is open for need not be looked for."""
        if (partition, sequence) in self._iterators:
            return True
        stream, shard = partition.rsplit("/", 1)
        at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": sequence}
        doing = f"read the Kinesis shard {partition}"
        found = await self._ask("get_shard_iterator", doing, **stream_address(stream), ShardId=shard, **at)
        if isinstance(found, Problem):
            return self._is_not_refused(found)
        answer = await self._ask("get_records", doing, ShardIterator=found["ShardIterator"], Limit=1)
        if isinstance(answer, Problem):
            return self._is_not_refused(answer)
        return any(record["SequenceNumber"] == sequence for record in answer["Records"])

    def _is_not_refused(self, problem: Problem) -> bool:
        if problem.kind is Kind.INVALID:
            return False
        raise problem.at_send()

    def split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
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
                time_us = int(record["ApproximateArrivalTimestamp"].timestamp() * 1_000_000)
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
        iterator = self._iterators.pop((partition, after), None) or await self._iterator(partition, after)
        answer = await self._call("get_records", f"read the Kinesis shard {partition}", ShardIterator=iterator, Limit=limit)
        records: list[Mapping[str, Any]] = answer["Records"]
        following = answer.get("NextShardIterator")
        if following:
            self._iterators[(partition, records[-1]["SequenceNumber"] if records else after)] = following
        return records, not following or (not records and not answer.get("MillisBehindLatest")), not following

    async def _iterator(self, partition: str, after: str) -> str:
        stream, shard = partition.rsplit("/", 1)
        where = {"ShardIteratorType": "TRIM_HORIZON"}
        if after:
            where = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
        doing = f"read the Kinesis shard {partition}"
        answer = await self._call("get_shard_iterator", doing, **stream_address(stream), ShardId=shard, **where)
        iterator: str = answer["ShardIterator"]
        return iterator

    async def _call(self, operation: str, doing: str, **parameters: Any) -> Mapping[str, Any]:
        answer = await self._ask(operation, doing, **parameters)
        if isinstance(answer, Problem):
            raise answer.at_send() if answer.kind is not Kind.INVALID else TransientDeliveryError(answer.sentence)
        return answer

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
