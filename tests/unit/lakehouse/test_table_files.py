"""What workers write is what a table then has: files by partition, whole, committed once; without Spark."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import table_files
from tardis_machine.lakehouse.commits import Commits, Step
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.storage import Folder
from tardis_machine.lakehouse.table_files import WrittenFile, read_reports, write_task
from tardis_machine.lakehouse.tables import Table

TABLE = Table(
    "silver.things",
    {
        "date": "DATE",
        "exchange": "STRING",
        "local_ts": "TIMESTAMP",
        "event_id": "BINARY",
        "names": "MAP<STRING, STRING>",
        "n": "BIGINT",
    },
    skip_by=("local_ts",),
)
SCHEMA = pa.schema(
    {
        "date": pa.date32(),
        "exchange": pa.string(),
        "local_ts": pa.timestamp("us", "UTC"),
        "event_id": pa.binary(),
        "names": pa.map_(pa.string(), pa.string()),
        "n": pa.int64(),
    }
)
DAY_US = 86_400_000_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake.at(tmp_path / "a lake")
    DeltaTable.create(lake.path(TABLE), SCHEMA, partition_by=list(TABLE.partition_by))
    return lake


def rows(*places: tuple[int, str | None]) -> pa.RecordBatch:
    """A row for each day and exchange; `n` counts."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "date": date.fromordinal(719_163 + day),
                "exchange": exchange,
                "local_ts": datetime.fromtimestamp(day * 86_400 + n / 1e6, UTC),
                "event_id": bytes([n]),
                "names": [("n", str(n))],
                "n": n,
            }
            for n, (day, exchange) in enumerate(places)
        ],
        SCHEMA,
    )


def written(lake: Lake, *batches: pa.RecordBatch) -> list[WrittenFile]:
    (report,) = write_task(
        lambda given: ((TABLE, batch) for batch in given), lake.storage, {TABLE.name: lake.path(TABLE)}, batches
    )
    return read_reports(report.to_pylist())


def read(lake: Lake) -> list[dict[str, Any]]:
    return sorted(pa.table(DeltaTable(lake.path(TABLE)).to_pyarrow_table()).to_pylist(), key=lambda row: row["n"])


def test_rows_are_written_to_the_files_of_their_partition_and_are_there_once_committed(lake: Lake) -> None:
    given = rows((1, "a"), (2, "a"), (1, None), (1, "of / two"), (1, "a"))
    files = written(lake, given)
    assert [(file.partition["date"], file.partition["exchange"], file.rows) for file in files] == [
        ("1970-01-02", "a", 2),
        ("1970-01-02", None, 1),
        ("1970-01-02", "of / two", 1),
        ("1970-01-03", "a", 1),
    ]
    assert all(Path(lake.path(TABLE), file.path).stat().st_size == file.size for file in files)
    assert files[0].ranges == {"local_ts": (DAY_US, DAY_US + 4)}
    assert read(lake) == []
    Commits(lake).commit(TABLE, files)
    assert read(lake) == given.to_pylist()


def test_text_may_come_as_dictionaries_that_differ_from_batch_to_batch(lake: Lake) -> None:
    """As many as were held are written together; a file says nothing of them."""
    plain = [rows((1, "a"), (1, None)), rows((1, None), (1, "b"), (1, "a"))]
    given = [batch.set_column(1, "exchange", batch.column("exchange").dictionary_encode()) for batch in plain]
    table = Table(TABLE.name, TABLE.columns, partition_by=("date",), skip_by=("local_ts",))
    (report,) = write_task(
        lambda batches: ((table, batch) for batch in batches), lake.storage, {TABLE.name: lake.path(TABLE)}, given
    )
    [file] = read_reports(report.to_pylist())
    read_back = pq.read_table(Path(lake.path(TABLE), file.path), partitioning=None)
    assert read_back.schema.field("exchange").type == pa.string()
    assert read_back.to_pylist() == pa.Table.from_batches(plain).drop_columns(["date"]).to_pylist()
    by_exchange = written(lake, *given)
    Commits(lake).commit(TABLE, by_exchange)
    assert [(file.partition["exchange"], file.rows) for file in by_exchange] == [("a", 2), (None, 2), ("b", 1)]
    assert read(lake) == sorted(pa.Table.from_batches(plain).to_pylist(), key=lambda row: row["n"])


def test_what_a_task_holds_is_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_HELD_BYTES", 1)
    assert [file.rows for file in written(lake, rows((1, "a")), rows((1, "a"), (1, "a")))] == [3]
    monkeypatch.setattr(table_files, "_FILE_BYTES", 1)
    files = written(lake, rows((1, "a")), rows((1, "a"), (1, "a")))
    assert [file.rows for file in files] == [1, 2]
    assert len({file.path for file in files}) == 2


@pytest.mark.parametrize("held_bytes", [1, 1 << 30])
def test_a_task_that_fails_leaves_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch, held_bytes: int) -> None:
    monkeypatch.setattr(table_files, "_HELD_BYTES", held_bytes)
    monkeypatch.setattr(table_files, "_FILE_BYTES", held_bytes)

    def failing(batches: Any) -> Iterator[tuple[Table, pa.RecordBatch]]:
        yield TABLE, rows((1, "a"))
        yield TABLE, rows((2, "a"))
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(write_task(failing, lake.storage, {TABLE.name: lake.path(TABLE)}, ()))
    assert list(Path(lake.path(TABLE)).rglob("*.parquet")) == []


def test_a_disk_that_takes_no_more_is_said_and_left_as_it_was(lake: Lake) -> None:
    large = rows((0, "a")).set_column(3, "event_id", pa.array([os.urandom(100_000)], pa.binary()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(LakeError, match=r"^files can't be written to .*a lake/silver/things: File too large; .* --lake$"):
            [*write_task(lambda _: iter([(TABLE, large)]), lake.storage, {TABLE.name: lake.path(TABLE)}, ())]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [*Path(lake.path(TABLE)).rglob("*.parquet")]


def test_a_step_is_committed_once_by_whoever_comes_first(lake: Lake) -> None:
    one, other = Commits(lake), Commits(lake)
    assert not one.is_done(TABLE, Step("stream/1", 0))
    assert one.commit(TABLE, written(lake, rows((1, "a"))), Step("stream/1", 0))
    assert one.is_done(TABLE, Step("stream/1", 0))
    assert other.is_done(TABLE, Step("stream/1", 0))
    assert not other.is_done(TABLE, Step("stream/1", 1))
    assert not other.is_done(TABLE, Step("stream/2", 0))
    again = written(lake, rows((1, "b")))
    assert not other.commit(TABLE, again, Step("stream/1", 0))
    assert [row["exchange"] for row in read(lake)] == ["a"]
    # Files that will never belong to the table do not lie about.
    assert not Path(lake.path(TABLE), again[0].path).exists()
    other.commit(TABLE, written(lake, rows((1, "b"))), Step("stream/1", 1))
    assert len(read(lake)) == 2


def test_steps_outlive_a_checkpoint_of_the_log(lake: Lake) -> None:
    for batch in range(12):
        Commits(lake).commit(TABLE, written(lake, rows((1, "a"))), Step("stream/1", batch))
    DeltaTable(lake.path(TABLE)).create_checkpoint()
    assert Commits(lake).is_done(TABLE, Step("stream/1", 11))
    assert not Commits(lake).is_done(TABLE, Step("stream/1", 12))
    assert len(read(lake)) == 12


def test_files_are_found_by_partition_with_the_times_of_their_rows(lake: Lake) -> None:
    commits = Commits(lake)
    commits.commit(TABLE, written(lake, rows((1, "a"), (1, "a"), (1, None), (2, "a"), (3, "a"))))
    asked = [
        {"date": "1970-01-02", "exchange": "a"},
        {"date": "1970-01-02", "exchange": None},
        {"date": "1970-01-09", "exchange": "a"},
    ]
    found = commits.files(TABLE, asked)
    assert {place: len(files) for place, files in found.items()} == {
        ("1970-01-02", "a"): 1,
        ("1970-01-02", None): 1,
        ("1970-01-09", "a"): 0,
    }
    (file,) = found["1970-01-02", "a"]
    assert Path(file.path).is_file()
    # In the log times are whole milliseconds, and never narrower than the rows'.
    assert (file.first_us, file.last_us) == (DAY_US, DAY_US + 1000)


def test_a_log_that_takes_no_commit_is_named(lake: Lake) -> None:
    files = written(lake, rows((1, "a")))
    log = Path(lake.path(TABLE), "_delta_log")
    commits = Commits(lake)
    assert not commits.is_done(TABLE, Step("stream/1", 0))
    for entry in log.iterdir():
        entry.unlink()
    log.rmdir()
    log.write_text("no folder")
    with pytest.raises(LakeError, match=r"^the log of silver\.things in .*a lake can't be used: .*Not a directory.*$"):
        commits.commit(TABLE, files)


class OvertakenFolder(Folder):
    """A folder in which something happens right after a log was read."""

    def open_log(self, path: str, version: int | None = None) -> DeltaTable:
        log = super().open_log(path, version)
        while overtaking:
            overtaking.pop()()
        return log


overtaking: list[Callable[[], object]] = []


def test_of_two_drivers_with_one_batch_the_one_that_is_overtaken_adds_nothing(lake: Lake) -> None:
    first, second = Commits(lake), Commits(Lake(OvertakenFolder(lake.root)))
    step, batch = Step("stream/1", 7), rows(*[(1, "a")] * 10)
    files = written(lake, batch)
    overtaking.append(lambda: first.commit(TABLE, written(lake, batch), step))
    assert not second.commit(TABLE, files, step)
    assert len(read(lake)) == 10
    assert not Path(lake.path(TABLE), files[0].path).exists()
    # What others add meanwhile is no reason to stop.
    overtaking.append(lambda: first.commit(TABLE, written(lake, batch), Step("stream/2", 7)))
    assert Commits(Lake(OvertakenFolder(lake.root))).commit(TABLE, written(lake, batch), Step("stream/1", 8))
    assert len(read(lake)) == 30


def test_drivers_that_race_for_each_batch_add_it_once(lake: Lake) -> None:
    drivers = [Commits(lake) for _ in range(4)]
    start = threading.Barrier(len(drivers))

    def drive(commits: Commits) -> int:
        added = 0
        for batch in range(8):
            files = written(lake, rows(*[(1, "a")] * 10))
            start.wait(60)
            added += commits.commit(TABLE, files, Step("stream/1", batch))
        return added

    with ThreadPoolExecutor(len(drivers)) as pool:
        assert sum(pool.map(drive, drivers)) == 8
    assert len(read(lake)) == 80


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 100)], ids=["gone", "cut"])
def test_a_file_that_is_not_as_its_writer_left_it_is_never_named_by_a_log(lake: Lake, damage: Callable[[Path], None]) -> None:
    files = written(lake, rows((1, "a"), (2, "a")))
    damage(Path(lake.path(TABLE), files[1].path))
    with pytest.raises(
        LakeError, match=r"^1 of 2 files .* silver\.things can't be found in full, such as .*part-\w+\.parquet; .*$"
    ):
        Commits(lake).commit(TABLE, files, Step("stream/1", 0))
    assert read(lake) == []
