"""The set-up scripts, in a copy under a path with a space, on a machine whose programs are chosen by the test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.servers.process import ROOT

ORDINARY = (
    "awk",
    "bash",
    "cat",
    "dirname",
    "env",
    "id",
    "ln",
    "mkdir",
    "mktemp",
    "mv",
    "readlink",
    "rm",
    "sed",
    "sha256sum",
    "uniq",
)


class Machine:
    """A machine that has only what every Debian has; programs are added as scripts."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "a clone"
        self.programs = folder / "bin"
        self.programs.mkdir()
        shutil.copytree(ROOT / "scripts", self.repository / "scripts")
        shutil.copytree(ROOT / "tools", self.repository / "tools")
        for name in ORDINARY:
            program = shutil.which(name)
            assert program is not None, name
            (self.programs / name).symlink_to(program)

    def add(self, name: str, script: str = "", folder: Path | None = None) -> Path:
        program = (folder or self.programs) / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    def add_java(self, version: int, home: Path) -> None:
        folder = self.programs if home == self.programs else home / "bin"
        self.add("java", f"echo '    java.specification.version = {version}'; echo '    java.home = {home}'", folder)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.repository / "scripts" / command[0]), *command[1:]],
            env={"PATH": str(self.programs), "HOME": str(self.repository), **variables},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_root_one_sentence_names_all_that_is_missing(machine: Machine) -> None:
    machine.add("id", "echo 1000")
    machine.add("apt-get", "exit 9")
    answer = machine.run("setup", "programs", "maven", "node", "redis")
    assert answer.returncode == 1
    assert answer.stderr == (
        "setup: this needs Maven, Node with npm, redis-server, which only root may install: "
        "run `apt-get install maven nodejs npm redis-server` as root (on Debian), then make again.\n"
    )


def test_root_installs_all_that_is_missing_at_once_and_is_never_asked(machine: Machine, tmp_path: Path) -> None:
    machine.add("id", "echo 0")
    machine.add("node")
    machine.add("npm")
    machine.add("apt-get", f'echo "$DEBIAN_FRONTEND $*" >> "{tmp_path}/calls"')
    answer = machine.run("setup", "programs", "maven", "node", "redis")
    assert (answer.returncode, answer.stderr) == (0, "setup: installing maven redis-server with apt-get\n")
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("noninteractive ")
    assert call.endswith(" install --yes --no-install-recommends maven redis-server")


def test_an_installation_that_fails_is_said(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("apt-get", "echo no route; exit 100")
    answer = machine.run("setup", "programs", "redis")
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1] == (
        "setup: this needs redis-server, which apt-get could not install (see .tools/apt-get.log): "
        "install it, then run make again."
    )
    assert "no route" in (machine.repository / ".tools" / "apt-get.log").read_text()


def test_what_is_there_is_left_alone(machine: Machine) -> None:
    machine.add("redis-server")
    machine.add("apt-get", "exit 9")
    answer = machine.run("setup", "programs", "redis")
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("has_headers", [True, False])
def test_a_compiler_is_one_with_headers_of_python(machine: Machine, tmp_path: Path, has_headers: bool) -> None:
    headers = tmp_path / "include dir"
    headers.mkdir()
    if has_headers:
        (headers / "Python.h").touch()
    machine.add("cc")
    # Asked for itself, it tells where it is; asked for its headers, where these are.
    machine.add("python3", f'case "$2" in *sysconfig*) echo "{headers}" ;; *) echo python3 ;; esac')
    machine.add("id", "echo 1000")
    answer = machine.run("setup", "programs", "compiler")
    assert answer.returncode == (0 if has_headers else 1)
    assert has_headers or answer.stderr == (
        "setup: this needs a C compiler and Python's headers, which only root may install: "
        "run `apt-get install gcc libc6-dev python3-dev` as root (on Debian), then make again.\n"
    )
    assert machine.run("setup", "programs", "compiler", CC="another-compiler").returncode == 1


def test_an_old_java_is_passed_over(machine: Machine, tmp_path: Path) -> None:
    chosen = tmp_path / "jvm" / "of mine"
    machine.add_java(11, machine.programs)
    machine.add_java(21, chosen)
    answer = machine.run("setup", "java", JAVA_HOME=str(chosen))
    assert (answer.returncode, answer.stderr) == (0, f"setup: using the Java in {chosen}\n")
    assert (machine.repository / ".tools" / "java").readlink() == chosen


def test_the_java_on_the_path_is_used_where_none_is_chosen(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "jvm"
    machine.add_java(17, home)
    (machine.programs / "java").symlink_to(home / "bin" / "java")
    assert machine.run("setup", "java").returncode == 0
    assert (machine.repository / ".tools" / "java").readlink() == home


def test_without_a_new_enough_python_one_sentence_says_so(machine: Machine) -> None:
    for name in ("python3", "python3.11"):
        machine.add(name, "exit 1")
    answer = machine.run("setup", "venv")
    assert answer.returncode == 1
    assert answer.stderr == (
        "setup: this needs Python 3.11 or newer: "
        "run `apt-get install python3` as root (on Debian 12 or later), then make again.\n"
    )


def test_jars_that_are_there_are_not_fetched_again(machine: Machine) -> None:
    tools = machine.repository / ".tools"
    tools.mkdir()
    (tools / "jars").symlink_to(ROOT / ".tools" / "jars")
    machine.add("mvn", "exit 9")
    answer = machine.run("jars", "fetch", "spark")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_a_jar_that_is_not_the_pinned_one_is_refused(machine: Machine) -> None:
    lock = machine.repository / "tools" / "jars.lock"
    lock.write_text(f"tiny org.example:thing:1.0 {'0' * 64}\n")
    machine.add("mvn", "mkdir -p .tools/jars/tiny.new && echo evil > .tools/jars/tiny.new/thing-1.0.jar")
    answer = machine.run("jars", "fetch", "tiny")
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1] == "jars: those of tiny are not the ones of tools/jars.lock."
    assert not (machine.repository / ".tools" / "jars" / "tiny").exists()


def test_the_lock_takes_the_hash_of_what_maven_delivers(machine: Machine) -> None:
    lock = machine.repository / "tools" / "jars.lock"
    lock.write_text("# pins\ntiny org.example:thing:1.0 -\n")
    machine.add("mvn", "mkdir -p .tools/jars/tiny.new && printf thing > .tools/jars/tiny.new/thing-1.0.jar")
    assert machine.run("jars", "lock").returncode == 0
    assert lock.read_text() == f"# pins\ntiny org.example:thing:1.0 {sha256(b'thing').hexdigest()}\n"
    assert machine.run("jars", "fetch", "tiny").returncode == 0


def test_no_pin_names_a_registry() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()
    assert "://" not in (ROOT / "tools" / "jars.lock").read_text()
    assert '"resolved"' not in (ROOT / "tools" / "npm" / "package-lock.json").read_text()


def test_interop_runs_the_large_clients_too() -> None:
    """They are in files of other names than tests have, in the folder of those that are found by themselves."""
    # By a make of its own, whatever the one was told that runs this.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(["make", "--dry-run", "interop"], cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout
    (ran,) = [line for line in shown.splitlines() if " -m pytest " in line]
    paths = " ".join(re.findall(r"tests/interop\S*", ran))
    collect = f"{sys.executable} -m pytest --collect-only -q -p no:cacheprovider {paths}"
    found = subprocess.run(["bash", "-c", collect], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.partition("::")[0] for line in found.splitlines() if "::" in line} >= {
        "tests/interop/test_clients.py",
        "tests/interop/large_clients.py",
    }
