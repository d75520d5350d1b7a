"""The Spark session that every lake job runs in: on this machine, on a cluster, or on a Spark Connect server.

Invariant: no job goes to the network for its jars; what is missing is said in one sentence before Spark is started.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

from ..errors import LakeError, MissingExtraError
from .spark_errors import sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .storage import Storage

__all__ = ["DELTA_CONF", "start_session"]

DELTA_CONF: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What makes Delta tables known to Spark; a Connect server must be started with it."""

SQL_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Up to so many partitions of a table are written side by side; otherwise rows are sorted first, which costs as much as writing.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    # A stream that waits for a broker does not hear that it is to stop; what it was at is run again at the next start.
    "spark.sql.streaming.stopTimeout": "20s",
    # A job that is killed while it plans its first batch leaves half a file, over which Spark would refuse to start ever again.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}

_ONE_MACHINE_CONF: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Delta replays its log with 50 tasks by default: seconds a commit on a small machine.
    "spark.databricks.delta.snapshotPartitions": "2",
    # What never repeats needs no dictionary, and nobody looks for ranges of it: a tenth of the time that writing takes.
    **{
        f"spark.hadoop.parquet.{setting}#{column}": "false"
        for column in ("event_id", "value", "position", "headers.key_value.value")
        for setting in ("enable.dictionary", "column.statistics.enabled")
    },
}

_TOOLS = Path(__file__).resolve().parents[3] / ".tools"
"""What 'make setup' leaves in a source checkout."""
_DELTA_JAR = "delta-spark_*.jar"
_JAVA_VERSION = 17
_CONNECT_PORT = 15_002
_STANDALONE, _MASTER_PORT = "spark://", 7_077
# Of another kind of processor or Python, what is compiled has another ending, and is passed over. Its text tells whether it is of this
# version, that of Cython included.
_MODULE_ENDINGS = (".py", ".pyx", ".pxd", EXTENSION_SUFFIXES[0])
_LOGGING = Path(__file__).with_name("log4j2.properties")


def start_session(
    *,
    master: str = "local[*]",
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    storage: Storage | None = None,
    jars_dir: str | Path | None = None,
    long_running: bool = False,
    app_name: str = "tardis-machine lake",
) -> SparkSession:
    """The session; the running one where there is one. `conf` wins over every default. `storage`: where the lake lies.

    `long_running` lets the JVM compile fully, which costs a short job more than it gains.
    """
    try:
        import deltalake  # noqa: F401 - what commits to tables is missed here, in one sentence, and not in the midst of a job
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("The lake", "spark") from None
    builder = SparkSession.builder.appName(app_name)
    if remote is not None:
        # A server that runs takes what Hadoop is to be told by its own name.
        reached = {name.removeprefix("spark.hadoop."): value for name, value in (storage.spark_conf if storage else {}).items()}
        settings = {**SQL_CONF, **reached, **(conf or {})}
        where = _find_server(remote)
        builder = builder.remote(remote)
    else:
        os.environ["JAVA_HOME"] = find_java(os.environ)
        reached = {**storage.spark_conf} if storage else {}
        settings = {**DELTA_CONF, **SQL_CONF, **_local_conf(master, long_running=long_running), **reached, **(conf or {})}
        if "spark.jars.packages" not in settings:
            settings.setdefault(
                "spark.jars", ",".join(str(jar) for jar in find_jars(jars_dir, storage.jars if storage else None))
            )
        if master.startswith(_STANDALONE):
            _find_master(master)
        builder, where = builder.master(master), master
        # The JVM inherits it. By default threads allocate from eight arenas a core, whose unused parts nobody else gets: a driver of 2 GB
        # would have hundreds of MB that it does not use.
        os.environ.setdefault("MALLOC_ARENA_MAX", "2")
        # Workers run the same interpreter as the driver, not whichever `python3` is first on PATH. Spark reads the property only in
        # programs that it starts itself.
        python = settings.get("spark.pyspark.python")
        os.environ["PYSPARK_PYTHON"] = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    for name, value in settings.items():
        builder = builder.config(name, value)
    # It prints the traceback of whatever a stream raises; the job raises that itself.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    try:
        session = builder.getOrCreate()
        if remote is not None:
            session.addArtifacts(package_archive(), archive=True)
        elif not master.startswith("local"):
            session.sparkContext.addArchive(package_archive())
    except Exception as error:
        raise LakeError(f"Spark did not start on {where}: {sentence(error)}") from error
    return session


def _find_server(remote: str) -> str:
    """Where the Connect server is, without the token that its address may have; its own client would go on trying for ten minutes."""
    place = urlsplit(remote)
    host, port = place.hostname or "", place.port or _CONNECT_PORT
    problem = _unreachable(host, port)
    if problem is not None:
        raise LakeError(f"no Spark Connect server answers at {host}:{port}: {problem}; start it, or name another with --remote")
    return f"sc://{host}:{port}"


def _find_master(master: str) -> None:
    """One of the masters must answer; Spark would go on trying for a minute, and then say that it is stopped."""
    problems = []
    for address in master.removeprefix(_STANDALONE).split(","):
        place = urlsplit(f"//{address}")
        problem = _unreachable(place.hostname or "", place.port or _MASTER_PORT)
        if problem is None:
            return
        problems.append(f"{address}: {problem}")
    raise LakeError(f"no Spark master answers at {' or at '.join(problems)}; start one, or name another with --master")


def _unreachable(host: str, port: int) -> OSError | None:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        return error
    return None


_KEPT: list[TemporaryDirectory[str]] = []
"""Folders that are needed as long as the process lives."""


@cache
def package_archive() -> str:
    """This package in one file, and the name of the folder that Spark unpacks it to: executors look there first when they import.

    So they run the driver's version, whether or not one is installed there. From a file that is not unpacked, Python imports nothing
    that is compiled.
    """
    folder = TemporaryDirectory(prefix="tardis-machine-")
    _KEPT.append(folder)
    package = Path(__file__).resolve().parents[1]
    archive = Path(folder.name) / f"{package.name}.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED) as zipped:
        for module in sorted(file for ending in _MODULE_ENDINGS for file in package.rglob(f"*{ending}")):
            zipped.write(module, module.relative_to(package))
    return f"{archive}#{package.name}"


def _local_conf(master: str, *, long_running: bool) -> dict[str, str]:
    log_levels = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    # When a stream is stopped, Spark looks for the reason in a text of pages with a pattern that recurses at every letter.
    deep_stack = "-Xss16m"
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.driver.extraJavaOptions": f"{deep_stack} {log_levels}"}
    if not master.startswith("local"):
        return quiet
    cores = re.match(r"local\[(\d+)", master)
    partitions = cores[1] if cores else str(os.cpu_count() or 1)
    # Rows are the bulk of the heap and live shortly: one thread collects them as well as many.
    # A compiler of one level has room for 48 MB of code by default, which queries of a few minutes fill: then it forgets and compiles anew.
    quick = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
    java_options = ["-XX:+UseSerialGC", deep_stack, *([] if long_running else quick), log_levels]
    return {
        **quiet,
        **_ONE_MACHINE_CONF,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": partitions,
        "spark.driver.extraJavaOptions": " ".join(java_options),
    }


def find_java(environ: Mapping[str, str]) -> str:
    """The home of a Java that Spark runs on: the one chosen, the one that 'make setup' found, the one on PATH."""
    remedy = f"install Java {_JAVA_VERSION} or later (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    home = environ.get("JAVA_HOME") or (_TOOLS / "java" if (_TOOLS / "java").exists() else None)
    java = Path(home) / "bin" / "java" if home else Path(on_path).resolve() if on_path else None
    if java is None or not java.exists():
        where = f"JAVA_HOME is {str(home)!r}, where there is no bin/java" if home else "no 'java' is on PATH"
        raise LakeError(f"Spark needs Java, and {where}; {remedy}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    version = re.search(r'version "(\d+)', answer.stderr)
    if version is None or int(version[1]) < _JAVA_VERSION:
        found = f"version {version[1]}" if version else "of a version that it does not tell"
        raise LakeError(f"Spark needs Java {_JAVA_VERSION} or later, and {java} is {found}; {remedy}")
    return str(java.parent.parent)


def _jars_of(folder: Path) -> list[Path]:
    found = [*folder.glob("*.jar")]
    if not found:
        raise LakeError(
            f"the jars with which Spark reaches this lake are not in {folder}; run 'make setup' in the source checkout, or name a folder "
            "that holds them beside those of Delta Lake with --spark-jars"
        )
    return found


def find_jars(jars_dir: str | Path | None = None, also: str | None = None) -> list[Path]:
    """The jars of Delta and of the Kafka source: in the folder given, in the source checkout, or in the user's data folder.

    `also` names a further set, in a folder beside those; in the folder given all lie together.
    """
    data_home = os.environ.get("XDG_DATA_HOME") or str(Path("~/.local/share").expanduser())
    candidates = (
        [Path(jars_dir)] if jars_dir else [_TOOLS / "jars" / "spark", Path(data_home) / "tardis-machine" / "jars" / "spark"]
    )
    for folder in candidates:
        if any(folder.glob(_DELTA_JAR)):
            others = () if jars_dir or also is None else _jars_of(folder.parent / also)
            return sorted([*folder.glob("*.jar"), *others])
    looked_in = " and ".join(str(folder) for folder in candidates)
    raise LakeError(
        f"the jars of Delta Lake are not in {looked_in}; run 'make setup' in the source checkout, name their folder with "
        "--spark-jars, or let Spark fetch them with --spark-conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0"
    )
