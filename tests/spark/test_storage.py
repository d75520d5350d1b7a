"""What both kinds of storage do alike: one through the files themselves, the other through Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tardis_machine.lakehouse.storage import Storage, open_storage
from tardis_machine.lakehouse.tables import EVENTS, QUARANTINE, Table

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["folder", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    folder = tmp_path / "lake"
    found = open_storage(folder if request.param == "folder" else folder.as_uri())
    found.create()
    return found


def test_small_files_are_read_as_they_were_written(spark: SparkSession, storage: Storage) -> None:
    path = f"{storage.root}/_checkpoints/stream/identity"
    assert storage.read_text(spark, path) == ""
    for text in ("first", "second"):
        storage.write_text(spark, path, text)
        assert storage.read_text(spark, path).strip() == text


@pytest.mark.parametrize("table", [EVENTS, QUARANTINE], ids=lambda table: table.name)
def test_a_table_says_what_it_was_declared_as(spark: SparkSession, storage: Storage, table: Table) -> None:
    path = f"{storage.root}/some/table"
    assert storage.read_table(spark, path) is None
    for _ in range(2):
        storage.create_table(spark, path, table)
        stored = storage.read_table(spark, path)
        assert stored is not None
        assert stored.columns == StructType.fromDDL(table.ddl)
        assert stored.properties.items() >= table.properties.items()
    details = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert details is not None
    assert (tuple(details["partitionColumns"]), details["numFiles"]) == (table.partition_by, 0)
