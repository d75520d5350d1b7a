"""The Kinesis bus: PutRecords, and what became of each record.

PutRecords may store a record and refuse an earlier one of the same key. With `--kinesis-order call`, the default, calls are full.
Where a record is refused, it is sent again with all later ones of its key, stored or not: a consumer meets some of them before it,
and again behind it. With `key` a call has one record of a key at most (many keys, several calls at once), or, with
`--kinesis-aggregate`, one aggregate of a key, which is stored whole or not at all: order and throughput both. With `none`, only what
was refused is sent again, and calls of the same key run at once.

Invariant: the last copies of a key's records are in order, unless `none` was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

from ....errors import SettingsError, TerminalDeliveryError, TransientDeliveryError
from ....settings import Option, Refused, ValueParser, size_bytes, switch
from ...contract import Failure, Limits, Record
from ...options import common_bus_options
from ...routing import Routing
from ..aws import AwsAccess, AwsCall, AwsClient, AwsEntry, Kind, Problem, aws_options, send_entries, with_later_ones
from .aggregate import aggregate_bytes, to_aggregate

__all__ = ["OPTIONS", "REQUIRED", "KinesisBus", "access_of", "create_bus", "create_routing", "stream_address", "to_entries"]

Order = Literal["key", "call", "none"]

CALL_RECORDS = 500
RECORD_BYTES = 1024**2
LARGEST_RECORD_BYTES = 10 * 1024**2
"""What a stream takes that was told so (UpdateMaxRecordSize)."""
CALL_BYTES = 5 * 1024**2
"""Of a call, partition keys included; with larger records it is LARGEST_RECORD_BYTES."""
KEY_CHARACTERS = 256
SHARD_RECORDS_A_SECOND = 1000
CONCURRENT_SENDS = 8
# No hash key is that large: a record with it is refused after the service has looked whether we may write, and never stored.
_IMPOSSIBLE_HASH_KEY = "9" * 39

_ARN = re.compile(r"arn:[\w-]+:kinesis:(?P<region>[\w-]+):\d{12}:stream/(?P<name>[\w.-]{1,128})", re.ASCII)
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)


def _read_stream(given: str) -> str:
    if not _NAME.fullmatch(given) and not _ARN.fullmatch(given):
        raise Refused("expected the name of a stream (letters, digits and _.-) or its ARN")
    return given


_stream: ValueParser[str] = ValueParser(_read_stream, "the name of a stream or its ARN", "STREAM")

OPTIONS = (
    Option(
        name="kinesis-stream",
        help="Base stream, by name or ARN",
        group="kinesis",
        parse=_stream,
        aliases=("kinesis-stream-name", "kinesis-stream-arn"),
    ),
    *aws_options("kinesis"),
    Option(
        name="kinesis-order",
        help="Order of the records of a key: always kept, kept by repeating what follows one that failed, or not; from slow to fast",
        group="kinesis",
        choices=("key", "call", "none"),
        default="call",
    ),
    Option(
        name="kinesis-aggregate",
        help="Join events of one key into one record, as Amazon's producer library does; consumers must split them",
        group="kinesis",
        parse=switch,
        default=False,
    ),
    Option(
        name="kinesis-max-record-bytes",
        help="Largest record; more than 1 MiB must be allowed by the stream",
        group="kinesis",
        parse=size_bytes(1024, LARGEST_RECORD_BYTES),
        default=RECORD_BYTES,
    ),
    *common_bus_options(
        "kinesis",
        destination="stream",
        key_option="partition-key-template",
        max_batch_size=CALL_RECORDS,
        max_batch_size_limit=CALL_RECORDS,
        carries_headers=False,
    ),
)
REQUIRED = ("kinesis-stream",)


def create_bus(options: Mapping[str, Any]) -> KinesisBus:
    """The bus as its options say."""
    streams = list(dict.fromkeys([options["stream"], *(options["routing"] or {}).values()]))
    for stream in streams:
        _check_name(stream)
    return KinesisBus(
        access_of(options),
        streams,
        record_bytes=options["max_record_bytes"],
        order=options["order"],
        aggregates=options["aggregate"],
    )


def create_routing(options: Mapping[str, Any]) -> Routing:
    """Where its records go."""
    return Routing.from_options(options, options["stream"])


def access_of(options: Mapping[str, Any]) -> AwsAccess:
    """Where the streams are and who asks, for writers and readers."""
    arn = _ARN.fullmatch(options["stream"])
    return AwsAccess("kinesis", options, arn["region"] if arn else None)


def _check_name(stream: str) -> None:
    try:
        _read_stream(stream)
    except Refused:
        raise SettingsError([f"--kinesis-stream-routing: expected the name of a stream or its ARN, got {stream!r}"]) from None


class KinesisBus:
    """Writes to some streams of one region."""

    name = "kinesis"

    def __init__(self, access: AwsAccess, streams: Sequence[str], *, record_bytes: int, order: Order, aggregates: bool) -> None:
        self._access = access
        self._streams = streams
        self._order = order
        self._aggregates = aggregates
        self._record_bytes = record_bytes
        self._call_bytes = CALL_BYTES if record_bytes <= RECORD_BYTES else LARGEST_RECORD_BYTES
        self._client = AwsClient(access, "kinesis", CONCURRENT_SENDS)
        self.limits = Limits(
            batch_records=CALL_RECORDS,
            batch_bytes=self._call_bytes,
            record_bytes=record_bytes,
            ordered=order != "none",
            keeps_order_in_batch=aggregates or order != "key",
            concurrent_sends=CONCURRENT_SENDS,
            send_timeout_s=2 * access.request_timeout_s,
            carries_headers=False,
            gives_up=self._given_up,
        )

    async def connect(self) -> None:
        """A client with credentials as they are now, and streams that can be written."""
        await self._client.open()
        for stream in self._streams:
            await self._verify(stream)

    async def _verify(self, stream: str) -> Mapping[str, Any] | None:
        """What the stream says of itself; None where we may write to it but not ask."""
        found = await self._client.call(
            "describe_stream_summary", f"describe the Kinesis stream {stream}", **stream_address(stream)
        )
        if isinstance(found, Problem):
            if found.kind is not Kind.FORBIDDEN:
                raise found.at_connect()
            await self._probe(stream)
            return None
        summary: Mapping[str, Any] = found["StreamDescriptionSummary"]
        status = summary["StreamStatus"]
        if status == "CREATING":
            raise TransientDeliveryError(f"the Kinesis stream {stream} is still being created")
        if status == "DELETING":
            raise TerminalDeliveryError(f"the Kinesis stream {stream} is being deleted")
        largest_bytes = summary.get("MaxRecordSizeInKiB", RECORD_BYTES // 1024) * 1024
        if self._record_bytes > largest_bytes:
            raise TerminalDeliveryError(
                f"--kinesis-max-record-bytes is {self._record_bytes}, but the stream {stream} accepts at most {largest_bytes}"
            )
        if self.limits.ordered and summary.get("RecordDistributionStrategy") == "AUTO":
            raise TerminalDeliveryError(
                f"the Kinesis stream {stream} spreads the records of a key over its shards (RecordDistributionStrategy AUTO), "
                "and so keeps no order for a key: change that, or give --kinesis-order none"
            )
        return summary

    async def _probe(self, stream: str) -> None:
        """Asks whether we may write, with a record that can't be stored."""
        doing = f"write to the Kinesis stream {stream}"
        record = {"Data": b"", "PartitionKey": "probe", "ExplicitHashKey": _IMPOSSIBLE_HASH_KEY}
        answer = await self._client.call("put_record", doing, **stream_address(stream), **record)
        if isinstance(answer, Problem) and answer.kind is not Kind.INVALID:
            raise answer.at_connect()

    @property
    def _given_up(self) -> str:
        if self._order == "none":
            return "order for a key: what fails is overtaken (--kinesis-order none)"
        if self._aggregates:
            return "plain records: consumers have to split aggregates (--kinesis-aggregate)"
        if self._order == "call":
            return (
                "order for a key where a part of a call fails: later records arrive before it, and again behind it "
                "(--kinesis-order call; key and --kinesis-aggregate keep it)"
            )
        return (
            "pace: some 100 records a second for a key, one a call (--kinesis-order key; call and --kinesis-aggregate are faster)"
        )

    async def check(self) -> Sequence[str]:
        """Sentences for `doctor`."""
        sentences = []
        for stream in self._streams:
            summary = await self._verify(stream)
            if summary is None:
                sentences.append(f"the stream {stream} exists, and may not be described with these credentials")
            else:
                mode = summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED").lower().replace("_", "-")
                shards, hours = summary["OpenShardCount"], summary["RetentionPeriodHours"]
                takes = f"{shards * SHARD_RECORDS_A_SECOND} records and {shards} MB a second"
                sentences.append(f"the stream {stream} is active ({mode}), has {shards} open shards, which take {takes}")
                sentences.append(f"it keeps records for {hours} hours")
            await self._probe(stream)
            sentences.append(f"records may be written to {stream}")
        sentences.append(f"records have {self._record_bytes} bytes at most")
        sentences.append(f"by choice it gives up {self._given_up}")
        return sentences

    async def close(self) -> None:
        """Ends connections."""
        await self._client.close()

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        """A call for each stream, or more where limits or turns want it."""
        failures = await send_entries(
            to_entries(batch, self._record_bytes if self._aggregates else None),
            max_entries=CALL_RECORDS,
            max_bytes=self._call_bytes,
            put=self._put,
            several_destinations=len(self._streams) > 1,
        )
        repeats = self._order == "call" and not self._aggregates
        return with_later_ones(batch, failures) if repeats and failures else failures

    async def _put(self, call: AwsCall) -> Mapping[int, Problem] | Problem:
        doing = f"write to the Kinesis stream {call.destination}"
        bodies = [entry.body for entry in call.entries]
        answer = await self._client.call("put_records", doing, **stream_address(call.destination), Records=bodies)
        if isinstance(answer, Problem):
            return answer
        results = answer["Records"]
        if len(results) != len(bodies):
            return Problem(Kind.BROKEN, f"can't {doing}: the answer covers only {len(results)} of {len(bodies)} records")
        if not answer.get("FailedRecordCount"):
            return {}
        return {
            place: self._access.problem(result["ErrorCode"], result.get("ErrorMessage", ""), doing)
            for place, result in enumerate(results)
            if result.get("ErrorCode")
        }


def stream_address(stream: str) -> dict[str, str]:
    """As calls name a stream; an ARN says which account's."""
    arn = _ARN.fullmatch(stream)
    return {"StreamName": arn["name"], "StreamARN": stream} if arn else {"StreamName": stream}


def to_entries(batch: Sequence[Record], aggregate_limit_bytes: int | None) -> list[AwsEntry]:
    """The batch as entries of PutRecords: one for each record, or aggregates of a key up to that size."""
    if aggregate_limit_bytes is None:
        return [
            AwsEntry(
                record.destination, {"Data": record.value, "PartitionKey": partition_key(record.key)}, record.size_bytes, (index,)
            )
            for index, record in enumerate(batch)
        ]
    lanes: dict[tuple[str, str], list[int]] = {}
    for index, record in enumerate(batch):
        lanes.setdefault(record.route.lane, []).append(index)
    entries: list[AwsEntry] = []
    for lane, indexes in lanes.items():
        key = partition_key(lane[1])
        for turn, group in enumerate(_groups(batch, key, indexes, aggregate_limit_bytes)):
            values = [batch[index].value for index in group]
            data = values[0] if len(values) == 1 else to_aggregate(key, values)
            size_bytes = len(data) + len(key.encode())
            entries.append(AwsEntry(lane[0], {"Data": data, "PartitionKey": key}, size_bytes, group, turn, lane))
    return entries


def _groups(batch: Sequence[Record], key: str, indexes: Sequence[int], limit_bytes: int) -> list[list[int]]:
    """Records of one key, in order, as many together as fit into one record beside the partition key."""
    groups: list[list[int]] = []
    held_bytes = 0
    room_bytes = limit_bytes - len(key.encode())
    for index in indexes:
        value_bytes = len(batch[index].value)
        if not groups or aggregate_bytes(key, held_bytes + value_bytes, len(groups[-1]) + 1) > room_bytes:
            groups.append([])
            held_bytes = 0
        groups[-1].append(index)
        held_bytes += value_bytes
    return groups


def partition_key(key: str) -> str:
    """The key as Kinesis takes it; one that is too long becomes its digest, an empty one a dash."""
    if len(key) <= KEY_CHARACTERS:
        return key or "-"
    return sha256(key.encode()).hexdigest()
