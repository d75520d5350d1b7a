"""A place at a URI, which only Spark's file systems know: `s3a://…`, `hdfs://…`, `file://…`.

Invariant: everything goes through Spark, so whatever Spark is configured to reach will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .contract import Storage, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..tables import Table

__all__ = ["ObjectStore"]


class ObjectStore(Storage):
    """A lake at a URI; Spark reads and writes all of it."""

    @property
    def direct(self) -> None:
        """Only Spark has what it takes to reach it."""
        return

    @property
    def local_folder(self) -> None:
        """It lies elsewhere."""
        return

    def create(self) -> None:
        """Nothing: folders come with their files."""

    def is_missing(self) -> bool:
        """Nobody knows before Spark has looked."""
        return False

    def read_text(self, spark: SparkSession, path: str) -> str:
        """As one row, as Spark reads text."""
        from pyspark.errors import AnalysisException

        try:
            rows = spark.read.text(path, wholetext=True).collect()
        except AnalysisException:
            return ""
        return str(rows[0][0]) if rows else ""

    def write_text(self, spark: SparkSession, path: str, text: str) -> None:
        """As one row; Spark makes a folder of it."""
        spark.createDataFrame([(text,)], "text STRING").coalesce(1).write.mode("overwrite").text(path)

    def read_table(self, spark: SparkSession, path: str) -> StoredTable | None:
        """As Spark knows it."""
        from pyspark.errors import AnalysisException

        try:
            columns = spark.read.format("delta").load(path).schema
        except AnalysisException as error:
            if error.getCondition() in ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND"):
                return None
            raise
        properties = spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()
        return StoredTable(columns, {row["key"]: row["value"] for row in properties})

    def create_table(self, spark: SparkSession, path: str, table: Table) -> None:
        """In Spark's SQL."""
        partitioned = f" PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in table.properties.items())
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({table.ddl}) USING DELTA{partitioned} TBLPROPERTIES ({properties})"
        )
