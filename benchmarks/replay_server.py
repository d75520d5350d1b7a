"""The server as users run it, with what it costs: wall time, processor time and memory of all its processes.

Invariant: the client is another process; nothing of the benchmark runs in the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from typing import Any
from urllib.request import urlopen

from benchmarks.sample_hour import cache_dir

__all__ = ["DRAIN_S", "Cost", "ReplayServer", "running_server"]

DRAIN_S = 600.0
"""How long a server may take to end: what was published is delivered first."""

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    messages: int
    wall_s: float
    cpu_s: float


class ReplayServer:
    """A running `tardis-machine serve` on the cached hour."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._port = port
        self._process = process
        # Messages of each request, counted once.
        self._messages: dict[str, int] = {}

    def run(self, request: str, subscription: str = "") -> Cost:
        """One request, read to its end."""
        asked = {"request": request, "subscription": subscription}
        if request not in self._messages:
            self._messages[request] = int(self._drain(asked | {"count": True})["messages"])
        before_s = self.cpu_s()
        took = self._drain(asked)
        # A session waits for subscriptions before it starts, which is no work.
        wall_s = took["streaming_seconds"] if subscription else took["seconds"]
        return Cost(self._messages[request], wall_s, self.cpu_s() - before_s)

    def _drain(self, asked: Mapping[str, object]) -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.drain", str(self._port)]
        ended = subprocess.run(command, input=json.dumps(dict(asked)).encode(), stdout=subprocess.PIPE, check=True)
        took: dict[str, float] = json.loads(ended.stdout)
        return took

    @property
    def port(self) -> int:
        """Of HTTP and WebSocket."""
        return self._port

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [self._process.pid, *map(int, children)]

    def cpu_s(self) -> float:
        """Processor time of all its processes until now."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self.pids]
        return sum(int(field[11]) + int(field[12]) for field in fields) / _TICKS_A_SECOND

    def read_at(self, request: str, lines_a_second: float) -> dict[str, float]:
        """One request, read to its end by a client that takes so many lines a second; what `benchmarks.paced` says of it."""
        command = [sys.executable, "-m", "benchmarks.paced", str(self._port), str(lines_a_second)]
        ended = subprocess.run(command, input=request.encode(), stdout=subprocess.PIPE, check=True)
        read: dict[str, float] = json.loads(ended.stdout)
        return read

    @property
    def own_mb(self) -> float:
        """What the server itself has in memory now, without its workers."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

    @property
    def own_peak_mb(self) -> float:
        """The most that it has held."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024

    def bus_health(self) -> dict[str, Any]:
        """What it says of its one bus."""
        with urlopen(f"http://127.0.0.1:{self._port}/health-check", timeout=30) as response:
            [health] = json.load(response)["buses"].values()
        found: dict[str, Any] = health
        return found

    @property
    def peak_mb(self) -> float:
        """The most that each process has held, added up; pages they share count for each."""
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        lines = [line for status in statuses for line in status.splitlines() if line.startswith("VmHWM:")]
        return sum(int(line.split()[1]) for line in lines) / 1024


def _free_port() -> int:
    """A port that is free, as is the next."""
    while True:
        with create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
            try:
                with create_server(("127.0.0.1", port + 1)):
                    return port
            except OSError:
                continue


@contextmanager
def running_server(*argv: str, market: str = "everyday") -> Iterator[ReplayServer]:
    """A server on the cached hour of a market, with its default number of workers and these arguments; drained and gone at the end."""
    port = _free_port()
    command = [sys.executable, "-m", "tardis_machine", "serve", "--port", str(port), "--cache-dir", str(cache_dir(market))]
    process = subprocess.Popen([*command, "--api-url", "http://127.0.0.1:9/v1", "--log-level", "warning", *argv])
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/health-check", timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield ReplayServer(port, process)
    finally:
        process.terminate()
        process.wait(DRAIN_S)
