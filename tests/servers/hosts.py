"""Hosts of a network of their own: each has its own network namespace, an address on a bridge, and folders that no other host sees.

    unshare --net --mount python …       # as a user who is not root, with --user --map-root-user

The process that makes them is the first host (`HEAD`), and must be in namespaces of its own: what it does to its network ends with it.

Invariant: nothing outside these namespaces is changed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

from .process import DIE_WITH_PARENT, ServerProcess, http_status
from .seaweedfs import SeaweedServer
from .spark_cluster import WORKER_MEMORY, SparkMaster, spark_class

__all__ = ["HEAD", "Host", "HostMaster", "HostStore", "HostWorker", "apart", "make_network"]

HEAD = "10.77.0.1"
MISSED = ("-Dspark.worker.timeout=20",)
"""A machine that says nothing for so many seconds is gone; all say something four times as often."""


def apart() -> list[str]:
    """Before a command: what gives it namespaces of its own."""
    return ["unshare", "--net", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]


def make_network() -> None:
    """The bridge that hosts are connected to, in the namespace of this process."""
    for command in ("link set lo up", "link add hosts type bridge", f"addr add {HEAD}/24 dev hosts", "link set hosts up"):
        _ip(command)


def _ip(command: str, *before: str) -> None:
    subprocess.run([*before, "ip", *command.split()], check=True)


class Host(AbstractContextManager["Host"]):
    """A further machine: an address, and what it sees of the disk."""

    def __init__(self, number: int, private: Path) -> None:
        """`private`: a folder in whose place it has an empty one of its own."""
        self.address = f"10.77.0.{number + 1}"
        self._link = f"host{number}"
        self._private = private

    def __enter__(self) -> Self:
        own = ["unshare", "--net", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && echo ready && exec sleep infinity']
        self._keeper = subprocess.Popen([*DIE_WITH_PARENT, *own, str(self._private)], stdout=subprocess.PIPE)
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()
        inside = self.enter()
        _ip(f"link add {self._link} type veth peer name eth0 netns {self._keeper.pid}")
        _ip(f"link set {self._link} master hosts up")
        for command in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            _ip(command, *inside)
        return self

    def enter(self) -> list[str]:
        """Before a command: what lets it run there."""
        return ["nsenter", f"--net=/proc/{self._keeper.pid}/ns/net", f"--mount=/proc/{self._keeper.pid}/ns/mnt"]

    def lose(self) -> None:
        """Its cable is cut: nobody hears that it is gone."""
        _ip(f"link set {self._link} down")

    def __exit__(self, *_: object) -> None:
        self._keeper.kill()
        self._keeper.wait()


class HostStore(SeaweedServer):
    """Serves the hosts."""

    def command(self) -> list[str]:
        return ["-ip.bind=0.0.0.0" if word.startswith("-ip.bind=") else word for word in super().command()]

    def lake_options(self, port: int | None = None) -> dict[str, str]:
        return {**super().lake_options(port), "endpoint": f"http://{HEAD}:{port or self.port}"}


class HostMaster(SparkMaster):
    """Is where the hosts reach it."""

    @property
    def address(self) -> str:
        return f"{HEAD}:{self.port}"

    def command(self) -> list[str]:
        place = ["--host", HEAD, "--port", str(self.port), "--webui-port", str(self.ui_port)]
        return spark_class("deploy.master.Master", *place, address=HEAD, jvm=MISSED)

    def answers(self) -> bool:
        return http_status(self.ui_port, "/json/", HEAD) == 200


class HostWorker(ServerProcess):
    """A Spark worker with one core, on a host of its own."""

    name = "a Spark worker"
    scheme = "spark"

    def __init__(self, folder: Path, host: Host, master: HostMaster, private: Path) -> None:
        super().__init__(folder)
        self._host, self._master, self._private = host, master, private

    def command(self) -> list[str]:
        # Others may have that port too: these are their own.
        place = ["--host", self._host.address, "--port", str(self.port), "--webui-port", "0"]
        size = ["--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", str(self._private / "work")]
        return [
            *self._host.enter(),
            *spark_class("deploy.worker.Worker", *place, *size, self._master.url, address=self._host.address),
        ]

    def answers(self) -> bool:
        return "Successfully registered" in self.log_path.read_text(errors="replace")

    @property
    def has_executor(self) -> bool:
        """Whether it was told to start one."""
        return "Asked to launch executor" in self.log_path.read_text(errors="replace")

    def lose(self) -> None:
        """The machine is gone, at once and without a word."""
        self._host.lose()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        super().kill()
