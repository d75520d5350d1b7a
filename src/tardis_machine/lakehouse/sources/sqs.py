"""SQS as a source: a queue can't be read twice, so a receiver writes its messages to files, and Spark reads the files.

The command itself receives, or tasks on executors do (`ReceivingTasks`), where one machine does not take enough. The files lie in the lake,
wherever that is, or in a folder that was named.

Invariant: a message is deleted from its queue when the file that holds it is whole and on disk, never before. One that comes a
second time, as SQS may have it, is a second row of bronze with the same position.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from xxhash import xxh3_64_hexdigest

from ...errors import LakeError, TransientDeliveryError
from ...eventbus.buses.aws import AwsClient, Problem
from ...eventbus.buses.sqs import access_of, routed_queues
from ...telemetry import get_logger
from ..spark_errors import own_words, sentence
from ..storage import Storage, open_storage
from ..tasks import cores
from ..unread import count_files
from .contract import Source, SourceReceiver, SourceStream
from .files import FILES, read_folder
from .options import AwsSourceOptions
from .partitions import call_patiently
from .records import Columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ...settings import Settings

__all__ = ["ReceivingTasks", "SqsOptions", "SqsReceiver", "SqsSource", "create_source", "find_landing", "to_columns"]

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
_TASK_S = 15.0
"""How long a task on an executor receives, before another does: no longer than a job that is told to stop may take."""
_EMPTY_ROUNDS = 2
"""A queue is distributed: one empty answer is no proof."""

_log = get_logger("lakehouse.sources")


class SqsOptions(AwsSourceOptions, frozen=True, kw_only=True):
    """The queues, where they are, and who asks."""

    queue_url: str


def create_source(settings: Settings) -> SqsSource:
    """All queues that the SQS bus of the settings writes to."""
    options = SqsOptions.from_settings(settings, SqsSource.name)
    landing = find_landing(settings.lake, settings.lake_option, settings.landing_dir)
    return SqsSource(options, landing, settings.receivers)


def find_landing(lake: str | Path, options: Mapping[str, str], given: Path | None) -> Storage:
    """Where messages wait to be taken in: in the folder that was given, or in the lake's own."""
    return open_storage(given) if given is not None else open_storage(f"{open_storage(lake, options).root}/_landing", options)


class SqsSource(Source):
    """Some queues, through files in a folder."""

    name = "sqs"

    def __init__(self, options: SqsOptions, landing: Storage, receivers: int = 0) -> None:
        """`receivers`: how many tasks receive on executors; with none the command itself does."""
        self._options = options
        self._landing = replace(landing, root=f"{landing.root}/sqs-{xxh3_64_hexdigest(self.identity().encode())[:8]}")
        self._receivers = receivers

    def identity(self) -> str:
        """The queues."""
        return self._options.identity("queue_url", "routing")

    def read_stream(self, spark: SparkSession, max_batch_bytes: int) -> SourceStream:
        """The messages that were received; files that were taken in are removed."""
        self._landing.create()
        return read_folder(spark, self._landing, max_batch_bytes, cleanSource="delete")

    def count_left(self, checkpoints: Storage, progress: str, sources: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
        """Files that were not read yet."""
        return count_files(self._landing.list_files(self._landing.root, FILES), checkpoints, progress)

    @contextmanager
    def receive(self, spark: SparkSession, *, once: bool) -> Iterator[SourceReceiver]:
        """Receives messages: with `once` what the queues have now, before the stream starts; else for as long as the context lasts."""
        receiver: SqsReceiver | ReceivingTasks
        if self._receivers:
            receiver = ReceivingTasks(spark, self._receivers, self._options, self._landing)
        else:
            receiver = SqsReceiver(self._options, self._landing)
        if once:
            receiver.drain()
            yield receiver
        else:
            with receiver:
                yield receiver


class ReceivingTasks(AbstractContextManager["ReceivingTasks"]):
    """Receivers on executors: a job of Spark's after the other, whose tasks receive for a while each.

    What a task has taken and not yet written when its executor goes comes again.
    """

    def __init__(self, spark: SparkSession, count: int, options: SqsOptions, landing: Storage) -> None:
        free = cores(spark) - count
        if free < 1:
            raise LakeError(
                f"--receivers {count} would leave no core to take in what they receive: there are {cores(spark)}; give fewer, or more "
                "executors"
            )
        self._spark, self._count, self._options, self._landing = spark, count, options, landing
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_for_ever, name="sqs-receivers", daemon=True)
        self.failure: Exception | None = None
        self.left: dict[str, int] = {}

    def drain(self) -> int:
        """Takes what the queues have; how many messages that were."""
        return self._run(None)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run_for_ever(self) -> None:
        try:
            while not self._stop.is_set():
                self._run(_TASK_S)
        except Exception as error:
            self.failure = LakeError(own_words(error) or f"the receivers of SQS stopped: {sentence(error)}")

    def _run(self, for_s: float | None) -> int:
        work = partial(_receive_in_task, self._options, self._landing, for_s)
        rows = self._spark.range(0, self._count, 1, self._count).mapInArrow(work, "received BIGINT, left BIGINT").collect()
        counts = [row["left"] for row in rows if row["left"] is not None]
        self.left = {"messages": min(counts)} if counts else {}
        return sum(row["received"] for row in rows)


def _receive_in_task(
    options: SqsOptions, landing: Storage, for_s: float | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for _ in range(batch.num_rows):
            receiver = SqsReceiver(options, landing)
            received = receiver.drain() if for_s is None else receiver.receive_for(for_s)
            left = pa.array([receiver.left.get("messages")], pa.int64())
            yield pa.RecordBatch.from_arrays([pa.array([received], pa.int64()), left], names=["received", "left"])


class SqsReceiver(AbstractContextManager["SqsReceiver"]):
    """Takes messages from queues into files, in a thread of its own."""

    def __init__(self, options: SqsOptions, landing: Storage) -> None:
        self._access = access_of(options.to_mapping())
        self._queues = list(dict.fromkeys([options.queue_url, *routed_queues(options.to_mapping()).values()]))
        self._landing = landing
        self._client = AwsClient(self._access, "sqs", 2 * _CALLS_AT_ONCE * len(self._queues))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_for_ever, name="sqs-receiver", daemon=True)
        self._look_at = time.monotonic() + _LOOK_S
        self.failure: Exception | None = None
        self.left: dict[str, int] = {}
        """What the queues still have, where that may be asked."""

    def drain(self) -> int:
        """Takes what the queues have; how many messages that were."""
        return asyncio.run(self._drain())

    def receive_for(self, seconds: float) -> int:
        """Takes what comes in some seconds; how many messages that were."""
        threading.Timer(seconds, self._stop.set).start()
        return asyncio.run(self._receive_on())

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

    async def _receive_on(self) -> int:
        taken = 0
        while not self._stop.is_set():
            taken += await self._receive_file_patiently()
            await self._look_ahead()
        await self._client.close()
        return taken

    async def _drain(self) -> int:
        taken = empty = 0
        deadline = time.monotonic() + _HIDDEN_S
        while empty < _EMPTY_ROUNDS or await self._has_more(deadline):
            received = await self._receive_file_patiently()
            if received:
                taken, empty, deadline = taken + received, 0, time.monotonic() + _HIDDEN_S
            else:
                empty += 1
            if await self._look_ahead():
                _log.info("messages are received", bus="sqs", received=taken, **self.left)
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
        counts = [await call_patiently("sqs", partial(self._count, queue), self._client.close) for queue in self._queues]
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

    async def _receive_file_patiently(self) -> int:
        return await call_patiently("sqs", self._receive_file, self._client.close)

    async def _receive_file(self) -> int:
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
            # What was taken is written first: left alone it would be hidden from everybody for a while.
            if failures or not found:
                break
        if held:
            try:
                await asyncio.to_thread(self._write, held)
            except OSError as error:
                raise LakeError(
                    f"messages of SQS can't be written to {self._landing.root}: {error.strerror or error}; name another folder with "
                    "--landing-dir"
                ) from error
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

        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([to_columns(held).to_batch()]), out)
        name = f"part-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex}.parquet"
        self._landing.write_bytes(f"{self._landing.root}/{name}", out.getvalue())

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
                # They come again, and are written again; silver has them once.
                _log.warning("messages that were received could not be removed from their queue", bus="sqs")


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
