"""NATS JetStream as a source: a lane for each stream, its place a sequence number.

Invariant: a stream numbers its messages without holes, so that a range has as many messages as its marks say, unless some were
removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...errors import DeliveryError, MissingExtraError, TerminalDeliveryError, TransientDeliveryError
from ...eventbus.buses.nats_jetstream.subjects import producible_subjects
from .lanes import Lanes, Mark, Marks, Range, count_between, identity_of, read_lanes
from .records import ROW_BYTES, Columns, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...eventbus.buses.nats_jetstream.connection import NatsConnection

__all__ = ["NatsLanes", "expected_rows", "identity", "read_stream"]

expected_rows = count_between

_STEP = 2000
"""Messages that are asked for at a time."""
_RANGE = 50_000
"""Messages of one stream that one task reads."""
_WAIT_S = 5.0
_CONSUMER_GONE_AFTER_NS = 60 * 10**9
_NOT_FOUND = 10059


def identity(settings: Any) -> str:
    """The servers and the subjects, or the stream."""
    return identity_of(settings.for_bus("nats"), "servers", "subject", "routing", "destination_template", "stream")


def read_stream(spark: SparkSession, settings: Any, max_batch_bytes: int) -> Stream:
    """The messages of all streams that take the bus's subjects."""
    return read_lanes(spark, NatsLanes, settings.for_bus("nats"), max(max_batch_bytes // ROW_BYTES, 1))


class NatsLanes(Lanes):
    """Reads streams with consumers that live for one range."""

    name = "nats"

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._connection: NatsConnection | None = None
        # What the messages of the range at hand are fetched from, and where it is.
        self._consumer: tuple[str, str, str] | None = None

    async def advance(self, start: Marks, limit: int) -> dict[str, Mark]:
        """Each stream to its last message, or as far as its share of the limit goes."""
        streams = dict.fromkeys([*start, *await self._streams()])
        share = max(limit // max(len(streams), 1), 1)
        marks = {stream: await self._next_mark(stream, start.get(stream), share) for stream in streams}
        return {stream: mark for stream, mark in marks.items() if mark is not None}

    async def _streams(self) -> list[str]:
        if self.options["stream"] is not None:
            return [self.options["stream"]]
        found: list[str] = []
        for subject in producible_subjects(self.options):
            found += (await self._request("STREAM.NAMES", {"subject": subject})).get("streams") or ()
        return sorted(set(found))

    async def _next_mark(self, stream: str, mark: Mark | None, limit: int) -> Mark | None:
        info = await self._request(f"STREAM.INFO.{stream}", {}, absent=_NOT_FOUND)
        if not info:
            return mark
        first, last = info["state"]["first_seq"], info["state"]["last_seq"]
        began = max(first - 1, 0)
        if mark is None:
            mark = Mark(at=str(began), read=began, began=began)
        if last < mark.read:
            # Made anew under its name: it is read from its beginning.
            mark = Mark(at=str(began), read=began, began=began, torn=mark.torn + 1)
        # What was removed is passed over in one step, and counted as missing.
        end = min(last, max(mark.read, began) + limit)
        return Mark(at=str(end), read=end, began=mark.began, torn=mark.torn)

    def split(self, lane: str, start: Mark | None, end: Mark) -> Sequence[Range]:
        """Parts of the same number of messages."""
        first = end.began if start is None or start.torn != end.torn else start.read
        bounds = [*range(first, end.read, _RANGE), end.read]
        return [Range(lane, str(after), str(until)) for after, until in pairwise(bounds)]

    async def fetch(self, part: Range, after: str) -> tuple[Columns, str]:
        """The next messages, from a consumer that is made when the range begins, and again when it was lost."""
        records, last, until = Columns(), int(after), int(part.until)
        while last < until and not records.positions:
            messages, is_end = await self._next_messages(part.lane, str(last), min(_STEP, until - last))
            for message in messages:
                sequence, time_us = _place(message)
                if sequence > until:
                    is_end = True
                    break
                headers = list((message.headers or {}).items())
                place = f"{part.lane}:{sequence}"
                records.add(None, message.data, headers, position=place, time_us=time_us, destination=message.subject)
                last = sequence
            if is_end:
                break
        if records.positions:
            assert self._consumer is not None
            self._consumer = (*self._consumer[:2], str(last))
        return records, str(last)

    async def _next_messages(self, stream: str, after: str, count: int) -> tuple[list[Any], bool]:
        """Some messages behind a place; and whether there are no more."""
        import asyncio

        consumer = await self._consumer_at(stream, after)
        connection = await self._connected()
        client = connection._client
        inbox = f"{client.new_inbox()}"
        subscription = await client.subscribe(inbox)
        messages: list[Any] = []
        try:
            request = b'{"batch":%d,"no_wait":true}' % count
            await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", request, reply=inbox)
            while len(messages) < count:
                message = await asyncio.wait_for(subscription.next_msg(_WAIT_S), _WAIT_S)
                status = (message.headers or {}).get("Status")
                if status is None:
                    messages.append(message)
                elif status in ("404", "408"):
                    return messages, True
                else:
                    said = (message.headers or {}).get("Description")
                    raise TransientDeliveryError(f"the NATS stream {stream} can't be read: {status} {said}")
        except TransientDeliveryError:
            raise
        except Exception as error:
            raise TransientDeliveryError(f"the NATS stream {stream} was not read on: {error or type(error).__name__}") from error
        finally:
            if not client.is_closed:
                await subscription.unsubscribe()
        return messages, False

    async def _consumer_at(self, stream: str, after: str) -> str:
        if self._consumer is not None and self._consumer[0] == stream and self._consumer[2] == after:
            return self._consumer[1]
        await self._remove_consumer()
        name = f"lake-{uuid.uuid4().hex}"
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": int(after) + 1,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _CONSUMER_GONE_AFTER_NS,
        }
        await self._request(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        self._consumer = (stream, name, after)
        return name

    async def _remove_consumer(self) -> None:
        gone, self._consumer = self._consumer, None
        if gone is not None:
            await self._request(f"CONSUMER.DELETE.{gone[0]}.{gone[1]}", {}, absent=10014)

    async def _request(self, subject: str, body: Mapping[str, Any], absent: int | None = None) -> dict[str, Any]:
        """A call of the JetStream API; nothing where what it is about is not there."""
        from ...eventbus.buses.nats_jetstream.connection import ApiError

        connection = await self._connected()
        try:
            return await connection.request(subject, body)
        except ApiError as error:
            if absent is not None and error.code == absent:
                return {}
            raise TerminalDeliveryError(f"JetStream does not answer {subject}: {error}") from None

    async def _connected(self) -> NatsConnection:
        if self._connection is not None and not self._connection.lost.done():
            return self._connection
        try:
            from ...eventbus.buses.nats_jetstream.connection import Credentials, NatsEndpoint, open_connection
        except ImportError:
            raise MissingExtraError("the NATS source", "nats") from None
        await self.close()
        credentials = Credentials(**{name: self.options[name] for name in Credentials._fields})
        troubles: list[DeliveryError] = []
        for server in self.options["servers"]:
            try:
                self._connection = await open_connection(NatsEndpoint.from_url(server), credentials, {})
            except DeliveryError as error:
                troubles.append(error)
            else:
                return self._connection
        raise next((error for error in troubles if isinstance(error, TransientDeliveryError)), troubles[0])

    async def close(self) -> None:
        """Drops the connection, and with it the consumer."""
        connection, self._connection, self._consumer = self._connection, None, None
        if connection is not None:
            await connection.close()


def _place(message: Any) -> tuple[int, int]:
    """The sequence number and the time in the reply subject: $JS.ACK.(domain.account.)stream.consumer.delivered.seq.…"""
    words = message.reply.split(".")
    sequence, time_ns = (words[5], words[7]) if len(words) == 9 else (words[7], words[9])
    return int(sequence), int(time_ns) // 1000
