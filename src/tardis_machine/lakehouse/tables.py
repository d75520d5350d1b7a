"""The tables of a lake: names, columns, partitioning, and where they lie.

Invariant: a table is declared once, here or in its own module, and what lies on disk is only used when it agrees with that
declaration: a column that is new is added, one that is gone or of another type is refused, and so is a table of a later version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["EVENTS", "QUARANTINE", "Lake", "Table", "all_tables", "check_table", "prepare_table"]

VERSION_PROPERTY = "tardis-machine.version"


@dataclass(frozen=True)
class Table:
    """One table of the lake."""

    name: str
    """Layer and name, as SQL writes it: `silver.trades`."""
    columns: Mapping[str, str]
    """Name to Spark type, in order."""
    partition_by: tuple[str, ...] = ("date", "exchange")
    skip_by: tuple[str, ...] | None = None
    """Columns whose range is known of each file, so that queries pass over files; each costs time when rows are written. None: all."""
    version: int = 1
    """Raised when older code could no longer write the table rightly."""

    @property
    def ddl(self) -> str:
        """The columns as SQL declares them."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns.items())

    @property
    def properties(self) -> dict[str, str]:
        """What is kept with the table."""
        version = {VERSION_PROPERTY: str(self.version)}
        if self.skip_by is None:
            return version
        if not self.skip_by:
            return {**version, "delta.dataSkippingNumIndexedCols": "0"}
        return {**version, "delta.dataSkippingStatsColumns": ",".join(self.skip_by)}


@dataclass(frozen=True)
class Lake:
    """A folder, or a URI that Hadoop knows, with the tables and the checkpoints of the jobs that fill them."""

    root: str

    @classmethod
    def at(cls, path: str | Path) -> Lake:
        """The lake in a folder of this machine, or at a URI."""
        text = str(path)
        return cls(text.rstrip("/") if "://" in text else str(Path(text).expanduser().absolute()))

    @property
    def is_local(self) -> bool:
        """Whether it lies in a folder of this machine."""
        return "://" not in self.root

    def path(self, table: Table) -> str:
        """Where a table lies."""
        return f"{self.root}/{table.name.replace('.', '/')}"

    def checkpoint(self, stream: str) -> str:
        """Where a stream keeps how far it is."""
        return f"{self.root}/_checkpoints/{stream}"

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """The rows of a table."""
        return spark.read.format("delta").load(self.path(table))

    def make_room(self) -> None:
        """Makes the folder of a local lake; raises LakeError where there can be none."""
        if self.is_local:
            try:
                Path(self.root).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LakeError(f"--lake: no lake can be made in {self.root}: {error.strerror}") from None

    def check_exists(self) -> None:
        """Raises LakeError where a local lake is not there; what lies elsewhere is found out by Spark."""
        if self.is_local and not Path(self.root).is_dir():
            raise LakeError(f"--lake: there is no lake in {self.root}; 'lake ingest' makes one")


EVENTS = Table(
    "bronze.events",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "payload_case": "STRING",
        "local_ts": "TIMESTAMP",
        "ingest_ts": "TIMESTAMP",
        "origin": "STRING",
        "event_id": "BINARY",
        "session": "STRING",
        "sequence": "BIGINT",
        "value": "BINARY",
        "key": "STRING",
        "headers": "MAP<STRING, STRING>",
        "bus": "STRING",
        "destination": "STRING",
        "position": "STRING",
        "broker_timestamp": "TIMESTAMP",
    },
    skip_by=("local_ts",),
)
"""Every record as it came, once, with the columns of its envelope."""

QUARANTINE = Table(
    "bronze.quarantine",
    {
        "stage": "STRING",
        "reason": "STRING",
        "value": "BINARY",
        "key": "STRING",
        "headers": "MAP<STRING, STRING>",
        "bus": "STRING",
        "destination": "STRING",
        "position": "STRING",
        "broker_timestamp": "TIMESTAMP",
    },
    partition_by=(),
    skip_by=(),
)
"""What could not be decoded (stage `bronze.events`), or does not fit its silver table (stage: that table)."""


def all_tables() -> tuple[Table, ...]:
    """Every table of a lake, front to back."""
    from .gold import GOLD_TABLES
    from .silver import SILVER_TABLES

    return (EVENTS, QUARANTINE, *(silver.table for silver in SILVER_TABLES), *GOLD_TABLES)


def check_table(spark: SparkSession, lake: Lake, table: Table) -> bool:
    """Whether the table is there; raises LakeError where it does not agree with its declaration."""
    return _new_columns(spark, lake, table) is not None


def prepare_table(spark: SparkSession, lake: Lake, table: Table) -> bool:
    """Makes the table where it is missing, adds the columns that it lacks, and refuses one that does not agree; whether it made it."""
    path = lake.path(table)
    new_columns = _new_columns(spark, lake, table)
    if new_columns is None and lake.is_local:
        _create(path, table)
    elif new_columns is None:
        partitioned = f" PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in table.properties.items())
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({table.ddl}) USING DELTA{partitioned} TBLPROPERTIES ({properties})"
        )
    elif new_columns:
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({new_columns})")
    return new_columns is None


def _new_columns(spark: SparkSession, lake: Lake, table: Table) -> str | None:
    path = lake.path(table)
    found = _declaration(path) if lake.is_local else _declaration_by_spark(spark, path)
    return None if found is None else to_new_columns(table, path, *found)


def to_new_columns(table: Table, path: str, present: StructType, properties: Mapping[str, str]) -> str:
    """The columns that a table on disk still lacks, as SQL declares them; raises LakeError where it can't be used."""
    from pyspark.sql.types import StructType

    version = int(properties.get(VERSION_PROPERTY, "0"))
    if version == 0:
        raise LakeError(f"{path} holds a table that is not of this program: {table.name} can't be kept there")
    if version > table.version:
        raise LakeError(
            f"{table.name} in {path} is of version {version}, and this program knows it up to version {table.version}: "
            "use a later release"
        )
    declared_type = StructType.fromDDL(table.ddl)
    assert isinstance(declared_type, StructType)
    declared = {field.name: field.dataType for field in declared_type.fields}
    found = {field.name: field.dataType for field in present}
    gone = [name for name in found if name not in declared]
    if gone:
        raise LakeError(f"{table.name} in {path} has columns that this program does not know: {', '.join(gone)}")
    for name, kind in found.items():
        if kind != declared[name]:
            was, should = kind.simpleString(), declared[name].simpleString()
            raise LakeError(f"{table.name} in {path}: column {name} is of type {was}, not {should}")
    return ", ".join(f"`{name}` {kind}" for name, kind in table.columns.items() if name not in found)


Declaration = tuple["StructType", Mapping[str, str]]
"""The columns and the properties of a table on disk."""


def _declaration(path: str) -> Declaration | None:
    """Read from the table's log, in a hundredth of the time that Spark takes to ask itself."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
    from pyspark.sql.types import StructType

    if not Path(path, "_delta_log").is_dir():
        return None
    try:
        log = DeltaTable(path)
    except (DeltaError, OSError) as error:
        raise LakeError(f"{path} holds no table that can be read: {' '.join(str(error).split())}") from error
    return StructType.fromJson(json.loads(log.schema().to_json())), log.metadata().configuration


def _create(path: str, table: Table) -> None:
    from deltalake import DeltaTable, Schema
    from pyspark.sql.types import StructType

    schema = Schema.from_json(StructType.fromDDL(table.ddl).json())
    DeltaTable.create(
        path,
        schema,
        mode="ignore",
        partition_by=list(table.partition_by),
        configuration=dict(table.properties),
        raise_if_key_not_exists=False,
    )


def _declaration_by_spark(spark: SparkSession, path: str) -> Declaration | None:
    from pyspark.errors import AnalysisException

    try:
        schema = spark.read.format("delta").load(path).schema
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND"):
            return None
        raise
    return schema, {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()}
