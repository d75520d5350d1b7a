"""What is missing is said before Spark is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import session
from tardis_machine.lakehouse.session import find_jars, find_java


@pytest.fixture(autouse=True)
def _no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "_TOOLS", tmp_path / "tools")


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return java


def test_no_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"no 'java' is on PATH; install Java 17 or later .*openjdk-17-jre-headless"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(LakeError, match=r"JAVA_HOME is '/nowhere', where there is no bin/java"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": os.environ["PATH"]})


def test_a_java_that_is_too_old_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(LakeError, match=r"needs Java 17 or later, and .*old/bin/java is version 11; install"):
        find_java({"JAVA_HOME": str(tmp_path / "old")})


def test_java_is_the_one_chosen_then_the_one_set_up_then_the_one_on_path(tmp_path: Path) -> None:
    chosen, on_path = tmp_path / "chosen", tmp_path / "path"
    fake_java(on_path, "17.0.1")
    environ = {"PATH": str(on_path / "bin")}
    assert find_java(environ) == str(on_path)
    fake_java(tmp_path / "tools" / "java", "21")
    assert find_java(environ) == str(tmp_path / "tools" / "java")
    fake_java(chosen, "17.0.2")
    assert find_java({**environ, "JAVA_HOME": str(chosen)}) == str(chosen)


def test_jars_are_found_in_the_folder_given_or_where_setup_leaves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with pytest.raises(LakeError, match=r"jars of Delta Lake are not in .*tools/jars/spark and .*data/.*; run 'make setup'"):
        find_jars()
    jars = tmp_path / "tools" / "jars" / "spark"
    jars.mkdir(parents=True)
    (jars / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    (jars / "delta-storage-4.4.0.jar").touch()
    assert [jar.name for jar in find_jars()] == ["delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"]
    with pytest.raises(LakeError, match=r"are not in .*elsewhere;"):
        find_jars(tmp_path / "elsewhere")
