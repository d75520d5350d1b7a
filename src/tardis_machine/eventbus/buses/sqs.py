"""The SQS bus: SendMessageBatch, and what became of each message.

A standard queue promises no order, so neither does this bus for one. A FIFO queue keeps the order of a message group, but a call may
store an entry and refuse an earlier one. With `--sqs-order call`, the default, that one is then sent again with all later ones of its
group, stored or not: a consumer meets some of them before it, and again behind it. With `key` a call has one entry of a group at
most. The deduplication id drops what is sent again within five minutes; it is another one where a message is to be there again.

Invariant: a message's body is the event in base64; its attributes are the record's headers, ten at most.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from ...errors import SettingsError, TerminalDeliveryError
from ...settings import Option, pairs, size_bytes, url
from ..contract import Failure, Limits, Record, Route
from ..options import DEFAULT_KEY_TEMPLATE, RESERVED_HEADERS, common_bus_options, template
from ..routing import Routing
from .aws import AwsAccess, AwsCall, AwsClient, AwsEntry, Kind, Problem, aws_options, send_entries, with_later_ones

__all__ = ["OPTIONS", "REQUIRED", "SqsBus", "access_of", "create_bus", "create_routing", "routed_queues", "to_entry"]

CALL_ENTRIES = 10
ATTRIBUTES = 10
MESSAGE_BYTES = 256 * 1024
"""Of a message, and of a call, where the queue does not say."""
LARGEST_MESSAGE_BYTES = 1024**2
ID_CHARACTERS = 128
"""Of a message group and of a deduplication id."""
CONCURRENT_SENDS = 16
CLOUDEVENT_ATTRIBUTES = 6
REQUEST_META = 5
"""How many attributes the meta of a request makes: request_id, session_id, transport, route, app_version."""

_PUNCTUATION = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_ATTRIBUTE_NAME = re.compile(r"(?!(?:aws|amazon)\.)[\w-]+(?:\.[\w-]+)*", re.ASCII | re.IGNORECASE)
_AWS_HOST = re.compile(r"sqs\.[\w-]+\.amazonaws\.com(\.cn)?", re.ASCII)
_REGION = re.compile(r"(?:^|\.)sqs\.([\w-]+)\.", re.ASCII)
_TYPE = "String"

OPTIONS = (
    Option(name="sqs-queue-url", help="URL of the base queue", group="sqs", parse=url("http", "https")),
    *aws_options("sqs"),
    Option(
        name="sqs-attributes",
        help="Attributes from templates, such as exchange:{{exchange}}",
        group="sqs",
        parse=pairs(value=template),
        aliases=("sqs-attribute-templates",),
        key="header_templates",
    ),
    Option(
        name="sqs-order",
        help="Order in a message group of a FIFO queue: always kept, or, which is faster, kept by repeating what follows one that failed",
        group="sqs",
        choices=("key", "call"),
        default="call",
    ),
    Option(
        name="sqs-max-message-bytes",
        help="Largest message, and largest call, with attributes and base64; by default the limit of the queue",
        group="sqs",
        parse=size_bytes(1024, LARGEST_MESSAGE_BYTES),
    ),
    *common_bus_options(
        "sqs",
        destination="queue",
        key_option="message-group-template",
        headers_option="static-attributes",
        aliases={"static-attributes": ("static-message-attributes", "static-headers")},
        max_batch_size=CALL_ENTRIES,
        max_batch_size_limit=CALL_ENTRIES,
    ),
)
REQUIRED = ("sqs-queue-url",)


def create_bus(options: Mapping[str, Any]) -> SqsBus:
    """The bus as its options say."""
    base = options["queue_url"]
    queues = list(dict.fromkeys([base, *routed_queues(options).values()]))
    problems = [*_queue_problems(base, queues, options), *_attribute_problems(options)]
    if problems:
        raise SettingsError(problems)
    return SqsBus(access_of(options), queues, options["max_message_bytes"], fills_calls=options["order"] == "call")


def create_routing(options: Mapping[str, Any]) -> Routing:
    """Where its records go."""
    return Routing.from_options({**options, "routing": routed_queues(options)}, options["queue_url"])


def access_of(options: Mapping[str, Any]) -> AwsAccess:
    """Where the queues are and who asks, for writers and readers."""
    parts = urlsplit(options["queue_url"])
    found = _REGION.search(parts.hostname or "")
    endpoint_url = None if _AWS_HOST.fullmatch(parts.hostname or "") else f"{parts.scheme}://{parts.netloc}"
    return AwsAccess("sqs", options, found[1] if found else None, endpoint_url)


def routed_queues(options: Mapping[str, Any]) -> dict[str, str]:
    """Payload case to queue's URL; a mere name is a queue beside the base one."""
    beside = options["queue_url"].rpartition("/")[0]
    routing: Mapping[str, str] = options["routing"] or {}
    return {case: queue if "://" in queue else f"{beside}/{queue}" for case, queue in routing.items()}


def _queue_problems(base: str, queues: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    problems = []
    for queue in queues:
        if not re.fullmatch(r"[\w-]{1,80}|[\w-]{1,75}\.fifo", queue.rpartition("/")[2], re.ASCII):
            what = "letters, digits, - and _, 80 at most, and .fifo at the end of a FIFO queue"
            problems.append(f"the SQS queue {queue} has an invalid name; expected {what}")
        if urlsplit(queue)[:2] != urlsplit(base)[:2]:
            problems.append(f"--sqs-queue-routing: {queue} is not at the address of --sqs-queue-url, {base}")
    if options["key_template"] != DEFAULT_KEY_TEMPLATE and not any(map(is_fifo, queues)):
        problems.append(f"--sqs-message-group-template is only for FIFO queues, whose names end with .fifo; {base} is not one")
    return problems


def _attribute_problems(options: Mapping[str, Any]) -> list[str]:
    names = [*(options["static_headers"] or {}), *(options["header_templates"] or {})]
    prefix = options["meta_headers_prefix"]
    problems = [
        f"--sqs-{'meta-headers-prefix' if name == prefix else 'static-attributes'} makes an attribute {name!r}, "
        "whose name SQS refuses; expected letters, digits and _-., without AWS. or Amazon. at the start"
        for name in [*names, *([prefix] if prefix else [])]
        if not _ATTRIBUTE_NAME.fullmatch(f"{name}x" if name == prefix else name)
    ]
    cloudevents = CLOUDEVENT_ATTRIBUTES if options["cloudevents"] else 0
    count = len(RESERVED_HEADERS) + cloudevents + len(names) + (REQUEST_META if prefix is not None else 0)
    if count > ATTRIBUTES:
        always = ", ".join(RESERVED_HEADERS) + (f", {cloudevents} of CloudEvents" if cloudevents else "")
        always += f", {len(names)} of your own"
        meta = f" and {REQUEST_META} of the request's meta" if prefix is not None else ""
        problems.append(f"SQS accepts {ATTRIBUTES} attributes a message, but there are {count}: {always}{meta}")
    return problems


def is_fifo(queue: str) -> bool:
    """By its name, as SQS has it."""
    return queue.endswith(".fifo")


class SqsBus:
    """Sends to some queues of one region."""

    name = "sqs"

    def __init__(
        self, access: AwsAccess, queues: Sequence[str], max_message_bytes: int | None, *, fills_calls: bool = False
    ) -> None:
        self._access = access
        self._queues = queues
        self._fills_calls = fills_calls
        self._asked_bytes = max_message_bytes
        self._message_bytes = max_message_bytes or MESSAGE_BYTES
        self._client = AwsClient(access, "sqs", CONCURRENT_SENDS)
        self._attributes: WeakKeyDictionary[Route, Attributes] = WeakKeyDictionary()
        # How often messages were stored before an earlier one of their group, by deduplication id; they are to be there again.
        self._overtaking: dict[str, int] = {}
        self.limits = self._limits()

    def _limits(self) -> Limits:
        has_fifo = any(map(is_fifo, self._queues))
        return Limits(
            batch_records=CALL_ENTRIES,
            # Calls are cut by what base64 makes of it; this is about what goes together into one.
            batch_bytes=self._message_bytes * 3 // 4,
            record_bytes=(self._message_bytes - ATTRIBUTES * (len(_TYPE) + 4)) * 3 // 4,
            ordered=has_fifo,
            keeps_order_in_batch=self._fills_calls or not has_fifo,
            concurrent_sends=CONCURRENT_SENDS,
            send_timeout_s=2 * self._access.request_timeout_s,
            gives_up=self._given_up if has_fifo else "order: a standard queue promises none",
        )

    @property
    def _given_up(self) -> str:
        if self._fills_calls:
            return (
                "order in a message group where a part of a call fails: later messages arrive before it, and again behind it "
                "(--sqs-order call; key keeps it)"
            )
        return "pace: one message of a group a call (--sqs-order key; call is faster)"

    async def connect(self) -> None:
        """A client with credentials as they are now, and queues that can be written."""
        await self._client.open()
        sizes = []
        for queue in self._queues:
            found = await self._verify(queue)
            sizes.append(MESSAGE_BYTES if found is None else _size_of(found))
        if self._asked_bytes is None:
            self._message_bytes = min(sizes)
            self.limits = self._limits()

    async def _verify(self, queue: str) -> Mapping[str, str] | None:
        """What the queue says of itself; None where we may send to it but not ask."""
        doing = f"read the attributes of the SQS queue {queue}"
        found = await self._client.call("get_queue_attributes", doing, QueueUrl=queue, AttributeNames=["All"])
        if isinstance(found, Problem):
            if found.kind is not Kind.FORBIDDEN:
                raise found.at_connect()
            await self._probe(queue)
            return None
        attributes: Mapping[str, str] = found["Attributes"]
        if (attributes.get("FifoQueue") == "true") != is_fifo(queue):
            says, name = ("is not a FIFO queue", "ends") if is_fifo(queue) else ("is a FIFO queue", "does not end")
            raise TerminalDeliveryError(f"the SQS queue {queue} {says}, though its name {name} with .fifo")
        if self._asked_bytes is not None and self._asked_bytes > _size_of(attributes, LARGEST_MESSAGE_BYTES):
            takes = _size_of(attributes)
            raise TerminalDeliveryError(
                f"--sqs-max-message-bytes is {self._asked_bytes}, but the queue {queue} accepts at most {takes}"
            )
        return attributes

    async def _probe(self, queue: str) -> None:
        """Asks whether we may send, with a call that can't be done: two entries have the same id."""
        twice = [{"Id": "probe", "MessageBody": "-"}] * 2
        answer = await self._client.call("send_message_batch", f"send to the SQS queue {queue}", QueueUrl=queue, Entries=twice)
        if isinstance(answer, Problem) and answer.kind is not Kind.INVALID:
            raise answer.at_connect()

    async def check(self) -> Sequence[str]:
        """Sentences for `doctor`."""
        sentences = []
        for queue in self._queues:
            attributes = await self._verify(queue)
            kind = "FIFO: order for a message group is kept" if is_fifo(queue) else "standard: no order is promised"
            if attributes is None:
                sentences.append(f"the queue {queue} exists ({kind}), and its attributes may not be read with these credentials")
            else:
                sentences.append(f"the queue {queue} exists ({kind}), and accepts messages of up to {_size_of(attributes)} bytes")
                if "MessageRetentionPeriod" in attributes:
                    sentences.append(f"it keeps messages for {int(attributes['MessageRetentionPeriod']) / 3600:g} hours")
                if is_fifo(queue):
                    scope, limit = (
                        attributes.get("DeduplicationScope", "queue"),
                        attributes.get("FifoThroughputLimit", "perQueue"),
                    )
                    sentences.append(f"it drops what is sent again (scope {scope}), and has its throughput limit {limit}")
            await self._probe(queue)
            sentences.append(f"messages may be sent to {queue}")
        sentences.append(f"by choice it gives up {self.limits.gives_up}")
        return sentences

    async def close(self) -> None:
        """Ends connections."""
        await self._client.close()

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        """A call for each queue, or more where the size limit wants it."""
        failures = await send_entries(
            [self._to_entry(record, index) for index, record in enumerate(batch)],
            max_entries=CALL_ENTRIES,
            max_bytes=self._message_bytes,
            put=self._put,
            several_destinations=len(self._queues) > 1,
        )
        if not (self._fills_calls and self.limits.ordered) or not (failures or self._overtaking):
            return failures
        repeated = with_later_ones(batch, failures)
        refused, again = ({failure.index for failure in found} for found in (failures, repeated))
        for index, record in enumerate(batch):
            if index not in again:
                self._overtaking.pop(record.deduplication_id, None)
            elif index not in refused:
                self._overtaking[record.deduplication_id] = self._overtaking.get(record.deduplication_id, 0) + 1
        return repeated

    def _to_entry(self, record: Record, index: int) -> AwsEntry:
        times = self._overtaking.get(record.deduplication_id, 0) if self._overtaking else 0
        return to_entry(record, index, self._attributes_of(record.route), f"+{times}" if times else "")

    def _attributes_of(self, route: Route) -> Attributes:
        found = self._attributes.get(route)
        if found is None:
            found = self._attributes[route] = Attributes(route)
        return found

    async def _put(self, call: AwsCall) -> Mapping[int, Problem] | Problem:
        doing = f"send to the SQS queue {call.destination}"
        bodies = [entry.body for entry in call.entries]
        answer = await self._client.call("send_message_batch", doing, QueueUrl=call.destination, Entries=bodies)
        if isinstance(answer, Problem):
            return answer
        stored = {result["Id"] for result in answer.get("Successful", ())}
        refused = {result["Id"]: result for result in answer.get("Failed", ())}
        problems: dict[int, Problem] = {}
        for place, body in enumerate(bodies):
            if body["Id"] in refused:
                result = refused[body["Id"]]
                problems[place] = self._access.problem(result.get("Code", ""), result.get("Message", ""), doing)
            elif body["Id"] not in stored:
                problems[place] = Problem(Kind.BROKEN, f"can't {doing}: the answer does not mention a message")
        return problems


def _size_of(attributes: Mapping[str, str], unsaid: int = MESSAGE_BYTES) -> int:
    return int(attributes.get("MaximumMessageSize", unsaid))


class Attributes:
    """The attributes that all messages of a route have, and what they add to a message's size."""

    __slots__ = ("group", "id_names", "members", "size_bytes")

    def __init__(self, route: Route) -> None:
        # SQS takes no empty value; what does not fit is the request's meta, which the event has too.
        headers = [(name, value.decode()) for name, value in (*route.headers_before, *route.headers_after) if value]
        self.id_names = ("eventId", route.also_id_header) if route.also_id_header else ("eventId",)
        headers = headers[: ATTRIBUTES - len(self.id_names)]
        self.members = {name: {"DataType": _TYPE, "StringValue": value} for name, value in headers}
        id_bytes = sum(len(name) + len(_TYPE) + 32 for name in self.id_names)
        self.size_bytes = id_bytes + sum(len(name.encode()) + len(_TYPE) + len(value.encode()) for name, value in headers)
        self.group = to_id(route.key) if is_fifo(route.destination) else None


def to_entry(record: Record, index: int, attributes: Attributes, copy: str = "") -> AwsEntry:
    """The record as an entry of SendMessageBatch; `copy` tells it from one that the queue has already."""
    event_id = {"DataType": _TYPE, "StringValue": record.event.event_id.hex()}
    text = b64encode(record.value).decode()
    body: dict[str, Any] = {
        "Id": str(index),
        "MessageBody": text,
        "MessageAttributes": attributes.members | dict.fromkeys(attributes.id_names, event_id),
    }
    if attributes.group is not None:
        body["MessageGroupId"] = attributes.group
        body["MessageDeduplicationId"] = to_id(record.deduplication_id + copy)
    return AwsEntry(record.destination, body, len(text) + attributes.size_bytes, (index,))


def to_id(given: str) -> str:
    """A text as SQS takes it for a group or a deduplication id: escaped, and its digest where it is too long."""
    if not given:
        return "-"
    escaped = given if given.isascii() and given.isalnum() else quote(given, safe=_PUNCTUATION)
    return escaped if len(escaped) <= ID_CHARACTERS else sha256(given.encode()).hexdigest()
