"""What a place has to offer so that a lake can lie there.

The driver and every worker reach it without Spark: workers write the files of tables, and the driver commits them. Spark reads there
too, and keeps its checkpoints there; what it has to be told for that is `spark_conf`.

Invariant: this is file I/O alone. What a commit must not do twice is decided in `commits`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...errors import LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

    from ..tables import Table

__all__ = ["Storage", "StoredTable"]


class StoredTable(NamedTuple):
    """What a table that lies somewhere says of itself."""

    columns: StructType
    properties: Mapping[str, str]


@dataclass(frozen=True)
class Storage(ABC):
    """A place for files. Equal ones are the same place, and workers get a copy.

    Paths are texts that begin with `root`, as Spark takes them.
    """

    root: str

    @property
    @abstractmethod
    def local_folder(self) -> Path | None:
        """The root as a folder of this machine, for files that programs leave there for each other; None where it is none."""

    @property
    @abstractmethod
    def renames(self) -> bool:
        """Whether of two jobs that give a file the same name one is refused: Spark's checkpoints then belong to one job."""

    @property
    @abstractmethod
    def spark_conf(self) -> Mapping[str, str]:
        """What Spark has to be told so that it reaches the place."""

    @property
    @abstractmethod
    def jars(self) -> str | None:
        """The set of jars that Spark needs besides its own and Delta's; None where it needs none."""

    @property
    @abstractmethod
    def log_options(self) -> dict[str, str] | None:
        """What delta-rs has to be told."""

    @abstractmethod
    def create(self) -> None:
        """Makes the root, where that has to be done before files are written; OSError where it can't be."""

    @abstractmethod
    def is_missing(self) -> bool:
        """Whether nothing is there; OSError where that can't be told."""

    @abstractmethod
    def to_path(self, name: str) -> str:
        """The path of a file as Spark names it, without escapes."""

    @abstractmethod
    def list_files(self, folder: str, pattern: str, *, below: bool = False) -> list[str]:
        """The paths of the files whose names match, in a folder or also in those below it; none where there is no such folder."""

    @abstractmethod
    def read_text(self, path: str) -> str:
        """What stands in a small file; nothing where there is none."""

    def write_text(self, path: str, text: str) -> None:
        """As `write_bytes`."""
        self.write_bytes(path, text.encode())

    @abstractmethod
    def write_bytes(self, path: str, content: bytes | pa.Buffer) -> None:
        """Writes a small file, whole or not at all, in place of one that is there; it is durable when this returns."""

    @abstractmethod
    def open_parquet(self, path: str) -> pq.ParquetFile:
        """A Parquet file to read; FileNotFoundError where there is none."""

    @abstractmethod
    def create_file(self, path: str) -> pa.NativeFile:
        """A new file to write, with the folders above it. Nobody finds it before it is closed, or finds it unfinished."""

    @abstractmethod
    def remove_file(self, path: str) -> None:
        """Removes a file; one that is not there is no error."""

    @abstractmethod
    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Of files; None where there is none."""

    @abstractmethod
    def sync(self, paths: Iterable[str]) -> None:
        """Returns when files outlast a power cut: what they hold, and their names in their folders; OSError where that failed."""

    def open_log(self, path: str, version: int | None = None) -> DeltaTable:
        """The log of the table there, at its latest version or at the one asked for.

        Commits to it are put-if-absent: of two writers of one version one is refused, and tries the next. It is read by delta-rs, in a
        hundredth of the time that Spark takes to ask itself.
        """
        from deltalake import DeltaTable

        return DeltaTable(path, version=version, storage_options=self.log_options)

    def read_table(self, path: str) -> StoredTable | None:
        """The declaration of the table there; None where there is none. LakeError where what is there is not a table."""
        from deltalake.exceptions import DeltaError, TableNotFoundError
        from pyspark.sql.types import StructType

        if not self._has_log(path):
            return None
        try:
            log = self.open_log(path)
        except TableNotFoundError:
            # A log that others are just about to begin.
            return None
        except (DeltaError, OSError) as error:
            raise LakeError(f"{path} holds no table that can be read: {' '.join(str(error).split())}") from error
        return StoredTable(StructType.fromJson(json.loads(log.schema().to_json())), log.metadata().configuration)

    @abstractmethod
    def _has_log(self, path: str) -> bool:
        """Whether a table's log may be there."""

    def create_table(self, path: str, table: Table) -> None:
        """Makes an empty table, durably; changes nothing where another job has just made one."""
        from deltalake import CommitProperties, DeltaTable, Schema
        from deltalake.exceptions import DeltaError
        from pyspark.sql.types import StructType

        try:
            DeltaTable.create(
                path,
                Schema.from_json(StructType.fromDDL(table.ddl).json()),
                mode="ignore",
                partition_by=list(table.partition_by),
                configuration=dict(table.properties),
                raise_if_key_not_exists=False,
                storage_options=self.log_options,
                # Tried again, it would be declared a second time, with another identity, and streams that read it would end.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:
            if self.read_table(path) is None:
                raise
        self.sync([f"{path}/_delta_log/{0:020}.json"])

    def add_columns(self, path: str, ddl: str) -> None:
        """Adds columns to the table there, durably; changes nothing where another job has just added them."""
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from pyspark.sql.types import StructType

        log, added = self.open_log(path), StructType.fromDDL(ddl)
        assert isinstance(added, StructType)
        try:
            log.alter.add_columns(Schema.from_json(added.json()).fields)
        except DeltaError:
            log = self.open_log(path)
            if not {*added.names} <= {field.name for field in log.schema().fields}:
                raise
        self.sync([f"{path}/_delta_log/{log.version():020}.json"])
