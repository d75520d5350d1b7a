"""What is installed: the wheel and the sdist are built offline; the wheel runs with its base dependencies alone, and names the extra
that brings what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tardis_machine._compiled import file_name
from tardis_machine._compiled import sources as compiled_sources
from tardis_machine._version import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tardis_machine"
DATA = {"py.typed", "generated/normalized_event.binpb", "lakehouse/log4j2.properties"}
# The wheel is compiled from nothing.
pytestmark = pytest.mark.timeout(600)
OPTIONAL = [
    "aiobotocore",
    "confluent_kafka",
    "delta",
    "hiredis",
    "matplotlib",
    "nats",
    "numpy",
    "opentelemetry",
    "pandas",
    "pyarrow",
    "pyspark",
    "redis",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built as a user of the sdist would: the wheel is made from it, not from the repository."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "sdist")
    with tarfile.open(folder / f"tardis_machine-{__version__}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    build(folder / f"tardis_machine-{__version__}", folder, "wheel", TARDIS_MACHINE_COMPILED="1")
    return folder


def build(source: Path, folder: Path, target: str, **environ: str) -> str:
    """What it said."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    answer = subprocess.run(
        command, cwd=source, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=600
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout + answer.stderr


def sources() -> set[str]:
    """The modules as they are in the repository, without what Python makes of them."""
    files = [*PACKAGE.rglob("*.p[yx]*"), *PACKAGE.joinpath("server", "page", "static").rglob("*")]
    return {str(file.relative_to(PACKAGE)) for file in files if file.is_file() and "__pycache__" not in file.parts}


def compiled() -> set[str]:
    """What comes of the modules that are compiled."""
    modules = {name: file_name(PACKAGE, name, source) for name, source in compiled_sources(PACKAGE).items()}
    assert {"exchanges.bitmex", "exchanges.okex.v5", "bronze.sealing_compiled", "lakehouse.envelope_compiled"} <= modules.keys()
    return {f"__compiled__/{file}" for file in modules.values()}


def test_the_sdist_has_what_building_takes_and_no_tests(built: Path) -> None:
    with tarfile.open(built / f"tardis_machine-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/tardis_machine/{name}" for name in sources() | DATA} <= names
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "requirements.lock", "deploy/Dockerfile"} <= names
    assert "schemas/proto/lakehouse/bronze/v1/normalized_event.proto" in names
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders == {"src", "schemas", "deploy", "docs"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".parquet", ".log"))]


def test_the_wheel_has_the_whole_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(wheel_in(built)) as archive:
        names = set(archive.namelist())
        metadata = message_from_bytes(archive.read(f"tardis_machine-{__version__}.dist-info/METADATA"))
    inside = {name.removeprefix("tardis_machine/") for name in names if name.startswith("tardis_machine/")}
    assert inside == sources() | DATA | compiled()
    assert wheel_in(built).name.endswith(f"{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")
    # Spark finds formats by the names of packages.
    packages = {"tardis_machine", "pyspark_tardis", "pyspark_tardis_events"}
    assert {name.partition("/")[0] for name in names} == {*packages, f"tardis_machine-{__version__}.dist-info"}
    assert metadata["Version"] == __version__
    assert (metadata["License-Expression"], metadata["License-File"]) == ("MPL-2.0", "LICENSE")
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "all",
        "arrow",
        "aws",
        "export",
        "file",
        "kafka",
        "nats",
        "otel",
        "pandas",
        "polars",
        "redis",
        "spark",
    }


@pytest.mark.parametrize(
    "environ",
    [{"TARDIS_MACHINE_COMPILED": "0"}, {"TARDIS_MACHINE_COMPILED": "", "CC": "no-such-compiler"}],
    ids=["unwanted", "impossible"],
)
def test_without_a_compiler_the_wheel_is_pure_and_whole(built: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    said = build(built / f"tardis_machine-{__version__}", tmp_path, "wheel", **environ)
    assert wheel_in(tmp_path).name == f"tardis_machine-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel_in(tmp_path)) as archive:
        inside = {name.removeprefix("tardis_machine/") for name in archive.namelist() if name.startswith("tardis_machine/")}
        archive.extractall(tmp_path / "installed")
    assert inside == sources() | DATA
    assert ("nothing is compiled, so that Python alone does the work" in said) == ("CC" in environ)
    code = (
        "from tardis_machine.bronze.sealing import seal_messages; from tardis_machine.exchanges import _parsing, bitmex;"
        "print(seal_messages.__module__, _parsing.to_number.__module__, bitmex.__file__)"
    )
    path = {**os.environ, "TARDIS_MACHINE_COMPILED": "", "PYTHONPATH": str(tmp_path / "installed")}
    answer = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True, timeout=60)
    text = tmp_path / "installed" / "tardis_machine" / "exchanges" / "bitmex.py"
    assert answer.stdout == f"tardis_machine.bronze.sealing tardis_machine.exchanges._parsing {text}\n"


def test_where_it_must_be_compiled_a_missing_compiler_fails_the_build(built: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-compiler"):
        build(built / f"tardis_machine-{__version__}", tmp_path, "wheel", CC="no-such-compiler", TARDIS_MACHINE_COMPILED="1")


def test_in_place_only_what_was_changed_is_compiled_again(tmp_path: Path) -> None:
    def hatch_build(*argv: str) -> str:
        command = [sys.executable, "hatch_build.py", *argv]
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    package = tmp_path / "src" / "tardis_machine"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = package / "__compiled__"
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert hatch_build("check").split() == []
    edited = package / "exchanges" / "okex" / "spreads.py"
    edited.write_text(f"{edited.read_text()}\nEDITED = True\n")
    assert hatch_build("check").split() == ["exchanges.okex.spreads"]
    hatch_build()
    assert hatch_build("check").split() == []
    after = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    (gone,), (new,) = before.keys() - after.keys(), after.keys() - before.keys()
    assert gone.partition("-")[0] == new.partition("-")[0] == "exchanges.okex.spreads"
    assert {name: at for name, at in before.items() if name in after and name != "made_with"}.items() <= after.items()
    code = "from tardis_machine.exchanges.okex import spreads; print(spreads.EDITED, spreads.__file__)"
    environ = {**os.environ, "PYTHONPATH": str(package.parent), "TARDIS_MACHINE_COMPILED": ""}
    answer = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert answer.stdout == f"True {folder / new}\n"


def wheel_in(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def program(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The installed command, in a Python that has the wheel and what its base dependencies need, and not one package more."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel_in(built)) as archive:
        archive.extractall(folder)
    installed = Distribution.at(folder / f"tardis_machine-{__version__}.dist-info")
    for base in base_distributions(installed.requires or []):
        link_into(folder, base)
    assert not [name for name in OPTIONAL if (folder / name).exists()]
    (target,) = [point for point in installed.entry_points if point.group == "console_scripts"]
    assert target.name == "tardis-machine"
    # -S: no site-packages but the folder; the entry point is called as an installer's script calls it.
    start = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); from {target.module} import {target.attr} as main; sys.exit(main())"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TM_", "PYTHON")) and name != "PORT"}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", start, *argv],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def base_distributions(requires: Iterable[str]) -> list[str]:
    """The names of what these requirements bring, and what that needs, and so on."""
    found: dict[str, None] = {}
    waiting = [(Requirement(line), "") for line in requires]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        one = distribution(requirement.name)
        assert requirement.specifier.contains(one.version), f"{requirement} is not what is installed"
        if requirement.name not in found:
            found[requirement.name] = None
            waiting += [(Requirement(line), extra) for line in one.requires or [] for extra in ("", *requirement.extras)]
    return list(found)


def link_into(folder: Path, name: str) -> None:
    """Makes a distribution of this environment importable there."""
    one = distribution(name)
    for top in {file.parts[0] for file in one.files or []} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(one.locate_file(top))))


def test_it_runs_without_any_extra(program: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    version = program("--version")
    assert (version.returncode, version.stdout) == (0, f"tardis-machine {__version__}\n")
    shown = program("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--kafka-brokers" in shown.stdout
    exchanges = program("exchanges")
    assert exchanges.returncode == 0
    assert "bitmex" in exchanges.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--kafka-brokers", "localhost", "--kafka-topic", "t"], "the Kafka bus needs the extra 'kafka'"),
        (["--redis-host", "localhost", "--redis-stream", "s"], "the Redis bus needs the extra 'redis'"),
        (["--nats-servers", "localhost", "--nats-subject", "a"], "the NATS bus needs the extra 'nats'"),
        (["--kinesis-stream", "s", "--kinesis-region", "us-east-1"], "the kinesis bus needs the extra 'aws'"),
        (["--sqs-queue-url", "http://localhost/1/q", "--sqs-region", "us-east-1"], "the sqs bus needs the extra 'aws'"),
        (["--file-dir", "events"], "the file bus needs the extra 'file'"),
        (
            ["lake", "ingest", "--from", "files", "--file-dir", "events", "--lake", "lake"],
            "'lake ingest' needs the extra 'spark'",
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_is_missing_is_one_sentence(
    program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, argv: list[str], message: str
) -> None:
    server = (
        [] if argv[0] == "lake" else ["--port", "0", "--workers", "0", "--spool-dir", str(tmp_path), "--cache-dir", str(tmp_path)]
    )
    answer = program(*argv, *server)
    assert answer.returncode == 2, answer.stderr
    extra = message.split("'")[-2]
    assert answer.stderr == f"error: {message}: pip install 'tardis-machine[{extra}]'\n"
