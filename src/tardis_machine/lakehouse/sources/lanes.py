"""What the sources share that Spark reads through Python: a bus as lanes of records, planned and read range by range.

A lane is what a bus keeps in order: a stream, or a shard of one. A mark says how far a lane was read, and how many records that
were; so whoever knows two marks knows what lies between them, and how many records must come out. A reader needs nothing else: a
range is read from its marks alone, by any process, as often as is asked for.

Invariant: a batch holds exactly the records between its marks. Records that are gone are missing from it, and show in its count.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from ...errors import LakeError, TerminalDeliveryError, TransientDeliveryError
from ...telemetry import get_logger
from .records import DDL, Columns, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Lanes",
    "Mark",
    "Marks",
    "Range",
    "Reading",
    "count_between",
    "identity_of",
    "patiently",
    "read_lanes",
]

T = TypeVar("T")

PATIENCE_S = 600.0
"""How long a broker may be away before the job gives up."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

_log = get_logger("lakehouse.sources")


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a lane was read."""

    at: str
    """The last record read, as its bus names it; empty before the first."""
    read: int
    """The number of records up to and with that one, counted as the bus counts."""
    began: int
    """What `read` was before the lane's first batch."""
    closed: bool = False
    """Nothing will ever come after it."""
    torn: int = 0
    """How often the lane was found changed behind the mark, so that what is missing can't be counted."""


Marks = Mapping[str, Mark]
"""Lane to mark."""


class Range(NamedTuple):
    """A part of a lane: the records after one place, up to and with another."""

    lane: str
    after: str
    """Empty: from the oldest record that there is."""
    until: str


class Lanes(ABC):
    """A bus as a source sees it; one subclass for each. Trouble that may pass is a TransientDeliveryError, and the call is made again
    after `close`."""

    name: ClassVar[str]
    tells_its_end: ClassVar[bool] = True
    """Whether the newest record can be found without reading all before it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` as `Settings.for_bus` gives them."""
        self.options = options

    @abstractmethod
    async def advance(self, start: Marks, limit: int) -> dict[str, Mark]:
        """How far a batch goes that begins at `start`: about `limit` records in all, of lanes that were known and of new ones."""

    @abstractmethod
    def split(self, lane: str, start: Mark | None, end: Mark) -> Sequence[Range]:
        """What lies between two marks, in parts that may be read side by side."""

    @abstractmethod
    async def fetch(self, part: Range, after: str) -> tuple[Columns, str]:
        """The next records of a range, behind the place `after`, and the place of the last of them; none means the range is read."""

    @abstractmethod
    async def close(self) -> None:
        """Lets go of all connections."""


def to_marks(offset: Mapping[str, Any]) -> dict[str, Mark]:
    """From Spark's JSON."""
    return {lane: msgspec.convert(mark, Mark) for lane, mark in offset.items()}


def to_offset(marks: Marks) -> dict[str, Any]:
    """For Spark's JSON."""
    return {lane: msgspec.to_builtins(mark) for lane, mark in marks.items()}


def count_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> int | None:
    """How many records a batch must have; None where a lane was changed under the reader, so that nobody can tell."""
    before, after = to_marks(start), to_marks(end)
    torn = {lane: mark.torn for lane, mark in before.items()}
    if any(mark.torn > torn.get(lane, 0) for lane, mark in after.items()):
        return None
    return sum(mark.read - (before[lane].read if lane in before else mark.began) for lane, mark in after.items())


class Reading:
    """Lanes in this process: one event loop, and patience with a broker that is away."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._runner = asyncio.Runner()

    def advance(self, start: Marks, limit: int) -> dict[str, Mark]:
        """The end of the batch after `start`."""
        return self._call(lambda: self.lanes.advance(start, limit))

    def newest(self, start: Marks) -> dict[str, Mark]:
        """The end of all that is there now; lanes that follow on others come to light when those are at their end."""
        found = self.advance(start, _ALL)
        while (further := self.advance(found, _ALL)).keys() != found.keys():
            found = further
        return found

    def ranges(self, start: Marks, end: Marks) -> list[Range]:
        """What a batch is read from."""
        changed = [(lane, mark) for lane, mark in end.items() if start.get(lane) != mark]
        return [part for lane, mark in changed for part in self.lanes.split(lane, start.get(lane), mark)]

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        after = part.after
        while True:
            records, after = self._call(lambda: self.lanes.fetch(part, after))  # noqa: B023 - called at once
            if not records.positions:
                return
            yield records.to_batch()

    def close(self) -> None:
        """Ends connections, and the loop."""
        self._runner.run(self.lanes.close())
        self._runner.close()

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._runner.run(patiently(self.lanes.name, make, self.lanes.close))


async def patiently(bus: str, make: Callable[[], Coroutine[Any, Any, T]], reset: Callable[[], Coroutine[Any, Any, None]]) -> T:
    """What a call gives, made again for as long as its broker is away; `reset` lets go of what connects to it."""
    deadline, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
    while True:
        try:
            return await make()
        except TransientDeliveryError as error:
            await reset()
            if time.monotonic() > deadline:
                raise LakeError(f"The {bus} source gave up after {PATIENCE_S:g} s: {error}") from error
            _log.warning("the broker is away, and is asked again", bus=bus, error=str(error))
        except TerminalDeliveryError as error:
            raise LakeError(f"The {bus} source can't go on: {error}") from error
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@cache
def _reading(kind: type[Lanes], options_text: str) -> Reading:
    """Workers are used again: a connection outlives the range it was opened for."""
    return Reading(kind(_known_options[options_text]))


_known_options: dict[str, Mapping[str, Any]] = {}


def _reading_of(kind: type[Lanes], options: Mapping[str, Any]) -> Reading:
    text = repr(sorted(options.items()))
    _known_options.setdefault(text, options)
    return _reading(kind, text)


def read_lanes(spark: SparkSession, kind: type[Lanes], options: Mapping[str, Any], max_rows: int) -> Stream:
    """The stream of a bus, in batches of about so many rows."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self) -> None:
            self._target: dict[str, Mark] | None = None
            self._planned: dict[str, Mark] = {}

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802
            # Where a lane begins stands in its first mark, so that a batch that is planned anew begins where it did.
            return {}

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return ReadMaxRows(max_rows)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._target = {}

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            marks = to_marks(start)
            reading = _reading_of(kind, options)
            if self._target == {}:
                self._target = reading.newest(marks)
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else _ALL
            self._planned = _within(reading.advance(marks, rows), self._target)
            return to_offset(self._planned)

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            if self._target is not None:
                return to_offset(self._target)
            return to_offset(_reading_of(kind, options).newest(self._planned)) if kind.tells_its_end else None

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            return [InputPartition(tuple(part)) for part in _reading_of(kind, options).ranges(to_marks(start), to_marks(end))]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return _reading_of(kind, options).read(Range(*partition.value))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"tardis_machine_{kind.name}"

        def schema(self) -> str:
            return DDL

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return Reader()

    # Options go with the class, which is pickled, and not as options of Spark, which prints those.
    spark.dataSource.register(Source)
    return Stream(spark.readStream.format(Source.name()).load())


_ALL = 1 << 60


def _within(marks: Marks, target: Marks | None) -> dict[str, Mark]:
    """Not past what was there when a job that is to end began."""
    if target is None:
        return dict(marks)
    return {lane: min(mark, target[lane], key=lambda found: found.read) for lane, mark in marks.items() if lane in target}


def identity_of(options: Mapping[str, Any], *names: str) -> str:
    """What tells a source apart: some of its options, without passwords."""
    from ...settings.option import mask

    return json.dumps({name: mask(str(options[name])) for name in names if options.get(name) is not None}, sort_keys=True)
