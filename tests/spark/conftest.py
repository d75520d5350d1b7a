"""One Spark session for all tests of the lake.

Invariant: a lake belongs to one test; the session, which takes seconds to start, to all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tardis_machine.lakehouse.session import find_jars, start_session
from tests.spark.lake_under_test import LakeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What a test reads and writes is small: each further task costs more than it saves, and compiling a query more than running it.
SMALL_DATA_CONF = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # For lakes in a folder and on S3 alike.
    jars = {"spark.jars": ",".join(map(str, find_jars(also="s3")))}
    session = start_session(master="local[2]", conf={**SMALL_DATA_CONF, **jars})
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[LakeUnderTest]:
    yield LakeUnderTest(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()
