"""Streams of the lake: each reads something to its end, or for ever, and appends to tables, every batch once.

A killed job ends with the same rows as one that nobody killed. Spark writes down what a batch holds before it runs, so a batch that was
cut off is run again with the same rows. And each append carries the stream's identity and the batch's number; Delta commits these together
with the rows, and refuses to commit them twice. The identity lies in the checkpoint: who removes the checkpoint begins a new stream,
whose batches are not taken for those of the old one. It is written when Spark has planned the first batch: an identity without
progress means that the progress was removed, and its batches would be taken for those that were committed before.

A power cut is no different: what Spark wrote down of a batch is on disk before the batch is in a table, and the table is before Spark
goes on.

Invariant: a batch is in each of its tables once, however often it was run.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import LakeError
from .appending import Appender
from .commits import Step
from .decoding import REASON
from .lake import Lake, prepare_table
from .spark_errors import own_words, sentence
from .storage import Storage
from .table_files import ToRows
from .tables import QUARANTINE, Table
from .upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "BatchWriter",
    "Counts",
    "planned_offsets",
    "progress_of",
    "read_table_stream",
    "split_refused",
    "start_stream",
    "stream_error",
    "with_decoded",
]


_FEW_COMMITS = 16
_OTHER_ACTIONS = re.compile(r'^\{"(remove|metaData|protocol)"', re.MULTILINE)


@dataclass
class Counts:
    """What a stream has written in this run."""

    rows: dict[str, int] = field(default_factory=dict)
    """By table."""
    newest_us: int | None = None
    """The latest broker time among the rows."""
    lost: int = 0
    """Records that were gone before they could be read, as far as they can be counted."""
    left: Mapping[str, int] = field(default_factory=dict)
    """What it has not read yet, by what it is (`records`, `rows for silver`); nothing where that is not known."""
    stream: str = ""
    batches: int = 0
    """How many it has written."""
    committed: float | None = None
    """When the last one was, by the clock that only goes on."""

    def add(self, table: str, rows: int) -> None:
        """Counts rows of a table."""
        self.rows[table] = self.rows.get(table, 0) + rows


class BatchWriter(ABC):
    """Appends the batches of one stream to tables, each batch once; a stream subclasses it with what a batch becomes."""

    shared: tuple[Table, ...] = (QUARANTINE,)
    """A batch may add to these several times, for different tables."""

    def __init__(self, lake: Lake, stream: str, *, identity: str | None, may_repeat: bool) -> None:
        """`identity`: None where the stream has none yet."""
        self.lake = lake
        self.stream = stream
        self.counts = Counts(stream=stream)
        self.failure: Exception | None = None
        self.appender = Appender(lake)
        self.upkeep: Upkeep | None = None
        """Of its tables, where the job sees to that."""
        self.owner: str | None = None
        """What this run has written into the checkpoint, where another job might take it over unseen."""
        self._has_identity = identity is not None
        self._app_id = f"{stream}/{identity or uuid.uuid4().hex}"
        self._may_repeat = may_repeat
        self._prepared: dict[str, Table] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """What Spark calls for each batch."""
        try:
            self._check_owner()
            self._sync_plan(batch_id)
            self._keep_identity()
            self.write(batch, batch_id)
        except Exception as error:
            self.failure = error
            raise
        # Only the first batch of a run can be one that an earlier run was killed in.
        self._may_repeat = False
        self.counts.batches += 1
        self.counts.committed = time.monotonic()
        if self.upkeep is not None:
            self.upkeep.after_batch(batch.sparkSession, self._prepared.values())

    def _sync_plan(self, batch_id: int) -> None:
        """What Spark wrote down of a batch is on disk before tables note its number: after a power cut the number is that batch's still."""
        storage, progress = self.lake.storage, progress_of(self.lake, self.stream)
        if storage.renames:
            planned = [f"{progress}/offsets/{batch_id}", *storage.list_files(f"{progress}/sources", f"*/{batch_id}*")]
            storage.sync([f"{progress}/metadata", *planned])

    def _check_owner(self) -> None:
        """Of two jobs that work on one stream, the one that began first ends. In a folder Spark itself finds that out."""
        if self.owner is not None and self.lake.storage.read_text(_owner_path(self.lake, self.stream)) != self.owner:
            raise _other_job(self.stream)

    def _keep_identity(self) -> None:
        if not self._has_identity:
            self.lake.storage.write_text(_identity_path(self.lake, self.stream), self._app_id.rpartition("/")[2])
            self._has_identity = True

    @abstractmethod
    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Appends a batch to all tables that it belongs to."""

    def prepare(self, table: Table) -> bool:
        """Makes sure that a table is there: it is made when its first rows come; whether it was made just now."""
        if table.name in self._prepared:
            return False
        self._prepared[table.name] = table
        return prepare_table(self.lake, table)

    def append_batch(self, batch: DataFrame, to_rows: ToRows, tables: Sequence[Table], batch_id: int) -> int:
        """Appends what workers make of a batch, each row to its table or to the quarantine; how many rows that were."""
        filled = (*tables, QUARANTINE)
        for table in filled:
            self.prepare(table)
        steps = {table.name: self.step(self._step_name(table, tables), batch_id) for table in filled}
        appended = self.appender.append(batch, to_rows, filled, steps)
        if not self._may_repeat and any(part.rows and not part.is_new for part in appended.values()):
            raise _removed_progress(self.lake, self.stream)
        for name, part in appended.items():
            if part.is_new and part.rows:
                self.counts.add(name, part.rows)
                self.counts.newest_us = max(part.newest_us or 0, self.counts.newest_us or 0) or None
        return sum(part.rows for part in appended.values())

    def _step_name(self, table: Table, tables: Sequence[Table]) -> str:
        if table not in self.shared:
            return table.name
        others = "+".join(other.name for other in tables if other not in self.shared)
        return f"{others}/{'refused' if table is QUARANTINE else table.name}"

    def step(self, name: str, batch_id: int) -> Step:
        """What an append of a batch is for; a batch takes each step once."""
        return Step(f"{self._app_id}/{name}", batch_id)


def split_refused(table: Table, columns: Mapping[str, pa.Array]) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """Rows that were decoded, for their table; those that were refused, for the quarantine."""
    reasons = columns[REASON]
    is_good = reasons.is_null()
    if reasons.null_count:
        rows = pa.RecordBatch.from_arrays([columns[name] for name in table.columns], names=[*table.columns])
        yield table, rows if reasons.null_count == len(reasons) else rows.filter(is_good)
    if reasons.null_count < len(reasons):
        whole = {**columns, "stage": pa.repeat(table.name, len(reasons)), "reason": reasons}
        rows = pa.RecordBatch.from_arrays([whole[name] for name in QUARANTINE.columns], names=[*QUARANTINE.columns])
        yield QUARANTINE, rows.filter(pc.invert(is_good))


def read_table_stream(spark: SparkSession, lake: Lake, table: Table, max_batch_bytes: int) -> DataFrame:
    """What is appended to a table; rows that are deleted, as old ones may be, change nothing."""
    reader = spark.readStream.format("delta").option("maxBytesPerTrigger", max_batch_bytes).option("skipChangeCommits", "true")
    if _has_only_grown(lake, table):
        # A stream that begins with the whole of a table has Spark plan that in a dozen jobs; commits are read as they are.
        reader = reader.option("startingVersion", "0")
    return reader.load(lake.path(table))


def _has_only_grown(lake: Lake, table: Table) -> bool:
    """Whether a table has had few commits since it was made, all of which only added rows."""
    entries = sorted(lake.storage.list_files(f"{lake.path(table)}/_delta_log", "[0-9]*.json"))
    if len(entries) > _FEW_COMMITS or not entries or not entries[0].endswith(f"/{0:020}.json"):
        return False
    return not any(_OTHER_ACTIONS.search(lake.storage.read_text(entry)) for entry in entries[1:])


def with_decoded(rows: DataFrame, decode: Callable[[pa.Array], pa.Array], ddl: str) -> DataFrame:
    """The rows with the columns that `decode` makes of their `value`."""
    from pyspark.sql.pandas.functions import arrow_udf

    def decode_column(values: pa.Array) -> pa.Array:
        return decode(values)

    # Not deterministic, as far as the optimizer is concerned: it must not run it once for each column that is used.
    decoded = arrow_udf(decode_column, ddl).asNondeterministic()  # type: ignore[call-overload]
    return rows.withColumn("_decoded", decoded("value")).select("*", "_decoded.*").drop("_decoded")


def start_stream(
    rows: DataFrame,
    lake: Lake,
    stream: str,
    make_writer: Callable[..., BatchWriter],
    trigger_s: float | None,
    counts: Counts | None = None,
) -> tuple[StreamingQuery, BatchWriter]:
    """Starts a stream where it stopped last; without a trigger it ends when it has read what is there now. `counts`: goes on with these."""
    progress = progress_of(lake, stream)
    identity = lake.storage.read_text(_identity_path(lake, stream)).strip() or None
    if identity is not None and not lake.storage.list_files(f"{progress}/offsets", "*"):
        raise _removed_progress(lake, stream)
    writer = make_writer(lake, stream, identity=identity, may_repeat=_may_have_pending_batch(lake.storage, progress))
    writer.counts = counts or writer.counts
    if not lake.storage.renames:
        writer.owner = uuid.uuid4().hex
        lake.storage.write_text(_owner_path(lake, stream), writer.owner)
    query = rows.writeStream.queryName(stream).option("checkpointLocation", progress).foreachBatch(writer)
    query = query.trigger(availableNow=True) if trigger_s is None else query.trigger(processingTime=f"{trigger_s} seconds")
    return query.start(), writer


def progress_of(lake: Lake, stream: str) -> str:
    """Where Spark writes down what the batches of a stream hold."""
    return f"{lake.checkpoint(stream)}/progress"


def _identity_path(lake: Lake, stream: str) -> str:
    return f"{lake.checkpoint(stream)}/identity"


def _owner_path(lake: Lake, stream: str) -> str:
    return f"{lake.checkpoint(stream)}/owner"


def _other_job(stream: str) -> LakeError:
    return LakeError(f"another job works on the stream {stream!r} of this lake; stop one of the two")


def _removed_progress(lake: Lake, stream: str) -> LakeError:
    checkpoint = lake.checkpoint(stream)
    return LakeError(
        f"the progress of the stream {stream!r} was removed or replaced by an older one, or another job works on it: its next batches "
        f"would be taken for those that the lake has; put it back, or remove {checkpoint} as a whole to begin a new stream"
    )


def planned_offsets(lake: Lake, stream: str, batch_id: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Where a batch of a stream with one source begins and ends, as the checkpoint has it before the batch runs."""
    progress = progress_of(lake, stream)
    # Sources that have to remember where their first batch began do so in a file of their own.
    before = f"offsets/{batch_id - 1}" if batch_id else "sources/0/0"
    texts = [lake.storage.read_text(f"{progress}/{place}") for place in (before, f"offsets/{batch_id}")]
    start, end = (json.loads(text.splitlines()[-1]) if text else {} for text in texts)
    return start, end


def _may_have_pending_batch(storage: Storage, progress: str) -> bool:
    """Whether the last batch may have been planned and not ended."""
    planned, done = (
        max((int(name) for name in _names(storage.list_files(f"{progress}/{log}", "*")) if name.isdigit()), default=-1)
        for log in ("offsets", "commits")
    )
    return planned > done


def _names(paths: list[str]) -> Iterator[str]:
    return (path.rpartition("/")[2] for path in paths)


def stream_error(stream: str, error: BaseException) -> LakeError:
    """What ended a stream, as one sentence."""
    if isinstance(error, LakeError):
        return error
    if "CONCURRENT_STREAM_LOG_UPDATE" in str(error):
        return _other_job(stream)
    return LakeError(own_words(error) or f"the stream {stream!r} stopped: {sentence(error)}")
