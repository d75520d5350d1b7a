"""What is on disk when the power goes: only what was synced, in folders whose names were."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tardis_machine.lakehouse.commits import Commits, Step
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.storage import Folder
from tests.unit.lakehouse.test_table_files import SCHEMA, TABLE, rows, written
from tests.unit.synced_disk import Disk


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake.at(tmp_path / "lake")
    DeltaTable.create(lake.path(TABLE), SCHEMA, partition_by=list(TABLE.partition_by))
    return lake


@pytest.fixture
def disk(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(Path(lake.root), monkeypatch)


def count(folder: Path) -> int:
    return pa.table(DeltaTable(folder / "silver/things").to_pyarrow_table()).num_rows


def test_a_commit_outlasts_a_power_cut_when_it_returns(lake: Lake, disk: Disk, tmp_path: Path) -> None:
    commits = Commits(lake)
    for batch in range(3):
        commits.commit(TABLE, written(lake, rows((batch, "a"), (batch, "b"), (batch, None))), Step("stream/1", batch))
        assert count(disk.after_power_cut(tmp_path / f"after-{batch}")) == 3 * (batch + 1)


def test_a_log_never_names_a_file_that_is_not_on_disk(lake: Lake, disk: Disk) -> None:
    """A kernel may write the entry to disk of its own accord, as soon as there is one."""
    seen = []

    def look(path: Path) -> None:
        if path.name == f"{1:020}.json":
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            seen.extend(Path(lake.path(TABLE), action["add"]["path"]) for action in actions if "add" in action)
            assert all(map(disk.holds, seen))

    disk.at_sync.append(look)
    Commits(lake).commit(TABLE, written(lake, rows((1, "a"), (2, "b"))), Step("stream/1", 0))
    assert len(seen) == 2


def test_what_a_killed_driver_committed_is_on_disk_before_another_goes_on(lake: Lake, disk: Disk, tmp_path: Path) -> None:
    files = written(lake, rows((1, "a")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Commits, "_sync_log", lambda *_: None)
        assert Commits(lake).commit(TABLE, files, Step("stream/1", 0))
    assert count(disk.after_power_cut(tmp_path / "before")) == 0
    assert not Commits(lake).commit(TABLE, written(lake, rows((1, "a"))), Step("stream/1", 0))
    assert count(disk.after_power_cut(tmp_path / "after")) == 1


def test_checkpoints_of_a_log_are_on_disk_with_it(lake: Lake, disk: Disk, tmp_path: Path) -> None:
    commits = Commits(lake)
    for batch in range(2):
        DeltaTable(lake.path(TABLE)).create_checkpoint()
        commits.commit(TABLE, written(lake, rows((batch, "a"))), Step("stream/1", batch))
    assert count(disk.after_power_cut(tmp_path / "after")) == 2


def test_small_files_and_new_folders_are_on_disk_when_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer").mkdir()
    disk = Disk(tmp_path / "outer", monkeypatch)
    folder = Folder(str(tmp_path / "outer/a/lake"))
    folder.create()
    for text in ("first", "second"):
        folder.write_text(f"{folder.root}/_checkpoints/stream/identity", text)
        found = disk.after_power_cut(tmp_path / text)
        assert (found / "a/lake/_checkpoints/stream/identity").read_text() == text
