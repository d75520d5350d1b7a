"""The format `tardis` as a stream: live from an exchange, or history day by day.

What is heard live can't be asked for again. So the process that plans the stream listens, and writes what comes to a journal on its disk,
a file a second; an offset is the number of a file, and a file goes when its batch was committed. A stream that is started again on that
machine reads the batch that it was at from the journal, with the same rows; what was said while nobody listened is not there.

History needs no journal: an offset is an instant at the end of a day, as mappers begin anew with each.

Invariant: a batch that was planned has the same rows whenever it is read again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from xxhash import xxh3_64_hexdigest

from ..errors import LakeError, TardisMachineError
from ..lakehouse.backfill import split_days
from ..messages import Message
from ..pipeline.columns import kinds_of, schema_of, to_batch
from ..pipeline.request import parse_stream_request
from ..pipeline.stream import stream_normalized
from ..settings import Settings, state_dir
from .columns import to_spark
from .history import HistoryPlan, plan_parts, read_part

__all__ = ["HistoryStreamReader", "Journal", "LivePlan", "LiveStreamReader"]

_FILES_IN_BATCH = 600
_ROWS_IN_FILE = 50_000
_FILE_S = 1.0


class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A day of all symbols at a time."""

    def __init__(self, plan: HistoryPlan, names: tuple[str, ...]) -> None:
        self._plan, self._names = plan, names

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The beginning of the request."""
        return {"until_us": self._plan.request.from_us}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A day; Spark knows no such limit, and is told another."""
        return ReadMaxFiles(1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The stream ends with its request in any case."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next day, or of the request."""
        _, end = next(split_days(start["until_us"], self._plan.request.to_us), (0, start["until_us"]))
        return {"until_us": end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A symbol each."""
        request = msgspec.structs.replace(self._plan.request, from_us=start["until_us"], to_us=end["until_us"])
        return plan_parts(replace(self._plan, request=request))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a symbol's day."""
        return read_part(partition, self._names)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LivePlan:
    """What is listened to, as which columns it comes, and where it is kept until it is read."""

    request: Mapping[str, Any]
    """As clients write it."""
    urls: Mapping[str, str] = field(repr=False)
    credentials: Mapping[str, str] = field(repr=False)
    kinds: tuple[str, ...]
    exact: bool
    journal: str

    @classmethod
    def from_settings(cls, settings: Settings) -> LivePlan:
        """What the options of the format say; OptionsError that names the one that is wrong."""
        asked = {
            "exchange": settings.exchange,
            "symbols": list(settings.symbols) if settings.symbols else None,
            "dataTypes": list(settings.data_types or ()),
            "withDisconnectMessages": settings.with_disconnects,
        }
        request = parse_stream_request(asked)
        kinds = kinds_of(request.data_types, with_disconnects=request.with_disconnect_messages)
        digest = xxh3_64_hexdigest(orjson.dumps([asked, settings.numbers], option=orjson.OPT_SORT_KEYS))
        journal = settings.journal_dir or state_dir(os.environ) / "spark-live" / digest
        urls, credentials = settings.exchange_urls, settings.exchange_credentials
        return cls(asked, urls, credentials, tuple(kinds), settings.numbers == "decimal", str(journal))

    @property
    def columns(self) -> pa.Schema:
        """All that there are."""
        return schema_of(self.kinds, exact=self.exact)


class Journal:
    """Numbered files of rows in a folder that one stream has at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        # It is held as long as the process lives.
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LakeError(
                f"another stream keeps what it hears in {folder}; give this one a folder of its own (journalDir)"
            ) from None
        self._next = max(self.numbers(), default=0) + 1

    def numbers(self) -> list[int]:
        """Of the files that there are, in order."""
        return sorted(int(path.stem) for path in self._folder.glob("*.arrow"))

    @property
    def last(self) -> int:
        """The number of the newest file that is whole, or was."""
        return self._next - 1

    def begin_behind(self, number: int) -> None:
        """Numbers that an earlier run gave, and whose files are gone, are not given again."""
        self._next = max(self._next, number + 1)

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows become a file under their number when they are whole."""
        new = self._folder / f"{self._next}.new"
        with pa.OSFile(str(new), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        new.rename(self.path(self._next))
        self._next += 1

    def path(self, number: int) -> Path:
        """Where a file is."""
        return self._folder / f"{number:012d}.arrow"

    def remove_until(self, number: int) -> None:
        """What was committed is not needed any more."""
        for known in self.numbers():
            if known <= number:
                self.path(known).unlink(missing_ok=True)


class _Listener(threading.Thread):
    """Hears a stream, and writes what comes to a journal."""

    def __init__(self, plan: LivePlan, journal: Journal) -> None:
        super().__init__(name="tardis-live", daemon=True)
        self._plan, self._journal = plan, journal
        self._stop = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._listen())
        except Exception as error:
            self.failure = error

    def end(self) -> None:
        """Lets go of all connections."""
        self._stop.set()
        self.join(10)

    async def _listen(self) -> None:
        heard: list[Message] = []
        listening = asyncio.create_task(self._hear(heard))
        try:
            while not self._stop.is_set() and not listening.done():
                await asyncio.wait([listening], timeout=_FILE_S)
                messages, heard[:] = [*heard], []
                for start in range(0, len(messages), _ROWS_IN_FILE):
                    part = messages[start : start + _ROWS_IN_FILE]
                    await asyncio.to_thread(self._journal.add, to_batch(part, self._plan.kinds, exact=self._plan.exact))
            if listening.done():
                await listening
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _hear(self, heard: list[Message]) -> None:
        async with aclosing(_stream(self._plan)) as stream:
            async for messages in stream:
                heard += messages


def _stream(plan: LivePlan) -> AsyncGenerator[list[Message], None]:
    return stream_normalized(dict(plan.request), exchange_urls=plan.urls, exchange_credentials=plan.credentials)


class LiveStreamReader(DataSourceStreamReader):
    """Listens where the stream is planned; executors get the rows with their tasks."""

    def __init__(self, plan: LivePlan, names: tuple[str, ...]) -> None:
        self._plan, self._names = plan, names
        self._listener: _Listener | None = None
        self._journal: Journal | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """What is in the journal already was for another stream."""
        return {"file": self._open().last}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Of a batch."""
        return ReadMaxFiles(_FILES_IN_BATCH)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The last file that there is, or as many as a batch may have."""
        journal = self._open()
        journal.begin_behind(start["file"])
        if self._listener is None:
            self._listener = _Listener(self._plan, journal)
            self._listener.start()
        failure = self._listener.failure
        if failure is not None:
            known = isinstance(failure, TardisMachineError | ValueError)
            raise LakeError(str(failure) if known else f"the live stream ended: {failure!r}") from failure
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else _FILES_IN_BATCH
        return {"file": min(journal.last, start["file"] + most)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A file each."""
        journal = self._open()
        journal.begin_behind(end["file"])
        numbers = range(start["file"] + 1, end["file"] + 1)
        gone = [number for number in numbers if not journal.path(number).exists()]
        if gone:
            raise LakeError(
                f"{len(gone)} files of this batch are not in the journal {journal.path(gone[0]).parent}: it was removed, or the stream was "
                "begun on another machine; begin a new one with a checkpoint of its own"
            )
        return [InputPartition(journal.path(number).read_bytes()) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a file."""
        with pa.ipc.open_stream(partition.value) as reader:
            for batch in reader:
                yield to_spark(batch, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """What came before is not asked for again."""
        self._open().remove_until(end["file"])

    def stop(self) -> None:
        """Lets go of all connections; the journal stays."""
        if self._listener is not None:
            self._listener.end()

    def _open(self) -> Journal:
        if self._journal is None:
            self._journal = Journal(Path(self._plan.journal))
        return self._journal
