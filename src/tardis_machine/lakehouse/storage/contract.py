"""What a place has to offer so that a lake can lie there.

`Storage` is what every place offers, if need be through Spark. `DirectStorage` is for places whose files workers and the driver also
reach by themselves: there workers write the files of tables, and the driver commits them. A caller asks for `Storage.direct` and
leaves the work to Spark where it is None; no caller asks what kind of place it is.

Invariant: this is file I/O alone. What a commit must not do twice is decided in `commits`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from ..tables import Table

__all__ = ["DirectStorage", "Storage", "StoredTable"]


class StoredTable(NamedTuple):
    """What a table that lies somewhere says of itself."""

    columns: StructType
    properties: Mapping[str, str]


@dataclass(frozen=True)
class Storage(ABC):
    """A place for files. Equal ones are the same place, and workers get a copy.

    Paths are texts that begin with `root`, as Spark takes them. A method with a Spark session among its arguments may run a Spark job;
    the others may be called before there is a session, and are quick.
    """

    root: str

    @property
    @abstractmethod
    def direct(self) -> DirectStorage | None:
        """The same place, reached without Spark; None where only Spark reaches it."""

    @property
    @abstractmethod
    def local_folder(self) -> Path | None:
        """The root as a folder of this machine, for files that programs leave there for each other; None where it is none."""

    @abstractmethod
    def create(self) -> None:
        """Makes the root, where that has to be done before files are written; OSError where it can't be."""

    @abstractmethod
    def is_missing(self) -> bool:
        """Whether the root is known not to be there; False also where only Spark could tell."""

    @abstractmethod
    def read_text(self, spark: SparkSession, path: str) -> str:
        """What stands in a small file; nothing where there is none."""

    @abstractmethod
    def write_text(self, spark: SparkSession, path: str, text: str) -> None:
        """Writes a small file, whole or not at all, in place of one that is there; it is durable when this returns."""

    @abstractmethod
    def read_table(self, spark: SparkSession, path: str) -> StoredTable | None:
        """The declaration of the table there; None where there is none. LakeError where what is there is not a table."""

    @abstractmethod
    def create_table(self, spark: SparkSession, path: str, table: Table) -> None:
        """Makes an empty table, durably; changes nothing where another job has just made one."""


class DirectStorage(Storage):
    """A place that the driver and every worker reach without Spark."""

    @property
    @abstractmethod
    def filesystem(self) -> FileSystem:
        """What Arrow reads and writes files with; it takes paths of this storage."""

    @abstractmethod
    def to_path(self, name: str) -> str:
        """The path of a file as Spark names it, with a scheme and without escapes."""

    @abstractmethod
    def list_files(self, folder: str, pattern: str, *, below: bool = False) -> list[str]:
        """The paths of the files whose names match, in a folder or also in those below it; none where there is no such folder."""

    @abstractmethod
    def read_file(self, path: str) -> str:
        """The text of a file; OSError where there is none."""

    @abstractmethod
    def sync(self, paths: Iterable[str]) -> None:
        """Returns when files outlast a power cut: what they hold, and their names in their folders; OSError where that failed."""

    @abstractmethod
    def open_log(self, path: str, version: int | None = None) -> DeltaTable:
        """The log of the table there, at its latest version or at the one asked for.

        Commits to it are put-if-absent: of two writers of one version one is refused, and tries the next.
        """
