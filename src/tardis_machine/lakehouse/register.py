"""The tables of a lake under their names in a catalog of Spark's, so that whoever uses the catalog finds them.

A table that is registered stays where it is, and jobs go on writing it as before: a catalog has its name and its place, and reads
the rest from its log.

Invariant: nothing of the lake is changed, and no name of the catalog that means something else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ..errors import LakeError
from .lake import Lake
from .spark_errors import sentence
from .tables import Table, all_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..settings import Settings

__all__ = ["ddl_of", "register_lake", "run"]

SPARK_CATALOG = "spark_catalog"
_HIVE = "spark.sql.catalogImplementation"


def run(settings: Settings) -> int:
    """`lake register`: prints what it does."""
    from .jobs import open_session

    lake = Lake.at(settings.lake, settings.lake_option)
    lake.check_exists()
    present = [table for table in all_tables() if lake.storage.read_table(lake.path(table)) is not None]
    if not present:
        raise LakeError(
            f"there are no tables in {lake.root}; choose another lake with --lake, or fill this one with 'lake ingest'"
        )
    conf = catalog_conf(settings.catalog, settings.spark_conf)
    sys.stdout.writelines(f"{statement};\n" for statement in ddl_of(lake, present, settings.catalog, settings.schema_prefix))
    if not settings.print_only:
        spark = open_session(settings, lake, conf=conf)
        register_lake(spark, lake, present, settings.catalog, settings.schema_prefix)
    return 0


def catalog_conf(catalog: str, given: Mapping[str, str]) -> dict[str, str]:
    """Spark's properties for a catalog; LakeError for one that nobody declared."""
    if catalog == SPARK_CATALOG:
        # Spark's own catalog is one in memory, unless it is told otherwise before it starts.
        return {_HIVE: "hive", **given}
    if f"spark.sql.catalog.{catalog}" not in given:
        raise LakeError(
            f"--catalog: Spark has no catalog {catalog!r}; say what it is with --spark-conf spark.sql.catalog.{catalog}=CLASS "
            f"(docs/lakehouse.md has some), or take {SPARK_CATALOG}, which is Hive's"
        )
    return dict(given)


def ddl_of(lake: Lake, tables: Sequence[Table], catalog: str, prefix: str) -> Iterator[str]:
    """What makes the tables known, as statements of Spark SQL."""
    for layer in dict.fromkeys(table.name.partition(".")[0] for table in tables):
        yield f"CREATE SCHEMA IF NOT EXISTS {_name(catalog, prefix + layer)}"
    for table in tables:
        location = lake.path(table).replace("\\", "\\\\").replace("'", "\\'")
        yield f"CREATE TABLE IF NOT EXISTS {_table_name(table, catalog, prefix)} USING DELTA LOCATION '{location}'"


def register_lake(spark: SparkSession, lake: Lake, tables: Sequence[Table], catalog: str, prefix: str = "") -> None:
    """Makes tables known to a catalog; LakeError where one of their names is that of another table."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        for statement in ddl_of(lake, tables, catalog, prefix):
            spark.sql(statement)
        for table in tables:
            name = _table_name(table, catalog, prefix)
            known = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"]
            if _place(known) != _place(lake.path(table)):
                raise LakeError(f"{name} is a table at {known} already; give this lake names of its own with --schema-prefix")
    except (PySparkException, Py4JJavaError) as error:
        raise LakeError(f"the catalog {catalog!r} did not take the lake: {sentence(error)}") from None


def _table_name(table: Table, catalog: str, prefix: str) -> str:
    layer, _, name = table.name.partition(".")
    return _name(catalog, prefix + layer, name)


def _name(*parts: str) -> str:
    return ".".join(f"`{part}`" for part in parts)


def _place(location: str) -> tuple[str, str]:
    """Where a table lies, however it is written; buckets are known by one scheme or another."""
    place = urlsplit(location)
    return place.netloc, unquote(place.path).rstrip("/")
