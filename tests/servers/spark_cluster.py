"""A standalone Spark cluster of separate processes: a master, and workers with one core each.

The executors of a job are children of their workers. Their Python has what the package depends on, but not the package: that comes from the
driver, as it does to a real cluster.
"""

from __future__ import annotations

import os
import signal
import sysconfig
import venv
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

from .process import ServerProcess, free_port, http_status, java

__all__ = ["SparkCluster", "make_bare_python", "spark_class"]

JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
WORKER_MEMORY = "1g"


MODULES = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
        *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
        "sun.util.calendar",
    )
)
"""What Spark's own scripts pass to Java 17."""


def spark_class(
    name: str, *arguments: str, heap: str = "256m", jars: Sequence[str] = (), address: str = "127.0.0.1", jvm: Sequence[str] = ()
) -> list[str]:
    """Runs a class of Spark, as the pip package brings it, and by default nothing listens beyond this machine."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environ = ["env", f"SPARK_HOME={home}", "SPARK_SCALA_VERSION=2.13", f"SPARK_LOCAL_IP={address}"]
    program = [java(), f"-Xmx{heap}", *JVM_OPTIONS, *MODULES, *jvm, "-cp", ":".join([f"{home}/jars/*", *jars])]
    return [*environ, *program, f"org.apache.spark.{name}", *arguments]


def make_bare_python(folder: Path) -> Path:
    """An interpreter that has all that is installed here, but for what is installed from a source checkout: this package."""
    venv.create(folder, symlinks=True)
    [own] = folder.glob("lib/*/site-packages")
    # Of a folder that is named here the modules are found, while its own .pth files, which name checkouts, are not read.
    (own / "installed.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "python"


class SparkMaster(ServerProcess):
    name = "the Spark master"
    scheme = "spark"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ui_port = free_port()

    def command(self) -> list[str]:
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui_port)]
        return spark_class("deploy.master.Master", *place)

    def answers(self) -> bool:
        return http_status(self.ui_port, "/json/") == 200


class SparkWorker(ServerProcess):
    name = "a Spark worker"
    scheme = "spark"

    def __init__(self, folder: Path, master: SparkMaster, hides: Path | None = None) -> None:
        """`hides`: a folder in whose place it has one of its own, as machines have that mount nothing there."""
        super().__init__(folder)
        self.ui_port = free_port()
        self._master = master
        self._hides = hides

    def command(self) -> list[str]:
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui_port)]
        size = ["--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", str(self.folder / "work")]
        command = spark_class("deploy.worker.Worker", *place, *size, self._master.url)
        if self._hides is None:
            return command
        apart = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
        return [*apart, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(self._hides), *command]

    def answers(self) -> bool:
        # It is of use when the master knows it.
        return "Successfully registered" in self.log_path.read_text(errors="replace")

    @property
    def has_executor(self) -> bool:
        """Whether one of its executors has begun to write its log."""
        return any(self.folder.glob("work/*/*/stderr"))

    def kill(self) -> None:
        """With its executors, as a machine goes."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        super().kill()


class SparkCluster(AbstractContextManager["SparkCluster"]):
    """A master and two workers."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.master = SparkMaster(folder / "master")
        self.workers = [SparkWorker(folder / f"worker-{number}", self.master) for number in range(workers)]

    @property
    def url(self) -> str:
        return self.master.url

    def __enter__(self) -> Self:
        self.master.start()
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        self.master.stop()
