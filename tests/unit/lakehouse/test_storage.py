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
        ("s3://bucket/lake", ObjectStore("s3a://bucket/lake")),
        ("gs://bucket", ObjectStore("gs://bucket")),
        ("file:///srv/lake", Folder("/srv/lake")),
    ],
)
def test_a_path_says_which_storage_it_is(path: str | Path, storage: Storage) -> None:
    assert open_storage(path) == storage
    assert open_storage(path) != open_storage("/elsewhere")
    # Workers get a copy.
    assert pickle.loads(pickle.dumps(storage)) == storage


def test_what_no_lake_lies_in_is_refused() -> None:
    with pytest.raises(LakeError, match=r"^a lake can't lie at ftp://…; it takes a folder, or s3://, s3a://, gs://, abfss://$"):
        open_storage("ftp://host/lake")
    with pytest.raises(LakeError, match=r"names no bucket; write s3a://BUCKET/PATH$"):
        open_storage("s3:///lake")
    with pytest.raises(
        LakeError, match=r"^--lake-option key is none of a lake at s3a://…; it takes endpoint, region, access_key_id, "
    ):
        open_storage("s3://bucket/lake", {"key": "secret"})
    with pytest.raises(LakeError, match=r"^--lake-option region is for a lake in an object store, and lake is a folder$"):
        open_storage("lake", {"region": "eu-central-1"})


def test_three_clients_of_a_store_are_told_the_same() -> None:
    given = {
        "endpoint": "http://host:9000",
        "region": "eu",
        "access_key_id": "id",
        "secret_access_key": "hush",
        "session_token": "t",
    }
    store = open_storage("s3://bucket/lake", given)
    assert "hush" not in repr(store)
    assert store.log_options is not None
    assert {name: store.log_options[f"aws_{name}"] for name in given} == given
    assert (store.log_options["aws_conditional_put"], store.log_options["allow_http"]) == ("etag", "true")
    conf = {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in store.spark_conf.items()}
    assert [conf[name] for name in ("endpoint", "endpoint.region", "access.key", "secret.key", "session.token")] == [
        *given.values()
    ]
    assert conf["aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")
    # Without keys each follows the chain of the environment, the profile and the machine.
    chained = open_storage("s3://bucket/lake")
    assert chained.spark_conf["spark.hadoop.fs.s3a.aws.credentials.provider"].endswith("DefaultCredentialsProvider")
    assert not any("key" in name or name.endswith("endpoint") for name in (*chained.spark_conf, *(chained.log_options or {})))
    azure = open_storage("abfss://box@account.dfs.core.windows.net/lake", {"account_key": "hush"})
    assert azure.log_options == {"azure_storage_account_name": "account", "azure_storage_account_key": "hush"}
    assert azure.spark_conf == {"spark.hadoop.fs.azure.account.key.account.dfs.core.windows.net": "hush"}


def test_a_folder_is_made_and_missed(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "a" / "b"))
    assert folder.is_missing()
    folder.create()
    folder.create()
    assert not folder.is_missing()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Folder(str(tmp_path / "file" / "lake")).create()


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
    assert folder.read_text(f"{tmp_path}/below/3") == "below/3"
    assert folder.read_text(f"{tmp_path}/5") == ""


def test_a_lake_that_is_not_there_is_said(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    with pytest.raises(
        LakeError, match=r"^there is no lake in .*/lake; choose another with --lake, or make one with 'lake ingest'$"
    ):
        lake.check_exists()
    lake.create()
    lake.check_exists()
