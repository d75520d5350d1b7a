"""What both kinds of storage do alike: a folder, and an object store on a real server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.storage import Storage, open_storage
from tardis_machine.lakehouse.tables import EVENTS, QUARANTINE, Table
from tests.servers.seaweedfs import SeaweedServer

pytestmark = pytest.mark.timeout(300)

JOBS = 4


@pytest.fixture(params=["folder", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, bucket: str, seaweed: SeaweedServer) -> Storage:
    if request.param == "folder":
        found = open_storage(tmp_path / "a lake")
    else:
        found = open_storage(f"s3://{bucket}/{tmp_path.name}/a lake", seaweed.lake_options())
        assert found.is_missing()
    found.create()
    return found


def test_small_files_are_read_as_they_were_written(storage: Storage) -> None:
    path = f"{storage.root}/_checkpoints/stream/identity"
    assert storage.read_text(path) == ""
    for text in ("first", "second"):
        storage.write_text(path, text)
        assert storage.read_text(path) == text
    assert not storage.is_missing()
    assert storage.list_files(f"{storage.root}/_checkpoints/stream", "id*") == [path]
    assert storage.list_files(storage.root, "identity", below=True) == [path]
    assert storage.list_files(storage.root, "identity") == storage.list_files(f"{storage.root}/nowhere", "*") == []


def test_columns_are_read_as_they_were_written(storage: Storage) -> None:
    path, rows = f"{storage.root}/silver/trades/date=2020-01-01/part.parquet", pa.table({"n": range(1000)})
    with storage.create_file(path) as file:
        pq.write_table(rows, file, row_group_size=300)
    with storage.open_parquet(path) as found:
        assert found.num_row_groups == 4
        assert found.read().equals(rows)
    size, none = storage.sizes([path, f"{path}.not"])
    assert none is None
    assert size is not None
    for _ in range(2):
        storage.remove_file(path)
    assert storage.sizes([path]) == [None]
    with pytest.raises(FileNotFoundError):
        storage.open_parquet(path)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("table", [EVENTS, QUARANTINE], ids=lambda table: table.name)
def test_a_table_says_what_it_was_declared_as(storage: Storage, table: Table) -> None:
    path = f"{storage.root}/some/table"
    assert storage.read_table(path) is None
    for _ in range(2):
        storage.create_table(path, table)
        stored = storage.read_table(path)
        assert stored is not None
        assert stored.columns == StructType.fromDDL(table.ddl)
        assert stored.properties.items() >= table.properties.items()
    assert tuple(storage.open_log(path).metadata().partition_columns) == table.partition_by
    storage.add_columns(path, "`further` BIGINT")
    stored = storage.read_table(path)
    assert stored is not None
    assert [*stored.columns.names] == [*table.columns, "further"]


@pytest.mark.usefixtures("spark")
def test_of_jobs_that_begin_at_once_one_makes_a_table_and_one_adds_columns(storage: Storage) -> None:
    start = threading.Barrier(JOBS)

    def begin(path: str) -> tuple[str, int]:
        start.wait(60)
        storage.create_table(path, EVENTS)
        log = storage.open_log(path)
        start.wait(60)
        storage.add_columns(path, "`further` BIGINT")
        return str(log.metadata().id), log.version()

    with ThreadPoolExecutor(JOBS) as pool:
        for number in range(5):
            path = f"{storage.root}/bronze/events{number}"
            made = {*pool.map(begin, [path] * JOBS)}
            log = storage.open_log(path)
            assert made == {(str(log.metadata().id), 0)}
            assert [field.name for field in log.schema().fields] == [*EVENTS.columns, "further"]


def test_a_store_that_can_not_be_used_is_named_before_spark_starts(bucket: str, seaweed: SeaweedServer) -> None:
    with pytest.raises(LakeError, match=r"^the lake can't be made in s3a://nobodys/lake: there is no bucket 'nobodys'; "):
        Lake.at("s3://nobodys/lake", seaweed.lake_options()).create()
    with pytest.raises(LakeError, match=r"^there is no lake in s3a://.*/nowhere; "):
        Lake.at(f"s3://{bucket}/nowhere", seaweed.lake_options()).check_exists()
    wrong = {**seaweed.lake_options(), "secret_access_key": "not the one"}
    with pytest.raises(LakeError, match=r"can't be reached: .*ACCESS_DENIED") as failure:
        Lake.at(f"s3://{bucket}/lake", wrong).check_exists()
    assert "not the one" not in str(failure.value)
