"""A lake in a catalog: its tables are found under their names, by who knows nothing of the lake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.register import catalog_conf, ddl_of
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS
from tests.spark.lake_under_test import LakeUnderTest, encode, trades

pytestmark = pytest.mark.timeout(600)

# Which catalog a session has is decided when its JVM starts: these have one of their own.
REGISTER = """
import sys
from pyspark.sql import SparkSession
from tardis_machine.commands.cli import main
lake, other, metastore = sys.argv[1:]
conf = f"spark.sql.warehouse.dir={metastore}/warehouse,"
conf += f"spark.hadoop.javax.jdo.option.ConnectionURL=jdbc:derby:;databaseName={metastore}/derby;create=true"
def register(*argv):
    return main(["lake", "register", "--master", "local[1]", "--spark-conf", conf, *argv])
assert register("--lake", lake) == register("--lake", lake) == 0
spark = SparkSession.getActiveSession()
print("ROWS", spark.sql("SELECT count(*), min(price) FROM silver.trades").collect()[0])
print("NAMES", sorted(row.tableName for row in spark.sql("SHOW TABLES IN bronze").collect()))
assert register("--lake", other) != 0
assert register("--lake", other, "--schema-prefix", "other_") == 0
print("OTHER", spark.sql("SELECT count(*) FROM other_silver.trades").collect()[0][0])
"""


def test_tables_are_found_in_a_hive_metastore_and_names_are_not_taken_from_others(lake: LakeUnderTest, tmp_path: Path) -> None:
    lake.bus.write("a", encode(trades(20)))
    lake.ingest()
    other = LakeUnderTest(lake.spark, tmp_path / "its other's", Lake.at(tmp_path / "its other's" / "lake"))
    other.bus.write("a", encode(trades(7)))
    other.ingest()
    argv = [sys.executable, "-c", REGISTER, lake.lake.root, other.lake.root, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ROWS Row(count(1)=20, min(price)=Decimal('9000" in done.stdout
    assert "NAMES ['events', 'quarantine']" in done.stdout
    assert "OTHER 7" in done.stdout
    assert (
        f"CREATE TABLE IF NOT EXISTS `spark_catalog`.`silver`.`trades` USING DELTA LOCATION '{lake.lake.root}/silver/trades';"
        in (done.stdout)
    )
    assert "`spark_catalog`.`bronze`.`events` is a table at" in done.stderr
    assert "give this lake names of its own with --schema-prefix" in done.stderr
    assert lake.count(TRADES.table) == 20


def test_statements_name_catalog_schema_and_place(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "o'lake")
    assert [*ddl_of(lake, [EVENTS, TRADES.table], "unity", "tm_")] == [
        "CREATE SCHEMA IF NOT EXISTS `unity`.`tm_bronze`",
        "CREATE SCHEMA IF NOT EXISTS `unity`.`tm_silver`",
        f"CREATE TABLE IF NOT EXISTS `unity`.`tm_bronze`.`events` USING DELTA LOCATION '{tmp_path}/o\\'lake/bronze/events'",
        f"CREATE TABLE IF NOT EXISTS `unity`.`tm_silver`.`trades` USING DELTA LOCATION '{tmp_path}/o\\'lake/silver/trades'",
    ]


def test_a_catalog_that_nobody_declared_is_refused() -> None:
    with pytest.raises(LakeError, match=r"--catalog: Spark has no catalog 'unity'; say what it is with --spark-conf"):
        catalog_conf("unity", {})
    declared = {"spark.sql.catalog.unity": "io.unitycatalog.spark.UCSingleCatalog"}
    assert catalog_conf("unity", declared) == declared
    assert catalog_conf("spark_catalog", {}) == {"spark.sql.catalogImplementation": "hive"}
