"""What a source is: a bus as the lake reads it.

Invariant: nothing here knows a bus. A source is plain data until `read_stream` or `receive` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..storage import Storage

__all__ = ["CountRecords", "FindLost", "Source", "SourceReceiver", "SourceStream", "ToRecords", "lost_by_count"]

ToRecords = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What workers make of the rows of a stream: batches of `records.SCHEMA`."""

CountRecords = Callable[[Mapping[str, Any], Mapping[str, Any]], int | None]
"""How many records lie after one offset, up to and with another; None where some are gone and nobody knows how many."""

FindLost = Callable[[Mapping[str, Any], Mapping[str, Any], int], int | None]
"""How many records a batch between two offsets lacks, once so many rows were read of it; None where nobody knows how many."""


def lost_by_count(count: CountRecords) -> FindLost:
    """For sources that count their records."""

    def find_lost(start: Mapping[str, Any], end: Mapping[str, Any], rows: int) -> int | None:
        expected = count(start, end)
        return None if expected is None else expected - rows

    return find_lost


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For streams whose rows are records."""
    return iter(batches)


class SourceStream(NamedTuple):
    """An unbounded DataFrame, and what has to be known of its rows."""

    rows: DataFrame
    to_records: ToRecords = as_they_are
    find_lost: FindLost | None = None
    """Given where records may be gone before they are read. What a batch then lacks is reported."""


class SourceReceiver(Protocol):
    """What takes records out of a bus that can't be read twice, and puts them where the stream finds them."""

    @property
    def failure(self) -> Exception | None:
        """What ended it; the job then ends with it."""

    @property
    def left(self) -> Mapping[str, int]:
        """How many of what it has not received yet; empty where that is not known."""


class Source(Protocol):
    """One bus at one address, with the destinations that are read of it.

    A job creates the source on the driver, asks for its `identity`, enters `receive`, and then calls `read_stream` once. From then on Spark
    calls into the stream: it plans a batch as a pair of offsets, writes the offsets to the checkpoint, and has workers read the batch.

    A source owes the lake three things:

    - Replay. A batch that was planned has the same records whenever it is read again, also by another process that has nothing but
      the two offsets in the checkpoint. Spark reads a batch again when a task fails, and after a job was killed.
    - Positions. `position` tells a record apart from every other one of the same bus and destination, for ever.
    - Honest loss. Records that were there and are gone before they were read are never passed over in silence: what a batch lacks is
      found out when it was read (`SourceStream.find_lost`), by the count of the bus where it has one.

    A source may bring a record twice, in two batches or in one: silver keeps each event once.
    """

    @property
    def name(self) -> str:
        """As `--from` has it; it becomes the column `bus`."""

    def identity(self) -> str:
        """What is read, without secrets: the same text for the same source, another for any other.

        The checkpoint of a stream belongs to it. So it must not change from one release to the next.
        """

    def read_stream(self, spark: SparkSession, max_batch_bytes: int) -> SourceStream:
        """The records from the oldest one that there is, in batches of about so many bytes.

        Where a checkpoint is there, Spark goes on behind its last offset instead. LakeError where the source can't be read at all.
        """

    def count_left(self, checkpoints: Storage, progress: str, sources: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
        """How many of what the stream has not read yet, such as `{"records": 12}`; empty where that is not known.

        `progress` is the folder in `checkpoints` where Spark writes down what batches hold; `sources` is what Spark tells of where the
        last batch began and ended. It is called now and then while the stream runs, and so must not read the records.
        """

    def receive(self, spark: SparkSession, *, once: bool) -> AbstractContextManager[SourceReceiver | None]:
        """A receiver that runs beside the stream, for as long as the context lasts; by default there is none.

        It is entered before `read_stream` is called. With `once`, all that there is has been received when it is entered.
        """
        return nullcontext()
