"""A folder: of this machine, or one that all machines of a cluster have mounted in the same place.

Invariant: Spark is never asked. A small file is written beside its place and renamed, so nobody reads half of it. What this module
has written is on disk when a call returns; what others wrote is, when `sync` does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ...errors import LakeError
from .contract import DirectStorage, StoredTable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

    from ..tables import Table

__all__ = ["Folder"]

_SCHEME = re.compile(r"^file:(//)?(?=/)")


class Folder(DirectStorage):
    """A lake in a folder; workers write its files, and delta-rs reads and writes its logs."""

    @property
    def direct(self) -> Self:
        """Itself."""
        return self

    @property
    def local_folder(self) -> Path:
        """The root."""
        return Path(self.root)

    @property
    def filesystem(self) -> FileSystem:
        """That of the machine."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()

    def create(self) -> None:
        """Makes the folder and those above it."""
        _make_folder(Path(self.root))

    def is_missing(self) -> bool:
        """Whether there is no such folder."""
        return not Path(self.root).is_dir()

    def to_path(self, name: str) -> str:
        """Without `file:`."""
        return _SCHEME.sub("", name, count=1)

    def list_files(self, folder: str, pattern: str, *, below: bool = False) -> list[str]:
        """In no order."""
        found = Path(folder).rglob(pattern) if below else Path(folder).glob(pattern)
        return [str(path) for path in found]

    def read_file(self, path: str) -> str:
        """All of it."""
        return Path(path).read_text()

    def read_text(self, spark: SparkSession, path: str) -> str:
        """All of it, or nothing."""
        return self.read_file(path) if Path(path).is_file() else ""

    def write_text(self, spark: SparkSession, path: str, text: str) -> None:
        """Makes the folders above it too."""
        _make_folder(Path(path).parent)
        unfinished = Path(f"{path}.new")
        unfinished.write_text(text)
        _sync(unfinished)
        unfinished.rename(path)
        _sync(Path(path).parent)

    def sync(self, paths: Iterable[str]) -> None:
        """Files first, then each folder up to the root, once."""
        root, files = Path(self.root), [*map(Path, paths)]
        for file in files:
            _sync(file)
        for folder in dict.fromkeys(folder for file in files for folder in file.parents if folder.is_relative_to(root)):
            _sync(folder)

    def open_log(self, path: str, version: int | None = None) -> DeltaTable:
        """Read by delta-rs, in a hundredth of the time that Spark takes to ask itself."""
        from deltalake import DeltaTable

        return DeltaTable(path, version=version)

    def read_table(self, spark: SparkSession, path: str) -> StoredTable | None:
        """From the table's log."""
        from deltalake.exceptions import DeltaError
        from pyspark.sql.types import StructType

        if not Path(path, "_delta_log").is_dir():
            return None
        try:
            log = self.open_log(path)
        except (DeltaError, OSError) as error:
            raise LakeError(f"{path} holds no table that can be read: {' '.join(str(error).split())}") from error
        return StoredTable(StructType.fromJson(json.loads(log.schema().to_json())), log.metadata().configuration)

    def create_table(self, spark: SparkSession, path: str, table: Table) -> None:
        """Writes the first entry of its log."""
        from deltalake import DeltaTable, Schema
        from pyspark.sql.types import StructType

        DeltaTable.create(
            path,
            Schema.from_json(StructType.fromDDL(table.ddl).json()),
            mode="ignore",
            partition_by=list(table.partition_by),
            configuration=dict(table.properties),
            raise_if_key_not_exists=False,
        )
        self.sync([f"{path}/_delta_log/{0:020}.json"])


def _make_folder(folder: Path) -> None:
    """A folder, with those above it that are missing; their names are on disk."""
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        _sync(made.parent)


def _sync(target: Path) -> None:
    """Returns when a file, or the names in a folder, are on disk."""
    fd = os.open(target, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
