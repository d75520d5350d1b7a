"""Files that workers wrote become part of a table: one commit to its log, by delta-rs.

A commit names the step that it is for: the stream, and the number of the batch. The log keeps the number, so a step that is in it is
found out, whoever committed it; Spark's own writer leaves the same note. Whether a step is done is asked of one version of the log,
and the commit is made against that same version: it is refused when the step was noted meanwhile.

A commit is on disk when a call returns, so what follows from it (progress, a message that is removed from its queue) can't outlast
it. What Spark commits itself is synced after it has done so (`spark_commit`).

Invariant: a batch is in a table whole, once, or not at all. A log names only files that lie in their place in full.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import LakeError
from .lake import Lake
from .storage import DirectStorage
from .table_files import WrittenFile
from .tables import Table

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["MAX_SKEW_US", "Commits", "Step", "TableFile"]

_PLAIN_READER = 1
"""The version of Delta's protocol at which a table is its files and their columns, and nothing else."""
MAX_SKEW_US = 3_600_000_000
"""How far the exchange's time of a row is from the recorder's, at most, where a file does not say what times it has."""
_LAST_ENTRIES = 100
"""Of a log that nobody has synced since this process began: what a job that was killed may have left. Older ones are on disk by now."""


class Step(NamedTuple):
    """What a commit is for: the same step is committed once."""

    app_id: str
    version: int


class TableFile(NamedTuple):
    """A file of a table."""

    path: str
    """Absolute."""
    first_us: int
    last_us: int
    """The local times of its rows lie between these."""
    first_event_us: int
    last_event_us: int
    """And these are for the exchange's times."""


class Commits:
    """The logs of a lake's tables, in a storage that is reached without Spark."""

    def __init__(self, lake: Lake, storage: DirectStorage) -> None:
        self._lake = lake
        self.storage = storage
        self._tables: dict[str, DeltaTable] = {}
        # By table, the version up to which its log is known to be on disk.
        self._synced: dict[str, int] = {}

    def commit(self, table: Table, files: Sequence[WrittenFile], step: Step | None = None) -> bool:
        """Adds files to a table, and returns True; files of a step that is in it already are removed instead, and it returns False.

        LakeError where a file is not as its writer reported it: then nothing is added.
        """
        if not files:
            return False
        while True:
            log = self._log(table)
            if step is not None and _has_step(log, step):
                # Who committed it may have been killed before it was on disk.
                self._sync_log(table)
                self._remove(table, files)
                return False
            self._check_files(table, files)
            if self._try_commit(log, table, files, step):
                self._sync_log(table)
                return True

    def _try_commit(self, log: DeltaTable, table: Table, files: Sequence[WrittenFile], step: Step | None) -> bool:
        """Commits to the version that was read; False where another driver noted the same stream meanwhile."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, file.partition, now_ms, True, _stats(file)) for file in files
        ]
        steps = [Transaction(step.app_id, step.version)] if step is not None else None
        properties = CommitProperties(app_transactions=steps, max_commit_retries=50)
        with self._named(table):
            try:
                log.create_write_transaction(
                    actions, "append", log.schema(), list(table.partition_by), commit_properties=properties
                )
            except CommitFailedError:
                # A conflict of any other kind is an error; appends by others are none.
                if step is None or self._step_version(table, step) == log.transaction_version(step.app_id):
                    raise
                return False
        return True

    @contextmanager
    def spark_commit(self, table: Table) -> Iterator[None]:
        """Within it Spark may commit to a table; afterwards that is on disk, files and log."""
        before = self._log(table).version()
        yield
        log, folder = self._log(table), self._lake.path(table)
        with self._named(table):
            for version in range(before + 1, log.version() + 1):
                entry = self.storage.read_file(_entry(folder, version))
                added = (action["add"]["path"] for action in map(json.loads, entry.splitlines()) if "add" in action)
                # What a later commit replaced may be gone.
                self.storage.sync(path for path in (f"{folder}/{unquote(name)}" for name in added) if self._is_there(path))
        self._sync_log(table)

    def _is_there(self, path: str) -> bool:
        return bool(self.storage.filesystem.get_file_info(path).is_file)

    def _sync_log(self, table: Table) -> None:
        """What the log has got since this was last asked is on disk; the first time, its last entries."""
        with self._named(table):
            version = self._log(table).version()
            first = self._synced.get(table.name, version - _LAST_ENTRIES) + 1
            folder = self._lake.path(table)
            entries = [_entry(folder, number) for number in range(max(first, 0), version + 1)]
            joined = self.storage.list_files(f"{folder}/_delta_log", "*checkpoint*")
            self.storage.sync(path for path in (*entries, *joined) if self._is_there(path))
            self._synced[table.name] = version

    def _check_files(self, table: Table, files: Sequence[WrittenFile]) -> None:
        """Raises LakeError unless all files lie where their writers reported them, with the size that they reported."""
        found = self.storage.filesystem.get_file_info([f"{self._lake.path(table)}/{file.path}" for file in files])
        wrong = [info.path for file, info in zip(files, found, strict=True) if info.size != file.size]
        if wrong:
            raise LakeError(
                f"{len(wrong)} of {len(files)} files that were written for {table.name} can't be found in full, such as {wrong[0]}; "
                "nothing was added: see that all executors write to the same folder, and that nothing removes files from it"
            )

    def is_done(self, table: Table, step: Step) -> bool:
        """Whether the step was committed before."""
        return _has_step(self._log(table), step)

    def _step_version(self, table: Table, step: Step) -> int | None:
        """The last version that the stream of a step has noted, as the log has it now."""
        return self.storage.open_log(self._lake.path(table)).transaction_version(step.app_id)

    def is_plain(self, table: Table) -> bool:
        """Whether the table is nothing but its files. Spark has to keep one with later features, such as deletion vectors."""
        return int(self._log(table).protocol().min_reader_version) == _PLAIN_READER

    def files(
        self, table: Table, partitions: Iterable[Mapping[str, str | None]]
    ) -> dict[tuple[str | None, ...], list[TableFile]]:
        """The files of some partitions, by the values of those."""
        wanted = {tuple(partition[name] for name in table.partition_by) for partition in partitions}
        actions = pa.table(self._log(table).get_add_actions(flatten=True))
        # A table may have years of files, a batch has the partitions of a few days.
        first_column = actions.column(f"partition.{table.partition_by[0]}").cast(pa.string())
        actions = actions.filter(pc.is_in(first_column, pa.array({place[0] for place in wanted}, pa.string())))
        found: dict[tuple[str | None, ...], list[TableFile]] = {place: [] for place in wanted}
        for action in actions.to_pylist():
            values = (action[f"partition.{name}"] for name in table.partition_by)
            place = tuple(None if value is None else str(value) for value in values)
            if place in found:
                path = f"{self._lake.path(table)}/{action['path']}"
                first_us, last_us = _to_us(action.get("min.local_ts"), -_FOR_EVER), _to_us(action.get("max.local_ts"), _FOR_EVER)
                # Files of earlier releases, and those that Spark joined in their tables, do not say.
                first_event_us = _to_us(action.get("min.event_ts"), first_us - MAX_SKEW_US)
                last_event_us = _to_us(action.get("max.event_ts"), last_us + MAX_SKEW_US)
                found[place].append(TableFile(path, first_us, last_us, first_event_us, last_event_us))
        return found

    def _log(self, table: Table) -> DeltaTable:
        with self._named(table):
            if table.name in self._tables:
                self._tables[table.name].update_incremental()
            else:
                self._tables[table.name] = self.storage.open_log(self._lake.path(table))
        return self._tables[table.name]

    @contextmanager
    def _named(self, table: Table) -> Iterator[None]:
        """Turns errors of delta-rs, which come in colours and lines, into one sentence."""
        try:
            yield
        except Exception as error:
            text = " ".join(re.sub(r"\x1b\[\d+m|↳", "", str(error)).split())
            raise LakeError(f"the log of {table.name} in {self._lake.root} can't be used: {text}") from error

    def _remove(self, table: Table, files: Sequence[WrittenFile]) -> None:
        for file in files:
            with suppress(FileNotFoundError):
                self.storage.filesystem.delete_file(f"{self._lake.path(table)}/{file.path}")


def _entry(folder: str, version: int) -> str:
    return f"{folder}/_delta_log/{version:020}.json"


def _has_step(log: DeltaTable, step: Step) -> bool:
    found = log.transaction_version(step.app_id)
    return found is not None and found >= step.version


_FOR_EVER = 1 << 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999


def _to_us(instant: datetime | None, otherwise: int) -> int:
    return otherwise if instant is None else (instant - _EPOCH) // timedelta(microseconds=1)


def _stats(file: WrittenFile) -> str:
    # Readers count in milliseconds here, so a range is widened to whole ones.
    lowest = {name: _to_text(first // 1000) for name, (first, _) in file.ranges.items()}
    highest = {name: _to_text(-(-last // 1000)) for name, (_, last) in file.ranges.items()}
    stats: dict[str, Any] = {
        "numRecords": file.rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": dict.fromkeys(lowest, 0),
    }
    return msgspec.json.encode(stats).decode()


def _to_text(instant_ms: int) -> str:
    instant = _EPOCH + timedelta(milliseconds=min(instant_ms, _LAST_MS))
    return f"{instant.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
