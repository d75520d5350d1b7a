"""Streams of the lake: each reads something to its end, or for ever, and appends to tables, every batch once.

How a killed job ends with the same rows: Spark writes down what a batch holds before it runs, so that a batch that was cut off is
run again with the same rows; and each append carries the stream's identity and the batch's number, which Delta commits together
with the rows and refuses to commit twice. The identity lies in the checkpoint: who removes the checkpoint begins a new stream,
whose batches are not taken for those of the old one.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import LakeError
from .commits import Commits, Step
from .decoding import REASON
from .landing import ToRows, land_rows
from .spark_errors import own_words, sentence
from .tables import QUARANTINE, Lake, Table, prepare_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "BatchWriter",
    "Counts",
    "planned_offsets",
    "progress_of",
    "read_table_stream",
    "rows_of",
    "split_refused",
    "start_stream",
    "stream_error",
    "with_decoded",
]


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

    def add(self, table: str, rows: int) -> None:
        """Counts rows of a table."""
        self.rows[table] = self.rows.get(table, 0) + rows


class BatchWriter(ABC):
    """Appends the batches of one stream to tables, each batch once; a stream subclasses it with what a batch becomes."""

    def __init__(self, lake: Lake, stream: str, *, identity: str, may_repeat: bool) -> None:
        self.lake = lake
        self.stream = stream
        self.counts = Counts()
        self.batches = 0
        """How many it has written."""
        self.failure: Exception | None = None
        self.commits = Commits(lake)
        self._app_id = f"{stream}/{identity}"
        self._may_repeat = may_repeat
        self._prepared: set[str] = set()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """What Spark calls for each batch."""
        try:
            self.write(batch, batch_id)
        except Exception as error:
            self.failure = error
            raise
        # Only the first batch of a run can be one that an earlier run was killed in.
        self._may_repeat = False
        self.batches += 1

    @abstractmethod
    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Appends a batch to all tables that it belongs to."""

    def prepare(self, spark: SparkSession, table: Table) -> bool:
        """Makes sure that a table is there: it is made when its first rows come; whether it was made just now."""
        if table.name in self._prepared:
            return False
        self._prepared.add(table.name)
        return prepare_table(spark, self.lake, table)

    def can_land(self, *tables: Table) -> bool:
        """Whether workers may write files of these tables themselves: they reach them, and the tables are nothing but files."""
        return self.lake.is_local and all(map(self.commits.is_plain, tables))

    def append_rows(self, batch: DataFrame, to_rows: ToRows, tables: Sequence[Table], batch_id: int) -> int | None:
        """Appends what workers make of a batch, each row to its table, or to the quarantine; how many there were, where that was seen."""
        for table in (*tables, QUARANTINE):
            self.prepare(batch.sparkSession, table)
        if self.can_land(*tables, QUARANTINE):
            return self._land(batch, to_rows, (*tables, QUARANTINE), batch_id)
        return self._append_by_spark(batch, to_rows, tables, batch_id)

    def _land(self, batch: DataFrame, to_rows: ToRows, tables: Sequence[Table], batch_id: int) -> int:
        files = land_rows(batch, to_rows, {table.name: self.lake.path(table) for table in tables})
        for table in tables:
            own = [file for file in files if file.table == table.name]
            if self.commits.commit(table, own, Step(self._step(_step_name(table, tables)), batch_id)):
                self._count(table, sum(file.rows for file in own), max(file.newest_us or 0 for file in own))
        return sum(file.rows for file in files)

    def _append_by_spark(self, batch: DataFrame, to_rows: ToRows, tables: Sequence[Table], batch_id: int) -> int | None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        given, taken = Observation(), 0
        rows_given = batch.observe(given, F.count(F.lit(1)).alias("rows"))
        for table in (*tables, QUARANTINE):
            # A batch that is in the table already is not run again, and so is not observed either.
            if table is QUARANTINE and not self._may_repeat and given.get["rows"] == taken:
                break
            seen = Observation()
            newest = F.max("broker_timestamp") if "broker_timestamp" in table.columns else F.lit(None).cast("timestamp")
            rows = rows_given.mapInArrow(partial(rows_of, to_rows, table.name), table.ddl)
            rows = rows.observe(seen, F.count(F.lit(1)).alias("rows"), newest.alias("newest"))
            self.append(rows, table, _step_name(table, tables), batch_id)
            if not self._may_repeat:
                found: dict[str, Any] = seen.get
                taken += found["rows"]
                self._count(table, found["rows"], int(found["newest"].timestamp() * 1_000_000) if found["newest"] else 0)
        return None if self._may_repeat else taken

    def _count(self, table: Table, rows: int, newest_us: int) -> None:
        if rows:
            self.counts.add(table.name, rows)
            self.counts.newest_us = max(newest_us, self.counts.newest_us or 0) or None

    def _step(self, name: str) -> str:
        return f"{self._app_id}/{name}"

    def append(self, rows: DataFrame, table: Table, step: str, batch_id: int) -> None:
        """Appends rows, once for each batch and step."""
        self.prepare(rows.sparkSession, table)
        writer = rows.select(*table.columns).write.format("delta").mode("append")
        writer.option("txnAppId", self._step(step)).option("txnVersion", batch_id).save(self.lake.path(table))


def _step_name(table: Table, tables: Sequence[Table]) -> str:
    # A batch may add to the quarantine several times, for different tables.
    return f"{'+'.join(other.name for other in tables if other is not QUARANTINE)}/refused" if table is QUARANTINE else table.name


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


def rows_of(to_rows: ToRows, table: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one table, for Spark to write; the others are left out."""
    for found, rows in to_rows(batches):
        if found.name == table:
            columns = map(rows.column, found.columns)
            # Spark takes no dictionaries.
            plain = [column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column for column in columns]
            yield pa.RecordBatch.from_arrays(plain, names=[*found.columns])


def read_table_stream(spark: SparkSession, lake: Lake, table: Table, max_batch_bytes: int) -> DataFrame:
    """What is appended to a table; rows that are deleted, as old ones may be, change nothing."""
    reader = spark.readStream.format("delta").option("maxBytesPerTrigger", max_batch_bytes).option("skipChangeCommits", "true")
    return reader.load(lake.path(table))


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
) -> tuple[StreamingQuery, BatchWriter]:
    """Starts a stream where it stopped last; without a trigger it ends when it has read what is there now."""
    progress = progress_of(lake, stream)
    identity = _identity(rows.sparkSession, lake, f"{lake.checkpoint(stream)}/identity")
    writer = make_writer(lake, stream, identity=identity, may_repeat=_may_have_pending_batch(lake, progress))
    query = rows.writeStream.queryName(stream).option("checkpointLocation", progress).foreachBatch(writer)
    query = query.trigger(availableNow=True) if trigger_s is None else query.trigger(processingTime=f"{trigger_s} seconds")
    return query.start(), writer


def progress_of(lake: Lake, stream: str) -> str:
    """Where Spark writes down what the batches of a stream hold."""
    return f"{lake.checkpoint(stream)}/progress"


def _identity(spark: SparkSession, lake: Lake, path: str) -> str:
    found = _read_text(spark, lake, path).strip()
    if found:
        return found
    identity = uuid.uuid4().hex
    if lake.is_local:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(f"{path}.new")
        unfinished.write_text(identity)
        unfinished.rename(path)
    else:
        spark.createDataFrame([(identity,)], "identity STRING").coalesce(1).write.mode("overwrite").text(path)
    return identity


def planned_offsets(spark: SparkSession, lake: Lake, stream: str, batch_id: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Where a batch of a stream with one source begins and ends, as the checkpoint has it before the batch runs."""
    progress = progress_of(lake, stream)
    # Sources that have to remember where their first batch began do so in a file of their own.
    before = f"offsets/{batch_id - 1}" if batch_id else "sources/0/0"
    texts = [_read_text(spark, lake, f"{progress}/{place}") for place in (before, f"offsets/{batch_id}")]
    start, end = (json.loads(text.splitlines()[-1]) if text else {} for text in texts)
    return start, end


def _read_text(spark: SparkSession, lake: Lake, path: str) -> str:
    """What stands in a small file of the lake; nothing where there is none."""
    from pyspark.errors import AnalysisException

    if lake.is_local:
        return Path(path).read_text() if Path(path).is_file() else ""
    try:
        rows = spark.read.text(path, wholetext=True).collect()
    except AnalysisException:
        return ""
    return str(rows[0][0]) if rows else ""


def _may_have_pending_batch(lake: Lake, progress: str) -> bool:
    if not lake.is_local:
        return True
    planned, done = (_last_batch(Path(progress) / log) for log in ("offsets", "commits"))
    return planned > done


def _last_batch(log: Path) -> int:
    return max((int(entry.name) for entry in log.glob("*") if entry.name.isdigit()), default=-1)


def stream_error(stream: str, error: BaseException) -> LakeError:
    """What ended a stream, as one sentence."""
    if isinstance(error, LakeError):
        return error
    if "CONCURRENT_STREAM_LOG_UPDATE" in str(error):
        return LakeError(f"Another job works on the stream {stream!r} of this lake; stop one of the two")
    return LakeError(own_words(error) or f"The stream {stream!r} stopped: {sentence(error)}")
