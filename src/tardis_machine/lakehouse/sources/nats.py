"""NATS JetStream as a source: a partition is a stream, and a place in it is a sequence number.

Invariant: a stream numbers its messages without holes, so that a range has as many messages as its offsets say, unless some were
removed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DeliveryError, MissingExtraError, TerminalDeliveryError, TransientDeliveryError
from ...eventbus.buses.nats_jetstream.subjects import producible_subjects
from .options import SourceOptions
from .partitions import OffsetRange, Offsets, PartitionedSource, PartitionOffset, PartitionReader
from .records import Columns

if TYPE_CHECKING:
    from ...eventbus.buses.nats_jetstream.connection import NatsConnection
    from ...settings import Settings

__all__ = ["NatsOptions", "NatsReader", "create_source"]

_STEP = 2000
"""Messages that are asked for at a time."""
_RANGE = 50_000
"""Messages of one stream that one task reads."""
_WAIT_S = 5.0
_CONSUMER_GONE_AFTER_NS = 60 * 10**9
_NOT_FOUND = 10059


class NatsOptions(SourceOptions, frozen=True, kw_only=True):
    """The servers, the subjects or the stream, and who asks."""

    servers: tuple[str, ...]
    subject: str
    stream: str | None = None
    routing: Mapping[str, str] | None = None
    destination_template: str | None = None
    include_payloads: Sequence[str] | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: Path | None = None
    nkey: Path | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    inbox_prefix: str = "_INBOX"


def create_source(settings: Settings) -> PartitionedSource:
    """All streams that take the subjects of the settings' NATS bus."""
    options = NatsOptions.from_settings(settings, NatsReader.name)
    return PartitionedSource(NatsReader, options, ("servers", "subject", "routing", "destination_template", "stream"))


class NatsReader(PartitionReader[NatsOptions]):
    """Reads streams with consumers that live for one range."""

    name = "nats"

    def __init__(self, options: NatsOptions) -> None:
        super().__init__(options)
        self._connection: NatsConnection | None = None
        # What the messages of the range at hand are fetched from, and where it is.
        self._consumer: tuple[str, str, str] | None = None

    async def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """Each stream to its last message, or as far as its share of the limit goes."""
        streams = dict.fromkeys([*start, *await self._streams()])
        share = max(limit // max(len(streams), 1), 1)
        offsets = {stream: await self._next_offset(stream, start.get(stream), share) for stream in streams}
        return {stream: offset for stream, offset in offsets.items() if offset is not None}

    async def _streams(self) -> list[str]:
        if self.options.stream is not None:
            return [self.options.stream]
        found: list[str] = []
        for subject in producible_subjects(self.options.to_mapping()):
            found += (await self._request("STREAM.NAMES", {"subject": subject})).get("streams") or ()
        return sorted(set(found))

    async def _next_offset(self, stream: str, offset: PartitionOffset | None, limit: int) -> PartitionOffset | None:
        info = await self._request(f"STREAM.INFO.{stream}", {}, absent=_NOT_FOUND)
        if not info:
            return offset
        first, last = info["state"]["first_seq"], info["state"]["last_seq"]
        began = max(first - 1, 0)
        if offset is None:
            offset = PartitionOffset(at=str(began), read=began, began=began)
        if last < offset.read:
            # Made anew under its name: it is read from its beginning.
            offset = PartitionOffset(at=str(began), read=began, began=began, torn=offset.torn + 1)
        # What was removed is passed over in one step, and counted as missing.
        end = min(last, max(offset.read, began) + limit)
        return PartitionOffset(at=str(end), read=end, began=offset.began, torn=offset.torn)

    async def split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
        """Parts of the same number of messages."""
        first = end.began if start is None or start.torn != end.torn else start.read
        bounds = [*range(first, end.read, _RANGE), end.read]
        return [OffsetRange(partition, str(after), str(until)) for after, until in pairwise(bounds)]

    async def fetch(self, part: OffsetRange, after: str) -> tuple[Columns, str]:
        """The next messages, from a consumer that is made when the range begins, and again when it was lost."""
        records, last, until = Columns(), int(after), int(part.until)
        while last < until and not records.positions:
            messages, is_end = await self._next_messages(part.partition, str(last), min(_STEP, until - last))
            for message in messages:
                sequence, time_us = _place(message)
                if sequence > until:
                    is_end = True
                    break
                headers = list((message.headers or {}).items())
                place = f"{part.partition}:{sequence}"
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
            from ...eventbus.buses.nats_jetstream.connection import NatsEndpoint, NatsLogin, open_connection
        except ImportError:
            raise MissingExtraError("the NATS source", "nats") from None
        await self.close()
        credentials = NatsLogin(**{name: getattr(self.options, name) for name in NatsLogin._fields})
        troubles: list[DeliveryError] = []
        for server in self.options.servers:
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
