"""The server as users run it: a process of its own, started by the command line.

Invariant: what was started is gone when the block ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tardis_machine.filters import Filter
from tardis_machine.sample.cache_dir import fill_cache
from tests.integration.machine import DAY
from tests.servers.process import free_port

START_TIMEOUT_S = 30.0
MINUTE_US = 60_000_000
FEBRUARY_US = 1_580_515_200_000_000
FILTERS = [Filter("trade", ["XBTUSD"]), Filter("orderBookL2", ["XBTUSD"])]
"""What trades and book changes of XBTUSD take."""
assert DAY == "2020-02-01T"


def fill_bitmex(cache_dir: Path, minutes: int) -> None:
    """Minutes of XBTUSD from the start of the day, as `options()` asks for them: no history API is needed then."""
    fill_cache(cache_dir, "bitmex", FILTERS, FEBRUARY_US, FEBRUARY_US + minutes * MINUTE_US)


class Served:
    """A running `tardis-machine serve`."""

    def __init__(
        self, *argv: str, cache_dir: Path, log: Path, descriptors: tuple[int, int] | None = None, port: int | None = None
    ) -> None:
        self.port = port or free_port()
        self.log = log
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TM_") and name != "PORT"}
        command = [sys.executable, "-m", "tardis_machine", "serve", "--port", str(self.port), "--cache-dir", str(cache_dir)]
        if descriptors is not None:
            command = ["bash", "-c", f'ulimit -Sn {descriptors[0]}; ulimit -Hn {descriptors[1]}; exec "$@"', "bash", *command]
        with log.open("wb") as output:
            self.process = subprocess.Popen([*command, *argv], env=environ, stdout=output, stderr=output, start_new_session=True)

    def wait_until_up(self) -> None:
        """Waits until its second port is open, which it opens last."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port + 1), timeout=5):
                    return
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.05)

    @property
    def worker_pids(self) -> list[int]:
        """Its children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    @property
    def memory_mb(self) -> float:
        """What it and its workers have in memory together, shared pages counted once."""
        total_kb = 0
        for pid in (self.process.pid, *self.worker_pids):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total_kb += int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])
        return total_kb / 1024


@contextmanager
def served(
    cache_dir: Path, log: Path, *argv: str, descriptors: tuple[int, int] | None = None, port: int | None = None
) -> Iterator[Served]:
    """A server that answers; killed at the end if it still runs. `descriptors` are its soft and its hard limit."""
    server = Served(*argv, cache_dir=cache_dir, log=log, descriptors=descriptors, port=port)
    try:
        server.wait_until_up()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(pids: list[int], seconds: float) -> bool:
    """Whether all of them end in time."""
    deadline = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
