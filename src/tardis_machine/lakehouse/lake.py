"""A lake: a place with tables in it, and with the checkpoints of the jobs that fill them.

Invariant: a table that is there is only used when it agrees with its declaration. A column that is new is added; one that is gone or of
another type is refused, and so is a table of a later version or of another program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import LakeError
from .storage import Storage, StoredTable, open_storage
from .tables import VERSION_PROPERTY, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Lake", "check_table", "prepare_table"]

_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Lake:
    """A lake in some storage."""

    storage: Storage

    @classmethod
    def at(cls, path: str | Path, options: Mapping[str, str] = _NO_OPTIONS) -> Lake:
        """The lake in a folder, or at a URI with options of its store."""
        return cls(open_storage(path, options))

    @property
    def root(self) -> str:
        """Where it lies."""
        return self.storage.root

    def path(self, table: Table) -> str:
        """Where a table lies."""
        return f"{self.root}/{table.name.replace('.', '/')}"

    def checkpoint(self, stream: str) -> str:
        """Where a stream keeps how far it is."""
        return f"{self.root}/_checkpoints/{stream}"

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """The rows of a table."""
        return spark.read.format("delta").load(self.path(table))

    def create(self) -> None:
        """Makes its folder, where it lies in one; raises LakeError where that can't be done."""
        try:
            self.storage.create()
        except OSError as error:
            raise LakeError(
                f"the lake can't be made in {self.root}: {error.strerror or error}; choose another place with --lake"
            ) from None

    def check_exists(self) -> None:
        """Raises LakeError where there is no lake."""
        try:
            is_missing = self.storage.is_missing()
        except OSError as error:
            raise LakeError(f"the lake in {self.root} can't be reached: {error.strerror or error}") from None
        if is_missing:
            raise LakeError(f"there is no lake in {self.root}; choose another with --lake, or make one with 'lake ingest'")


def check_table(lake: Lake, table: Table) -> bool:
    """Whether the table is there; raises LakeError where it does not agree with its declaration."""
    return _missing_columns(lake, table) is not None


def prepare_table(lake: Lake, table: Table) -> bool:
    """Makes the table where it is missing, and adds the columns that it lacks; True where it made the table.

    Raises LakeError where it does not agree with its declaration.
    """
    path = lake.path(table)
    missing = _missing_columns(lake, table)
    if missing is None:
        lake.storage.create_table(path, table)
    elif missing:
        lake.storage.add_columns(path, missing)
    return missing is None


def _missing_columns(lake: Lake, table: Table) -> str | None:
    """The columns that a table still lacks, as SQL declares them; None where there is no table."""
    path = lake.path(table)
    stored = lake.storage.read_table(path)
    return None if stored is None else _compare(table, path, stored)


def _compare(table: Table, path: str, stored: StoredTable) -> str:
    from pyspark.sql.types import StructType

    version = int(stored.properties.get(VERSION_PROPERTY, "0"))
    if version == 0:
        raise LakeError(
            f"{path} holds a table of another program, so {table.name} can't be kept there; choose another lake with --lake"
        )
    if version > table.version:
        raise LakeError(
            f"{table.name} in {path} is of version {version}, and this release knows versions up to {table.version}; "
            "use a later release"
        )
    declared_type = StructType.fromDDL(table.ddl)
    assert isinstance(declared_type, StructType)
    declared = {field.name: field.dataType for field in declared_type.fields}
    found = {field.name: field.dataType for field in stored.columns}
    unknown = [name for name in found if name not in declared]
    if unknown:
        raise LakeError(
            f"{table.name} in {path} has columns that this release does not know: {', '.join(unknown)}; use a later release"
        )
    for name, kind in found.items():
        if kind != declared[name]:
            was, should = kind.simpleString(), declared[name].simpleString()
            raise LakeError(f"{table.name} in {path} has the column {name} of type {was}, not {should}; use another lake")
    return ", ".join(f"`{name}` {kind}" for name, kind in table.columns.items() if name not in found)
