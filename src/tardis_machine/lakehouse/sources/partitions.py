"""What the sources share that Spark reads through Python: a bus as partitions of records, planned and read by their offsets.

A partition is what a bus keeps in order: a stream, or a shard of one. An offset says how far a partition was read, and how many records
that were. So two offsets say what lies between them, and how many records must come out. A reader needs nothing else: any process reads a
range from its two ends, as often as is asked for.

Invariant: a batch holds exactly the records between its offsets. Records that are gone are missing from it, and show in its count.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from ...errors import LakeError, TerminalDeliveryError, TransientDeliveryError
from ...telemetry import get_logger
from ..storage import Storage
from ..unread import count_records
from .contract import Source, SourceStream, lost_by_count
from .options import SourceOptions
from .records import DDL, ROW_BYTES, Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ALL",
    "BlockingReader",
    "OffsetRange",
    "Offsets",
    "PartitionOffset",
    "PartitionReader",
    "PartitionedSource",
    "call_patiently",
    "count_between",
    "from_json",
    "reader_for",
    "to_json",
    "within",
]

T = TypeVar("T")
Options = TypeVar("Options", bound=SourceOptions)

PATIENCE_S = 600.0
"""How long a broker may be away before the job gives up."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
ALL = 1 << 60

_log = get_logger("lakehouse.sources")


class PartitionOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a partition was read. Checkpoints hold these fields under these names."""

    at: str
    """The last record read, as its bus names it; empty before the first."""
    read: int
    """The number of records up to and with that one, counted as the bus counts; where it does not count, what it was before."""
    began: int
    """What `read` was before the partition's first batch."""
    closed: bool = False
    """Nothing will ever come after it."""
    torn: int = 0
    """How often the partition was found changed behind the offset, so that what is missing can't be counted."""


Offsets = Mapping[str, PartitionOffset]
"""Partition to offset: what Spark calls the offset of a stream."""


class OffsetRange(NamedTuple):
    """A part of a partition: the records after one place, up to and with another."""

    partition: str
    after: str
    """Empty: from the oldest record that there is."""
    until: str


class PartitionReader(ABC, Generic[Options]):
    """Reads the partitions of a bus; one subclass for each bus.

    A call that fails with TransientDeliveryError is made again, after `close`. One that fails with TerminalDeliveryError ends the job.
    """

    name: ClassVar[str]
    tells_its_end: ClassVar[bool] = True
    """Whether the newest record can be found without reading all before it."""
    asks_what_is_lost: ClassVar[bool] = False
    """Whether the bus has to be asked, when a batch was read, whether it lacks something: it does not count its records."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    async def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """Where a batch ends that begins at `start`: about `limit` records further, over known partitions and new ones.

        It must not go back. Where nothing is new, it returns what it was given.
        """

    @abstractmethod
    async def split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
        """What lies between two offsets, in parts that may be read side by side; `start` is None for a partition that is new."""

    @staticmethod
    def order(offset: PartitionOffset) -> Any:
        """By which of two offsets of a partition the earlier one is known."""
        return offset.read

    async def find_lost(self, start: Offsets, end: Offsets, rows: int) -> int | None:
        """How many records a batch lacks that was read with so many rows; None where some are gone and nobody knows how many."""
        expected = count_between(to_json(start), to_json(end))
        return None if expected is None else expected - rows

    @abstractmethod
    async def fetch(self, part: OffsetRange, after: str) -> tuple[Columns, str]:
        """The next records of a range, behind the place `after`, and the place of the last of them.

        No records means that the range is read to its end.
        """

    @abstractmethod
    async def close(self) -> None:
        """Lets go of all connections; the next call opens them again."""


def from_json(offset: Mapping[str, Any]) -> dict[str, PartitionOffset]:
    """Offsets as Spark hands them back."""
    return {partition: msgspec.convert(found, PartitionOffset) for partition, found in offset.items()}


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Offsets as Spark writes them to a checkpoint."""
    return {partition: msgspec.to_builtins(offset) for partition, offset in offsets.items()}


def count_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> int | None:
    """How many records a batch must have; None where a partition was changed under the reader, so that nobody can tell."""
    before, after = from_json(start), from_json(end)
    torn = {partition: offset.torn for partition, offset in before.items()}
    if any(offset.torn > torn.get(partition, 0) for partition, offset in after.items()):
        return None
    return sum(
        offset.read - (before[partition].read if partition in before else offset.began) for partition, offset in after.items()
    )


class BlockingReader:
    """A reader for code that is not asynchronous: one event loop, and patience with a broker that is away."""

    def __init__(self, reader: PartitionReader[Any]) -> None:
        self.reader = reader
        self._runner = asyncio.Runner()

    def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """The end of the batch after `start`."""
        return self._call(lambda: self.reader.advance(start, limit))

    def newest(self, start: Offsets) -> dict[str, PartitionOffset]:
        """The end of all that is there now; partitions that follow on others come to light when those are at their end."""
        found = self.advance(start, ALL)
        while (further := self.advance(found, ALL)).keys() != found.keys():
            found = further
        return found

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What a batch is read from."""
        changed = [(partition, offset) for partition, offset in end.items() if start.get(partition) != offset]
        return [part for partition, offset in changed for part in self._split(partition, start.get(partition), offset)]

    def find_lost(self, start: Offsets, end: Offsets, rows: int) -> int | None:
        """What a batch lacks that was read."""
        return self._call(lambda: self.reader.find_lost(start, end, rows))

    def read(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        after = part.after
        while True:
            records, after = self._call(lambda: self.reader.fetch(part, after))  # noqa: B023 - called at once
            if not records.positions:
                return
            yield records.to_batch()

    def close(self) -> None:
        """Ends connections, and the loop."""
        self._runner.run(self.reader.close())
        self._runner.close()

    def _split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
        return self._call(lambda: self.reader.split(partition, start, end))

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._runner.run(call_patiently(self.reader.name, make, self.reader.close))


async def call_patiently(
    bus: str, make: Callable[[], Coroutine[Any, Any, T]], reset: Callable[[], Coroutine[Any, Any, None]]
) -> T:
    """What a call gives, made again for as long as its broker is away; `reset` lets go of what connects to it."""
    deadline, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
    while True:
        try:
            return await make()
        except TransientDeliveryError as error:
            await reset()
            if time.monotonic() > deadline:
                raise LakeError(f"the {bus} source gave up after {PATIENCE_S:g} s: {error}") from error
            _log.warning("the broker is away, and is asked again", bus=bus, error=str(error))
        except TerminalDeliveryError as error:
            raise LakeError(f"the {bus} source can't go on: {error}") from error
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


_open_readers: list[BlockingReader] = []
"""Workers are used again: a connection outlives the range that it was opened for."""


def reader_for(kind: type[PartitionReader[Any]], options: SourceOptions) -> BlockingReader:
    """The reader that this process has, opened when it is first asked for."""
    for known in _open_readers:
        if type(known.reader) is kind and known.reader.options == options:
            return known
    _open_readers.append(BlockingReader(kind(options)))
    return _open_readers[-1]


class PartitionedSource(Source):
    """A source whose bus is read by a `PartitionReader`."""

    def __init__(self, reader: type[PartitionReader[Any]], options: SourceOptions, identified_by: Sequence[str]) -> None:
        """`identified_by` names the options that tell the source apart from others."""
        self.reader = reader
        self.options = options
        self._identified_by = tuple(identified_by)

    @property
    def name(self) -> str:
        """That of the bus."""
        return self.reader.name

    def identity(self) -> str:
        """Some of the options, without passwords."""
        return self.options.identity(*self._identified_by)

    def read_stream(self, spark: SparkSession, max_batch_bytes: int) -> SourceStream:
        """The records of all partitions."""
        rows = _read_stream(spark, self.reader, self.options, max(max_batch_bytes // ROW_BYTES, 1))
        return SourceStream(rows, find_lost=self._find_lost if self.reader.asks_what_is_lost else lost_by_count(count_between))

    def _find_lost(self, start: Mapping[str, Any], end: Mapping[str, Any], rows: int) -> int | None:
        reader = BlockingReader(self.reader(self.options))
        try:
            return reader.find_lost(from_json(start), from_json(end), rows)
        finally:
            reader.close()

    def count_left(self, checkpoints: Storage, progress: str, sources: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
        """Records up to the newest offsets, where the reader tells those."""
        return {} if self.reader.asks_what_is_lost else count_records(count_between, sources)


def _read_stream(spark: SparkSession, kind: type[PartitionReader[Any]], options: SourceOptions, max_rows: int) -> DataFrame:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from .spark_readers import BusStreamReader

    class BusDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"tardis_machine_{kind.name}"

        def schema(self) -> str:
            return DDL

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return BusStreamReader(kind, options, max_rows)

    # Options go with the class, which is pickled, and not as options of Spark, which prints those.
    spark.dataSource.register(BusDataSource)
    return spark.readStream.format(BusDataSource.name()).load()


def within(offsets: Offsets, target: Offsets | None, order: Callable[[PartitionOffset], Any]) -> dict[str, PartitionOffset]:
    """Not past what was there when a job that is to end began."""
    if target is None:
        return dict(offsets)
    return {partition: min(offset, target[partition], key=order) for partition, offset in offsets.items() if partition in target}
