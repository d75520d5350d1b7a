"""Files that workers wrote become part of a table: one commit to its log, by delta-rs.

A commit names the step that it is for: the stream, and the number of the batch. The log keeps the number, so a step that is in it is
found out, whoever committed it. Whether a step is done, and whether the files are there that a commit replaces, is asked of one
version of the log; the commit is the next version or none, as an entry of a log is put only where there is none. Who comes too late
asks again. So any number of drivers may commit to a table.

Of a commit that fails, nobody knows whether it was carried out: the answer may be lost. So a commit carries a mark of its own, and is
looked for.

A commit is durable when a call returns, so what follows from it (progress, a message that is removed from its queue) can't outlast it.

Invariant: a batch is in a table whole, once, or not at all. A log names only files that lie in their place in full.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import LakeError
from .lake import Lake
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

_LIST_EACH_S = 600.0
"""Logs keep their entries for weeks."""
_MARK = "tardis-machine.commit"
_MAX_FAULTS = 6
"""Attempts that fail though nobody else was faster; clients have tried each of them again for themselves."""
_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
"""Between attempts, up to: who waits at random meets the others less often."""
_RANDOM = SystemRandom()


class Step(NamedTuple):
    """What a commit is for: the same step is committed once."""

    app_id: str
    version: int


class TableFile(NamedTuple):
    """A file of a table."""

    path: str
    """Absolute."""
    name: str
    """As the log has it."""
    size: int
    partition: dict[str, str | None]
    first_us: int
    last_us: int
    """The local times of its rows lie between these."""
    first_event_us: int
    last_event_us: int
    """And these are for the exchange's times."""


class _Put(Enum):
    """What came of a commit."""

    DONE = "done"
    REPEATED = "repeated"
    """The step was in the table already."""
    OUTDATED = "outdated"
    """A file that it was to replace is there no more."""


class Commits:
    """The logs of a lake's tables, in a storage that is reached without Spark."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.storage = lake.storage
        self._tables: dict[str, DeltaTable] = {}
        # By table, when its log is listed again whatever it is known to have.
        self._list_at: dict[str, float] = {}
        # By table, the version up to which its log is known to be on disk.
        self._synced: dict[str, int] = {}

    def commit(self, table: Table, files: Sequence[WrittenFile], step: Step | None = None) -> bool:
        """Adds files to a table, and returns True; files of a step that is in it already are removed instead, and it returns False.

        LakeError where a file is not as its writer reported it: then nothing is added.
        """
        if not files:
            return False
        if self._put(table, files, step=step) is _Put.REPEATED:
            self.remove(table, files)
            return False
        return True

    def replace(self, table: Table, files: Sequence[WrittenFile], old: Sequence[TableFile], *, changes_rows: bool = True) -> bool:
        """Adds files to a table in place of others; False where one of those is in it no more, and then nothing is changed.

        Without `changes_rows` streams that read the table see nothing of it.
        """
        if not files and not old:
            return True
        return self._put(table, files, old, changes_rows=changes_rows) is _Put.DONE

    def _put(
        self,
        table: Table,
        files: Sequence[WrittenFile],
        old: Sequence[TableFile] = (),
        *,
        step: Step | None = None,
        changes_rows: bool = True,
    ) -> _Put:
        mark, first, faults, tries = uuid.uuid4().hex, None, 0, 0
        while True:
            log = self._log(table)
            if first is not None and self._has_mark(table, mark, first, log.version()):
                break
            if step is not None and _has_step(log, step):
                # Who committed it may have been killed before it was on disk.
                self._sync_log(table)
                return _Put.REPEATED
            if old and not self._are_there(table, old):
                return _Put.OUTDATED
            self._check_files(table, files)
            first = log.version() + 1 if first is None else first
            try:
                self._put_next(log, table, files, old, step=step, changes_rows=changes_rows, mark=mark)
                break
            except Exception as error:
                if not self._entry(table, log.version() + 1):
                    # Nobody was faster: it is the place that fails.
                    faults += 1
                    if faults > _MAX_FAULTS:
                        raise self._error(table, error) from error
                tries += 1
                time.sleep(_RANDOM.uniform(0, min(_PAUSE_S * 2 ** min(tries, 6), _MAX_PAUSE_S)))
        self._sync_log(table)
        return _Put.DONE

    def _put_next(
        self,
        log: DeltaTable,
        table: Table,
        files: Sequence[WrittenFile],
        old: Sequence[TableFile],
        *,
        step: Step | None,
        changes_rows: bool,
        mark: str,
    ) -> None:
        """Commits as the version after the one that was read, or not at all."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, file.partition, now_ms, changes_rows, _stats(file)) for file in files
        ]
        actions += [RemoveAction(file.name, changes_rows, now_ms, file.size, file.partition) for file in old]
        steps = [Transaction(step.app_id, step.version)] if step is not None else None
        properties = CommitProperties({_MARK: mark}, max_commit_retries=0, app_transactions=steps)
        log.create_write_transaction(actions, "append", log.schema(), list(table.partition_by), commit_properties=properties)

    def _entry(self, table: Table, version: int) -> str:
        """An entry of a log; empty where there is none."""
        with self._named(table):
            return self.storage.read_text(_entry(self._lake.path(table), version))

    def _has_mark(self, table: Table, mark: str, first: int, last: int) -> bool:
        """Whether one of some versions is the commit with this mark."""
        return any(mark in self._entry(table, version) for version in range(first, last + 1))

    def _are_there(self, table: Table, files: Sequence[TableFile]) -> bool:
        names = pa.table(self._log(table).get_add_actions(flatten=True)).column("path")
        return bool(pc.all(pc.is_in(pa.array([file.name for file in files]), names.cast(pa.string()))).as_py())

    def _sync_log(self, table: Table) -> None:
        """What the log has got since this was last asked is on disk; the first time, its last entries."""
        with self._named(table):
            version = self._log(table).version()
            first = max(self._synced.get(table.name, version - _LAST_ENTRIES) + 1, 0)
            self.storage.sync(self._log_files(self._lake.path(table), range(first, version + 1)))
            self._synced[table.name] = version

    def _log_files(self, folder: str, versions: Iterable[int]) -> Iterator[str]:
        """What some versions have left in a log; only a folder is asked."""
        if not self.storage.renames:
            return
        log = f"{folder}/_delta_log"
        hint = re.search(r'"version":(\d+)', self.storage.read_text(f"{log}/_last_checkpoint"))
        joined = [f"{int(hint[1]):020}.checkpoint.parquet", "_last_checkpoint"] if hint is not None else []
        paths = [f"{log}/{name}" for name in (*(f"{version:020}.json" for version in versions), *joined)]
        yield from (path for path, size in zip(paths, self.storage.sizes(paths), strict=True) if size is not None)

    def _check_files(self, table: Table, files: Sequence[WrittenFile]) -> None:
        """Raises LakeError unless all files lie where their writers reported them, with the size that they reported."""
        paths = [f"{self._lake.path(table)}/{file.path}" for file in files]
        wrong = [path for path, file, size in zip(paths, files, self._sizes(table, paths), strict=True) if size != file.size]
        if wrong:
            raise LakeError(
                f"{len(wrong)} of {len(files)} files that were written for {table.name} can't be found in full, such as {wrong[0]}; "
                "nothing was added: see that all executors write to the same folder, and that nothing removes files from it"
            )

    def _sizes(self, table: Table, paths: Sequence[str]) -> list[int | None]:
        with self._named(table):
            return self.storage.sizes(paths)

    def is_done(self, table: Table, step: Step) -> bool:
        """Whether the step was committed before."""
        return _has_step(self._log(table), step)

    def files(
        self, table: Table, partitions: Iterable[Mapping[str, str | None]], *, time: str = "local_ts"
    ) -> dict[tuple[str | None, ...], list[TableFile]]:
        """The files of some partitions, by the values of those; `time` is the column that says when a row is."""
        wanted = {tuple(partition[name] for name in table.partition_by) for partition in partitions}
        actions = pa.table(self._log(table).get_add_actions(flatten=True))
        # A table may have years of files, a batch has the partitions of a few days.
        first_column = actions.column(f"partition.{table.partition_by[0]}").cast(pa.string())
        actions = actions.filter(pc.is_in(first_column, pa.array({place[0] for place in wanted}, pa.string())))
        found: dict[tuple[str | None, ...], list[TableFile]] = {place: [] for place in wanted}
        for action in actions.to_pylist():
            file = self._file(table, action, time)
            place = tuple(file.partition.values())
            if place in found:
                found[place].append(file)
        return found

    def version(self, table: Table) -> int:
        """The one whose files are told from now on, until the log is asked again."""
        return self._log(table).version()

    def identity(self, table: Table) -> str:
        """What streams that read the table know it by."""
        return str(self._log(table).metadata().id)

    def schema(self, table: Table) -> pa.Schema:
        """Its columns as Arrow has them, in the order of their declaration."""
        kinds = pa.schema(self._log(table).schema().to_arrow())
        return pa.schema([kinds.field(name) for name in table.columns])

    def first_date(self, table: Table) -> date | None:
        """The earliest date that a table which is partitioned by dates has rows of."""
        dates = pa.table(self._log(table).get_add_actions(flatten=True)).column("partition.date")
        found = pc.min(dates.cast(pa.string())).as_py()
        return None if found is None else date.fromisoformat(found)

    def has_rows_since(self, table: Table, instant_us: int) -> bool:
        """Whether a table may have rows whose local time is that instant or a later one."""
        actions = pa.table(self._log(table).get_add_actions(flatten=True))
        if not actions.num_rows or "max.local_ts" not in actions.column_names:
            return bool(actions.num_rows)
        latest = actions.column("max.local_ts").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return bool(pc.any(pc.fill_null(pc.greater_equal(latest, instant_us), True)).as_py())

    def all_files(self, table: Table) -> list[TableFile]:
        """Every file of a table."""
        actions = pa.table(self._log(table).get_add_actions(flatten=True))
        return [self._file(table, action, "local_ts") for action in actions.to_pylist()]

    def _file(self, table: Table, action: Mapping[str, Any], time: str) -> TableFile:
        values = {name: action[f"partition.{name}"] for name in table.partition_by}
        first_us, last_us = _to_us(action.get(f"min.{time}"), -_FOR_EVER), _to_us(action.get(f"max.{time}"), _FOR_EVER)
        return TableFile(
            f"{self._lake.path(table)}/{unquote(action['path'])}",
            action["path"],
            action["size_bytes"],
            {name: None if value is None else str(value) for name, value in values.items()},
            first_us,
            last_us,
            # Files of earlier releases, and those that Spark joined in their tables, do not say.
            _to_us(action.get("min.event_ts"), first_us - MAX_SKEW_US),
            _to_us(action.get("max.event_ts"), last_us + MAX_SKEW_US),
        )

    def vacuum(self, table: Table, retain_s: float) -> None:
        """Removes files that no version of the table has needed for so long, and that nobody is about to add."""
        log = self._log(table)
        with self._named(table):
            log.vacuum(math.ceil(retain_s / 3600), dry_run=False, enforce_retention_duration=False, full=True)
        self._sync_log(table)

    def _log(self, table: Table) -> DeltaTable:
        with self._named(table):
            if table.name in self._tables:
                log = self._tables[table.name]
                if self._may_have_more(table, log):
                    log.update_incremental()
                    self._list_at[table.name] = time.monotonic() + _LIST_EACH_S
            else:
                log = self.storage.open_log(self._lake.path(table))
                if log.protocol().min_reader_version > _PLAIN_READER:
                    raise LakeError(
                        f"{table.name} in {self._lake.root} has features that make it more than its files, such as deletion vectors; "
                        f"drop them (ALTER TABLE delta.`{self._lake.path(table)}` DROP FEATURE …), or use another lake"
                    )
                self._tables[table.name] = log
                self._list_at[table.name] = time.monotonic() + _LIST_EACH_S
        return self._tables[table.name]

    def _may_have_more(self, table: Table, log: DeltaTable) -> bool:
        """Whether it is worth asking: a folder is listed for that, with all that the log has had for weeks.

        An entry that is not there may also be one that was removed for its age, so now and then the log is asked whatever is there.
        """
        if self.storage.local_folder is None or time.monotonic() >= self._list_at[table.name]:
            return True
        return self.storage.sizes([_entry(self._lake.path(table), log.version() + 1)]) != [None]

    @contextmanager
    def _named(self, table: Table) -> Iterator[None]:
        try:
            yield
        except LakeError:
            raise
        except Exception as error:
            raise self._error(table, error) from error

    def _error(self, table: Table, error: Exception) -> LakeError:
        """What delta-rs says in colours and lines, as one sentence."""
        text = " ".join(re.sub(r"\x1b\[\d+m|↳", "", str(error)).split())
        return LakeError(f"the log of {table.name} in {self._lake.root} can't be used: {text}")

    def remove(self, table: Table, files: Iterable[WrittenFile]) -> None:
        """Removes files that were written and are not to be committed."""
        for file in files:
            self.storage.remove_file(f"{self._lake.path(table)}/{file.path}")


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
