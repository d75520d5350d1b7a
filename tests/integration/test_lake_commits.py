"""Many writers of one table, in a folder and on an object store whose network fails: each batch once, no row lost, none twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.appending import Appender
from tardis_machine.lakehouse.commits import Step, TableFile
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.rewriting import read_rows
from tardis_machine.lakehouse.table_files import WrittenFile
from tardis_machine.lakehouse.tables import Table
from tests.servers.s3_faults import Request, S3Faults
from tests.servers.seaweedfs import SeaweedServer

TABLE = Table(
    "silver.things", {"date": "DATE", "exchange": "STRING", "n": "BIGINT", "local_ts": "TIMESTAMP"}, skip_by=("local_ts",)
)
KINDS = pa.schema({"date": pa.date32(), "exchange": pa.string(), "n": pa.int64(), "local_ts": pa.timestamp("us", "UTC")})
WRITERS, BATCHES, ROWS = 4, 6, 5


@pytest.fixture
def faults(seaweed: SeaweedServer) -> Iterator[S3Faults]:
    with S3Faults(seaweed.port) as found:
        yield found


@pytest.fixture(params=["folder", "object store"])
def lake(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bucket: str,
    faults: S3Faults,
    seaweed: SeaweedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Lake:
    # An answer that does not come is not waited for as long as in earnest.
    monkeypatch.setattr("tardis_machine.lakehouse.storage.object_store._ANSWER_S", 2)
    if request.param == "folder":
        return made(Lake.at(tmp_path / "a lake"))
    return made(Lake.at(f"s3://{bucket}/{tmp_path.name}", seaweed.lake_options(faults.port)))


def made(lake: Lake) -> Lake:
    DeltaTable.create(
        lake.path(TABLE), Schema.from_arrow(KINDS), partition_by=["date", "exchange"], storage_options=lake.storage.log_options
    )
    return lake


def write(appender: Appender, batch: int) -> list[WrittenFile]:
    """The rows of a batch."""
    numbers = range(batch * ROWS, (batch + 1) * ROWS)
    rows = pa.RecordBatch.from_pydict(
        {
            "date": pa.array([18_000] * ROWS, pa.int32()).cast(pa.date32()),
            "exchange": ["a"] * ROWS,
            "n": [*numbers],
            "local_ts": pa.array([*numbers], pa.timestamp("us", "UTC")),
        },
        KINDS,
    )
    return appender.write_here(lambda batches: ((TABLE, rows) for rows in batches), [rows], TABLE)


def numbers(lake: Lake) -> Counter[int]:
    """How often each number is in the table."""
    appender = Appender(lake)
    files = appender.commits.all_files(TABLE)
    found = (read_rows(lake.storage, KINDS, file.path, file.partition, ["n"]) for file in files)
    return Counter(number for batches in found for batch in batches for number in batch.column(0).to_pylist())


def join(appender: Appender) -> bool:
    """Joins all files there are, as `lake optimize` does; whether nobody came between."""
    files = appender.commits.all_files(TABLE)

    def rows(_: object) -> Iterator[tuple[Table, pa.RecordBatch]]:
        for file in files:
            for batch in read_rows(appender.commits.storage, KINDS, file.path, file.partition):
                yield TABLE, batch

    written = appender.write_here(rows, (), TABLE)
    if appender.commits.replace(TABLE, written, files, changes_rows=False):
        return True
    appender.commits.remove(TABLE, written)
    return False


def test_writers_race_while_files_are_joined_and_the_network_fails(lake: Lake, faults: S3Faults) -> None:
    faults.lose_answer(0.08)
    faults.slow_down(0.08)
    faults.reset(0.08)
    faults.hang(0.02)
    start, is_over = threading.Barrier(WRITERS + 2), threading.Event()

    def add(writer: int) -> int:
        """Every batch is brought by two of them."""
        appender, added = Appender(lake), 0
        start.wait(60)
        for batch in range(BATCHES):
            added += appender.commits.commit(
                TABLE, write(appender, batch + BATCHES * (writer // 2)), Step(f"s/{writer // 2}", batch)
            )
        return added

    def keep_joining(_: int) -> int:
        appender, joined = Appender(lake), 0
        start.wait(60)
        while not is_over.is_set():
            joined += join(appender)
        return joined

    with ThreadPoolExecutor(WRITERS + 2) as pool:
        joiners = [pool.submit(keep_joining, number) for number in range(2)]
        added = sum(pool.map(add, range(WRITERS)))
        is_over.set()
        assert sum(joiner.result() for joiner in joiners) > 0
    faults.heal()
    assert added == BATCHES * WRITERS // 2
    assert numbers(lake) == Counter(range(BATCHES * ROWS * WRITERS // 2))
    if "://" in lake.root:
        assert {*faults.struck} == {"lose_answer", "slow_down", "reset", "hang"}


def test_a_file_is_replaced_once(lake: Lake) -> None:
    appender, other = Appender(lake), Appender(lake)
    appender.commits.commit(TABLE, write(appender, 0))
    (old,) = appender.commits.all_files(TABLE)
    assert other.commits.all_files(TABLE) == [old]
    assert appender.commits.replace(TABLE, write(appender, 1), [old])
    late = write(other, 2)
    assert not other.commits.replace(TABLE, late, [old])
    assert numbers(lake) == Counter(range(ROWS, 2 * ROWS))
    assert lake.storage.sizes([f"{lake.path(TABLE)}/{late[0].path}"]) == [late[0].size], "whoever wrote it decides"


@pytest.mark.parametrize("lake", ["object store"], indirect=True)
def test_a_commit_whose_answer_is_lost_is_found(lake: Lake, faults: S3Faults) -> None:
    appender = Appender(lake)
    files = write(appender, 0)
    faults.lose_answer(only=is_entry)
    assert appender.commits.commit(TABLE, files, Step("stream/1", 0))
    faults.heal()
    assert faults.struck["lose_answer"] >= 1
    assert lake.storage.sizes([f"{lake.path(TABLE)}/{files[0].path}"]) == [files[0].size]
    assert numbers(lake) == Counter(range(ROWS))
    # And one that replaces what it would not find any more.
    old: list[TableFile] = appender.commits.all_files(TABLE)
    faults.lose_answer(only=is_entry)
    assert appender.commits.replace(TABLE, write(appender, 1), old)
    faults.heal()
    assert numbers(lake) == Counter(range(ROWS, 2 * ROWS))


def is_entry(request: Request) -> bool:
    return request.method == "PUT" and "_delta_log" in request.path


@pytest.mark.parametrize("lake", ["object store"], indirect=True)
def test_a_store_that_goes_on_failing_ends_a_commit_with_a_sentence(
    lake: Lake, faults: S3Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = Appender(lake)
    files = write(appender, 0)
    monkeypatch.setattr("tardis_machine.lakehouse.commits._MAX_FAULTS", 1)
    faults.reset(only=is_entry)
    with pytest.raises(LakeError, match=r"^the log of silver\.things in s3a://.* can't be used: ") as failure:
        appender.commits.commit(TABLE, files)
    assert "lake-secret" not in str(failure.value)
    faults.heal()
    assert numbers(lake) == Counter()
    assert appender.commits.commit(TABLE, files)
    assert numbers(lake) == Counter(range(ROWS))
