"""Rows to Parquet files in the place of their table, a column at a time: by workers, or by the driver where there are few.

Spark's own writer takes every row back into the JVM and apart again, which costs several times what decoding it does. What is written
here is not part of its table until the driver commits it (`commits`). A task that fails or runs twice leaves files that no reader sees;
`lake optimize` removes them.

Invariant: a file that is reported is whole, lies where the report says, and outlasts a power cut.
"""

from __future__ import annotations

import gc
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from ..errors import LakeError
from .storage import Storage
from .tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ToRows", "WrittenFile", "read_reports", "write_files", "write_files_on_workers", "write_task"]

ToRows = Callable[[Iterable[pa.RecordBatch]], Iterator[tuple[Table, pa.RecordBatch]]]
"""What a worker makes of what it is given: rows, each batch with the table that it belongs to and the columns of that table.

Text that repeats may be given as dictionaries."""

_REPORT_DDL = "files BINARY"

_HELD_BYTES = 64 * 1024**2
"""What a task holds before it writes: a row group of each file."""
_FILE_BYTES = 512 * 1024**2
_NEVER_REPEATED = re.compile(r"(event_id|whole_event_id|value|position|headers\.key_value\.value)$")
"""Columns that a dictionary would make larger, and of which nobody asks for ranges."""
_RANDOM = frozenset({"event_id", "whole_event_id"})
"""Columns that nothing makes smaller, but that their lengths need not be told: they are all the same."""
_COUNTING = (pa.int64(), pa.timestamp("us", "UTC"))
"""Types of columns whose values follow one another: their differences are written, in less time and less room."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that waits to be committed."""

    table: str
    path: str
    """In the folder of its table."""
    partition: dict[str, str | None]
    rows: int
    size: int
    ranges: dict[str, tuple[int, int]]
    """Column to its lowest and highest instant."""
    newest_us: int | None
    """The latest broker time among the rows."""


def write_files_on_workers(rows: DataFrame, to_rows: ToRows, storage: Storage, folders: Mapping[str, str]) -> list[WrittenFile]:
    """Has workers write what they make of rows to files; `folders` has the place of each table, by its name."""
    return read_reports(rows.mapInArrow(partial(write_task, to_rows, storage, folders), _REPORT_DDL).collect())


def write_files(
    to_rows: ToRows, storage: Storage, folders: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> list[WrittenFile]:
    """Writes rows to files, in this process; leaves nothing where that fails."""
    files = _TaskFiles(storage, folders)
    try:
        for table, rows in to_rows(batches):
            files.add(table, rows)
        return files.close()
    except BaseException:
        files.abandon()
        raise


def write_task(
    to_rows: ToRows, storage: Storage, folders: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What one task does: writes the rows to files, and yields a report of those files."""
    # A worker takes and gives back the same tens of megabytes over and over: this allocator keeps them at hand. Not every build has it.
    with suppress(NotImplementedError):
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    written = write_files(to_rows, storage, folders, batches)
    _spare_collector()
    yield pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(written)], pa.binary())], names=["files"])


@cache
def _spare_collector() -> None:
    """Once in each process: Spark has a worker look for garbage after each task, for a tenth of a second if among all modules too."""
    gc.freeze()


def read_reports(reports: Iterable[Any]) -> list[WrittenFile]:
    """The files that all tasks reported."""
    return [file for report in reports for file in msgspec.msgpack.decode(bytes(report["files"]), type=list[WrittenFile])]


@dataclass
class _OpenFile:
    """A file that is being written."""

    storage: Storage
    table: Table
    folder: str
    partition: dict[str, str | None]
    held: list[pa.RecordBatch] = field(default_factory=list)
    path: str = ""
    """In the folder; empty before it is begun."""
    out: pa.NativeFile | None = None
    writer: pq.ParquetWriter | None = None
    rows: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    newest_us: int | None = None

    def flush(self) -> None:
        """Writes what is held as one row group."""
        if not self.held:
            return
        rows = pa.Table.from_batches(self.held).unify_dictionaries()
        self.held.clear()
        with _writing(self.folder):
            if self.writer is None:
                self._open(rows.schema)
            assert self.writer is not None
            self.writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        for name in self.table.skip_by or ():
            self._widen(name, _range_us(rows.column(name)))
        if "broker_timestamp" in rows.schema.names:
            found = _range_us(rows.column("broker_timestamp"))
            self.newest_us = max(filter(None, (self.newest_us, found and found[1])), default=None)

    def _open(self, schema: pa.Schema) -> None:
        inside = "/".join(f"{name}={_folder_name(value)}" for name, value in self.partition.items())
        self.path = f"{inside}/part-{uuid.uuid4().hex}.parquet".lstrip("/")
        self.out = self.storage.create_file(f"{self.folder}/{self.path}")
        counting = [column.name for column in schema if column.type in _COUNTING]
        leaves = [leaf for column in schema for leaf in _leaves(column)]
        known = [leaf for leaf in leaves if not _NEVER_REPEATED.match(leaf)]
        self.writer = pq.ParquetWriter(
            self.out,
            schema,
            compression={leaf: "none" if leaf in _RANDOM else "zstd" for leaf in leaves},
            # Events are most of bronze: at this level they take three quarters of the time, and 2 % more room.
            compression_level={leaf: -1 if leaf == "value" else 1 for leaf in leaves if leaf not in _RANDOM},
            use_dictionary=[leaf for leaf in known if leaf not in counting],
            column_encoding={
                **dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
                **dict.fromkeys(_RANDOM.intersection(leaves), "DELTA_LENGTH_BYTE_ARRAY"),
            },
            write_statistics=known,
            store_schema=False,
        )

    def _widen(self, name: str, found: tuple[int, int] | None) -> None:
        if found is not None:
            known = self.ranges.get(name, found)
            self.ranges[name] = (min(known[0], found[0]), max(known[1], found[1]))

    @property
    def is_full(self) -> bool:
        return self.out is not None and self.out.tell() >= _FILE_BYTES

    def close(self) -> WrittenFile:
        """Finishes it."""
        assert self.writer is not None
        assert self.out is not None
        with _writing(self.folder):
            self.writer.close()
            size = self.out.tell()
            self.out.close()
        return WrittenFile(self.table.name, self.path, self.partition, self.rows, size, self.ranges, self.newest_us)

    def abandon(self) -> None:
        """Removes what was written of it."""
        for part in (self.writer, self.out):
            # On a full disk it can't be finished either; what is told is why the task failed.
            with suppress(OSError, pa.ArrowException):
                if part is not None:
                    part.close()
        if self.path:
            self.storage.remove_file(f"{self.folder}/{self.path}")


class _TaskFiles:
    """The files of one task: one at a time for each partition of each table."""

    def __init__(self, storage: Storage, folders: Mapping[str, str]) -> None:
        self._storage = storage
        self._folders = folders
        self._open: dict[tuple[str, ...], _OpenFile] = {}
        self._closed: list[WrittenFile] = []
        self._held_bytes = 0

    def add(self, table: Table, rows: pa.RecordBatch) -> None:
        """Takes rows in; what is held is bounded."""
        for partition, part in _by_partition(table, rows):
            place = (table.name, *map(repr, partition.values()))
            file = self._open.get(place)
            if file is None:
                file = self._open[place] = _OpenFile(self._storage, table, self._folders[table.name], partition)
            file.held.append(part)
            self._held_bytes += part.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._flush()

    def _flush(self) -> None:
        for place, file in [*self._open.items()]:
            file.flush()
            if file.is_full:
                self._closed.append(file.close())
                del self._open[place]
        self._held_bytes = 0

    def close(self) -> list[WrittenFile]:
        """Finishes all files."""
        for file in self._open.values():
            file.flush()
            self._closed.append(file.close())
        self._open.clear()
        by_folder: dict[str, list[str]] = {}
        for written in self._closed:
            folder = self._folders[written.table]
            by_folder.setdefault(folder, []).append(f"{folder}/{written.path}")
        for folder, paths in by_folder.items():
            with _writing(folder):
                self._storage.sync(paths)
        return self._closed

    def abandon(self) -> None:
        """Removes what was written."""
        for file in self._open.values():
            file.abandon()
        for written in self._closed:
            self._storage.remove_file(f"{self._folders[written.table]}/{written.path}")


@contextmanager
def _writing(folder: str) -> Iterator[None]:
    """What goes wrong with a disk becomes one sentence."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise LakeError(
            f"files can't be written to {folder}: {why}; make room there, or choose another lake with --lake"
        ) from error


def _by_partition(table: Table, rows: pa.RecordBatch) -> Iterator[tuple[dict[str, str | None], pa.RecordBatch]]:
    """Rows by the values of the columns that the table is partitioned by, in their order, without those columns."""
    if not rows.num_rows:
        return
    kept = rows.select([name for name in table.columns if name not in table.partition_by])
    if not table.partition_by:
        yield {}, kept
        return
    columns = [rows.column(name) for name in table.partition_by]
    # Nearly always all rows are of one exchange and one day, which is seen in a fraction of the time that telling them apart takes.
    if all(map(_is_constant, columns)):
        only = [column.slice(0, 1).cast(pa.string())[0].as_py() for column in columns]
        yield dict(zip(table.partition_by, only, strict=True)), kept
        return
    codes = np.zeros(rows.num_rows, np.int64)
    values: list[list[str | None]] = [[]]
    for column in columns:
        plain = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        found = plain.dictionary_encode(null_encoding="encode")
        values = [[*before, value] for before in values for value in found.dictionary.cast(pa.string()).to_pylist()]
        codes = codes * len(found.dictionary) + found.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    kept, codes = kept.take(pa.array(order)), codes[order]
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for start, end in pairwise(starts):
        yield dict(zip(table.partition_by, values[codes[start]], strict=True)), kept.slice(start, end - start)


def _is_constant(column: pa.Array) -> bool:
    """Whether all rows have one value, as far as that is seen at once: they may have where this is False."""
    if column.null_count:
        return False
    if isinstance(column, pa.DictionaryArray):
        return len(column.dictionary) == 1
    lowest, highest = pc.min_max(column).values()
    return bool(lowest == highest)


def _folder_name(value: str | None) -> str:
    # The value stands in the table's log; a folder's name only has to be one that needs no escaping.
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    return value if re.fullmatch(r"[\w.-]+", value, re.ASCII) else f"x-{xxh3_64_hexdigest(value.encode())}"


def _leaves(column: pa.Field, path: Sequence[str] = ()) -> Iterator[str]:
    """The columns that Parquet makes of a nested one, as it names them."""
    kind, place = column.type, (*path, column.name)
    if pa.types.is_map(kind):
        yield from _leaves(kind.key_field.with_name("key"), (*place, "key_value"))
        yield from _leaves(kind.item_field.with_name("value"), (*place, "key_value"))
    elif pa.types.is_list(kind):
        yield from _leaves(kind.value_field.with_name("element"), (*place, "list"))
    elif pa.types.is_struct(kind):
        for inner in kind:
            yield from _leaves(inner, place)
    else:
        yield ".".join(place)


def _range_us(instants: pa.ChunkedArray) -> tuple[int, int] | None:
    found = pc.min_max(instants.cast(pa.int64()))
    lowest, highest = found["min"].as_py(), found["max"].as_py()
    return None if lowest is None else (lowest, highest)
