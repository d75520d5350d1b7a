"""Kinesis as a source: a lane for each shard, its place a sequence number.

A shard does not say where it ends: planning reads it, as a batch later does, and keeps the numbers alone. A shard that was split or
merged comes to its end, and only then are its children begun.

Invariant: a range is read with AFTER_SEQUENCE_NUMBER from its marks; planning finds the mark's own record first, and where that is
gone, so may be what came after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import TransientDeliveryError
from ...eventbus.buses.aws import AwsClient, Kind, Problem
from ...eventbus.buses.kinesis import access_of, stream_address
from ...eventbus.buses.kinesis.aggregate import split_aggregate
from .lanes import Lanes, Mark, Marks, Range, count_between, identity_of, read_lanes
from .records import ROW_BYTES, Columns, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KinesisLanes", "expected_rows", "identity", "read_stream"]

expected_rows = count_between

_STEP = 10_000
"""What one call gives at most."""
_CONNECTIONS = 4


def identity(settings: Any) -> str:
    """The streams, and where they are."""
    return identity_of(settings.for_bus("kinesis"), "stream", "routing", "region", "endpoint_url")


def read_stream(spark: SparkSession, settings: Any, max_batch_bytes: int) -> Stream:
    """The records of all shards of the streams that the bus writes to."""
    return read_lanes(spark, KinesisLanes, settings.for_bus("kinesis"), max(max_batch_bytes // ROW_BYTES, 1))


class KinesisLanes(Lanes):
    """Reads shards with GetRecords. A lane is named `stream/shard`."""

    name = "kinesis"
    tells_its_end = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._streams = list(dict.fromkeys([options["stream"], *(options["routing"] or {}).values()]))
        self._client = AwsClient(access_of(options), "kinesis", _CONNECTIONS)
        # Where a lane's next records come from, behind a place.
        self._iterators: dict[tuple[str, str], str] = {}

    # --- planning ------------------------------------------------------------------------------------------------------------

    async def advance(self, start: Marks, limit: int) -> dict[str, Mark]:
        """Each shard to its last record, or as far as its share of the limit goes; children when their parents are read."""
        marks = dict(start)
        shards = {f"{stream}/{shard['ShardId']}": shard for stream in self._streams for shard in await self._shards(stream)}
        ready = [
            lane
            for lane, shard in shards.items()
            if not (lane in marks and marks[lane].closed)
            and all(parent not in shards or (parent in marks and marks[parent].closed) for parent in _parents(lane, shard))
        ]
        for lane in ready:
            marks[lane] = await self._next_mark(lane, marks.get(lane), max(limit // len(ready), 1))
        for lane, mark in start.items():
            if lane not in shards and not mark.closed:
                # Expired with all that was not read.
                marks[lane] = Mark(at=mark.at, read=mark.read, began=mark.began, closed=True, torn=mark.torn + 1)
        return marks

    async def _shards(self, stream: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        asked: Mapping[str, Any] = stream_address(stream)
        while True:
            answer = await self._call("list_shards", f"list the shards of the Kinesis stream {stream}", **asked)
            found += answer["Shards"]
            if not answer.get("NextToken"):
                return found
            asked = {"NextToken": answer["NextToken"]}

    async def _next_mark(self, lane: str, mark: Mark | None, limit: int) -> Mark:
        known = mark or Mark(at="", read=0, began=0)
        at, read, torn = known.at, known.read, known.torn
        if at and not await self._has(lane, at):
            at, torn = "", torn + 1
        closed = False
        while limit > 0 and not closed:
            records, is_end, is_closed = await self._records(lane, at, min(limit, _STEP))
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
        return Mark(at=at, read=read, began=0, closed=closed, torn=torn)

    async def _has(self, lane: str, sequence: str) -> bool:
        """Whether the record of a mark is still there; one that a call behind it is open for need not be looked for."""
        if (lane, sequence) in self._iterators:
            return True
        stream, shard = lane.rsplit("/", 1)
        at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": sequence}
        doing = f"read the Kinesis shard {lane}"
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

    def split(self, lane: str, start: Mark | None, end: Mark) -> Sequence[Range]:
        """One range: a shard is read by one at a time."""
        if not end.at or (start is not None and start.at == end.at):
            return []
        is_same = start is not None and start.torn == end.torn
        return [Range(lane, start.at if start is not None and is_same else "", end.at)]

    # --- reading -------------------------------------------------------------------------------------------------------------

    async def fetch(self, part: Range, after: str) -> tuple[Columns, str]:
        """The next records; an aggregate is taken apart."""
        found = Columns()
        while not found.positions and after != part.until:
            records, is_end, _ = await self._records(part.lane, after, _STEP)
            for record in records:
                sequence = record["SequenceNumber"]
                if int(sequence) > int(part.until):
                    return found, part.until
                values = split_aggregate(record["Data"])
                time_us = int(record["ApproximateArrivalTimestamp"].timestamp() * 1_000_000)
                for index, value in enumerate(values):
                    position = f"{part.lane.rsplit('/', 1)[1]}:{sequence}" + (f":{index}" if len(values) > 1 else "")
                    stream = part.lane.rsplit("/", 1)[0]
                    found.add(record["PartitionKey"], value, (), position=position, time_us=time_us, destination=stream)
                after = sequence
            if is_end:
                break
        return found, after

    async def _records(self, lane: str, after: str, limit: int) -> tuple[list[Mapping[str, Any]], bool, bool]:
        """Some records behind a place; whether the shard has no more now; and whether it will never have."""
        iterator = self._iterators.pop((lane, after), None) or await self._iterator(lane, after)
        answer = await self._call("get_records", f"read the Kinesis shard {lane}", ShardIterator=iterator, Limit=limit)
        records: list[Mapping[str, Any]] = answer["Records"]
        following = answer.get("NextShardIterator")
        if following:
            self._iterators[(lane, records[-1]["SequenceNumber"] if records else after)] = following
        return records, not following or (not records and not answer.get("MillisBehindLatest")), not following

    async def _iterator(self, lane: str, after: str) -> str:
        stream, shard = lane.rsplit("/", 1)
        where = {"ShardIteratorType": "TRIM_HORIZON"}
        if after:
            where = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
        doing = f"read the Kinesis shard {lane}"
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


def _parents(lane: str, shard: Mapping[str, Any]) -> list[str]:
    stream = lane.rsplit("/", 1)[0]
    return [f"{stream}/{shard[name]}" for name in ("ParentShardId", "AdjacentParentShardId") if shard.get(name)]
