"""SQS as a source: a queue can't be read twice, so a receiver lands its messages as files, and Spark streams the files.

Invariant: a message is deleted from its queue when the file that holds it is whole and on disk, never before. One that comes a
second time, as SQS may have it, is a second row of bronze with the same position.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from xxhash import xxh3_64_hexdigest

from ...errors import LakeError, TransientDeliveryError
from ...eventbus.buses.aws import AwsClient, Problem
from ...eventbus.buses.file import sync
from ...eventbus.buses.sqs import access_of, routed_queues
from ...telemetry import get_logger
from ..unread import count_files
from .files import read_folder
from .lanes import identity_of, patiently
from .records import Columns, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Receiver", "feed", "identity", "read_stream"]

CALL_MESSAGES = 10
FILE_MESSAGES = 10_000
FILE_AGE_S = 2.0
"""How long the first message of a file waits for others."""
_CALLS_AT_ONCE = 8
_POLL_S = 1
_VISIBILITY_S = 120
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
_HIDDEN_S = _VISIBILITY_S + 30
"""How long messages that nobody sees are waited for."""
_LOOK_S = 10.0
"""How often messages are counted that are left."""
_EMPTY_ROUNDS = 2
"""A queue is distributed: one empty answer is no proof."""

_log = get_logger("lakehouse.sources")


def identity(settings: Any) -> str:
    """The queues."""
    return identity_of(settings.for_bus("sqs"), "queue_url", "routing")


def read_stream(spark: SparkSession, settings: Any, max_batch_bytes: int) -> Stream:
    """The messages that were landed; files that were taken in are removed."""
    folder = _landing_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    return read_folder(spark, str(folder), max_batch_bytes, cleanSource="delete")


def count_left(settings: Any, progress: str) -> Mapping[str, int]:
    """Files that were landed and not read yet."""
    return count_files(_landing_folder(settings).glob("*.parquet"), progress)


@contextmanager
def feed(settings: Any, *, once: bool) -> Iterator[Receiver]:
    """Fills the folder: with `once` what the queues have now, before the stream starts; else for as long as the context lasts."""
    receiver = Receiver(settings.for_bus("sqs"), _landing_folder(settings))
    if once:
        receiver.drain()
        yield receiver
    else:
        with receiver:
            yield receiver


def _landing_folder(settings: Any) -> Path:
    base = settings.landing_dir
    if base is None:
        if "://" in str(settings.lake):
            raise LakeError(
                "--landing-dir: is needed where the lake is not in a folder, as messages of SQS wait there to be taken in"
            )
        base = Path(settings.lake).expanduser().absolute() / "_landing"
    return Path(base) / f"sqs-{xxh3_64_hexdigest(identity(settings).encode())[:8]}"


class Receiver(AbstractContextManager["Receiver"]):
    """Takes messages from queues into files, in a thread of its own."""

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        self._access = access_of(options)
        self._queues = list(dict.fromkeys([options["queue_url"], *routed_queues(options).values()]))
        self._folder = folder
        self._client = AwsClient(self._access, "sqs", 2 * _CALLS_AT_ONCE * len(self._queues))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_for_ever, name="sqs-receiver", daemon=True)
        self._files = 0
        self._look_at = time.monotonic() + _LOOK_S
        self.failure: Exception | None = None
        self.left: dict[str, int] = {}
        """What the queues still have, where that may be asked."""

    def drain(self) -> int:
        """Takes what the queues have; how many messages that were."""
        return asyncio.run(self._drain())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run_for_ever(self) -> None:
        try:
            asyncio.run(self._receive_on())
        except Exception as error:
            self.failure = error

    async def _receive_on(self) -> None:
        while not self._stop.is_set():
            await self._land_patiently()
            await self._look_ahead()
        await self._client.close()

    async def _drain(self) -> int:
        taken = empty = 0
        deadline = time.monotonic() + _HIDDEN_S
        while empty < _EMPTY_ROUNDS or await self._has_more(deadline):
            landed = await self._land_patiently()
            if landed:
                taken, empty, deadline = taken + landed, 0, time.monotonic() + _HIDDEN_S
            else:
                empty += 1
            if await self._look_ahead():
                _log.info("messages are landed", bus="sqs", landed=taken, **self.left)
        await self._client.close()
        self.left = {}
        return taken

    async def _look_ahead(self) -> bool:
        """Counts what is left, now and then; whether it did."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_S
        left = await self._count_left()
        self.left = {} if left is None else {"messages": left}
        return True

    async def _has_more(self, deadline: float) -> bool:
        """Whether there are messages that come again: a call took them, and its answer never came; or that have just done so."""
        left = await self._count_left() or 0
        if left and time.monotonic() >= deadline:
            _log.warning("messages are held by another receiver, and are not waited for", bus="sqs", messages=left)
        return left > 0 and time.monotonic() < deadline

    async def _count_left(self) -> int | None:
        counts = [await patiently("sqs", partial(self._count, queue), self._client.close) for queue in self._queues]
        return None if None in counts else sum(count or 0 for count in counts)

    async def _count(self, queue: str) -> int | None:
        await self._client.open()
        doing = f"count the messages of the SQS queue {queue}"
        answer = await self._client.call("get_queue_attributes", doing, QueueUrl=queue, AttributeNames=_COUNTS)
        if not isinstance(answer, Problem):
            return sum(int(answer.get("Attributes", {}).get(name, 0)) for name in _COUNTS)
        error = answer.at_send()
        if isinstance(error, TransientDeliveryError):
            raise error
        # Who may receive need not be allowed to count.
        return None

    async def _land_patiently(self) -> int:
        return await patiently("sqs", self._land_file, self._client.close)

    async def _land_file(self) -> int:
        """Receives until a file is full, old enough, or nothing more comes; writes it; deletes its messages."""
        await self._client.open()
        held: list[tuple[str, Mapping[str, Any]]] = []
        deadline = time.monotonic() + FILE_AGE_S
        while len(held) < FILE_MESSAGES and time.monotonic() < deadline:
            calls = [self._receive(queue) for queue in self._queues for _ in range(_CALLS_AT_ONCE)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            found = [message for answer in answers if not isinstance(answer, BaseException) for message in answer]
            held += found
            if failures and not held:
                raise failures[0]
            # What was taken is landed first: left alone it would be hidden from everybody for a while.
            if failures or not found:
                break
        if held:
            try:
                await asyncio.to_thread(self._write, held)
            except OSError as error:
                raise LakeError(f"--landing-dir: files can't be written to {self._folder}: {error.strerror}") from error
            await self._delete(held)
        return len(held)

    async def _receive(self, queue: str) -> list[tuple[str, Mapping[str, Any]]]:
        answer = await self._client.call(
            "receive_message",
            f"receive from the SQS queue {queue}",
            QueueUrl=queue,
            MaxNumberOfMessages=CALL_MESSAGES,
            WaitTimeSeconds=_POLL_S,
            VisibilityTimeout=_VISIBILITY_S,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["SentTimestamp", "MessageGroupId"],
        )
        if isinstance(answer, Problem):
            raise answer.at_send()
        return [(queue, message) for message in answer.get("Messages", ())]

    def _write(self, held: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._folder.mkdir(parents=True, exist_ok=True)
        self._files += 1
        name = f"part-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{os.getpid()}-{self._files:06d}.parquet"
        hidden = self._folder / f".{name}.new"
        pq.write_table(pa.Table.from_batches([to_columns(held).to_batch()]), hidden)
        sync(hidden)
        hidden.rename(self._folder / name)
        sync(self._folder)

    async def _delete(self, held: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        calls = []
        for queue in self._queues:
            doing = f"remove messages from the SQS queue {queue}"
            entries = [
                {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]}
                for place, (where, message) in enumerate(held)
                if where == queue
            ]
            for first in range(0, len(entries), CALL_MESSAGES):
                part = entries[first : first + CALL_MESSAGES]
                calls.append(self._client.call("delete_message_batch", doing, QueueUrl=queue, Entries=part))
        for answer in await asyncio.gather(*calls):
            if isinstance(answer, Problem) or answer.get("Failed"):
                # They come again, and are landed again; silver has them once.
                _log.warning("messages that were landed could not be removed from their queue", bus="sqs")


def to_columns(held: Sequence[tuple[str, Mapping[str, Any]]]) -> Columns:
    """Messages as rows; a body that is not base64 is kept as it is, for the quarantine."""
    records = Columns()
    for queue, message in held:
        body = message["Body"].encode()
        try:
            value = b64decode(body, validate=True)
        except NotBase64:
            value = body
        headers = [(name, found.get("StringValue", "")) for name, found in message.get("MessageAttributes", {}).items()]
        system = message.get("Attributes", {})
        records.add(
            system.get("MessageGroupId"),
            value,
            headers,
            position=message["MessageId"],
            time_us=int(system.get("SentTimestamp", 0)) * 1000,
            destination=queue,
        )
    return records
