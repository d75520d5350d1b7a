"""Which storage a path means, and what a folder does; what both kinds do alike is tested with Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.storage import Folder, ObjectStore, Storage, open_storage


@pytest.mark.parametrize(
    ("path", "storage"),
    [
        ("/srv/lake", Folder("/srv/lake")),
        ("/srv/lake/", Folder("/srv/lake")),
        (Path("/srv/lake"), Folder("/srv/lake")),
        ("lake", Folder(str(Path.cwd() / "lake"))),
        ("~/lake", Folder(str(Path.home() / "lake"))),
        ("s3a://bucket/lake/", ObjectStore("s3a://bucket/lake")),
        ("file:///srv/lake", ObjectStore("file:///srv/lake")),
    ],
)
def test_a_path_says_which_storage_it_is(path: str | Path, storage: Storage) -> None:
    assert open_storage(path) == storage
    assert open_storage(path) != open_storage("/elsewhere")
    # Workers get a copy.
    assert pickle.loads(pickle.dumps(storage)) == storage


def test_only_a_folder_is_reached_without_spark() -> None:
    folder, store = Folder("/srv/lake"), ObjectStore("s3a://bucket/lake")
    assert (folder.direct, folder.local_folder) == (folder, Path("/srv/lake"))
    assert (store.direct, store.local_folder) == (None, None)


def test_a_folder_is_made_and_missed(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "a" / "b"))
    assert folder.is_missing()
    folder.create()
    folder.create()
    assert not folder.is_missing()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Folder(str(tmp_path / "file" / "lake")).create()


def test_an_object_store_is_neither_made_nor_missed(tmp_path: Path) -> None:
    store = ObjectStore(f"{tmp_path.as_uri()}/nowhere")
    store.create()
    assert not store.is_missing()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "path"),
    [("file:/a/b c", "/a/b c"), ("file:///a/100%", "/a/100%"), ("/a/file:/b", "/a/file:/b"), ("/a?b#c", "/a?b#c")],
)
def test_a_folder_knows_its_files_by_the_names_that_spark_has(name: str, path: str) -> None:
    assert Folder("/a").to_path(name) == path


def test_a_folder_lists_files_in_it_and_below(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    for name in ("1", "2.json", "below/3", "below/further/4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(folder.list_files(folder.root, "[0-9]*")) == [f"{tmp_path}/1", f"{tmp_path}/2.json"]
    assert sorted(folder.list_files(folder.root, "[0-9]", below=True)) == [
        f"{tmp_path}/{name}" for name in ("1", "below/3", "below/further/4")
    ]
    assert folder.list_files(f"{folder.root}/nowhere", "*") == []
    assert folder.read_file(f"{tmp_path}/below/3") == "below/3"
    with pytest.raises(FileNotFoundError):
        folder.read_file(f"{tmp_path}/5")


def test_a_lake_that_is_not_there_is_said(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    with pytest.raises(
        LakeError, match=r"^there is no lake in .*/lake; choose another with --lake, or make one with 'lake ingest'$"
    ):
        lake.check_exists()
    lake.create()
    lake.check_exists()
    # Of one elsewhere nothing is known before Spark has looked.
    Lake.at("s3a://bucket/lake").check_exists()
