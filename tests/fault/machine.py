"""The machine under fault: a `tardis-machine serve` in write-ahead mode that is killed and started again on the same spool and port.

Invariant: one process at a time; its memory is looked at as long as it lives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

from tests.contract.bus_under_test import BusUnderTest
from tests.servers.process import DIE_WITH_PARENT, free_port

__all__ = ["MachineUnderFault"]

START_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.1


class MachineUnderFault:
    """Starts, kills and ends it."""

    def __init__(self, bus: BusUnderTest, folder: Path, cache_dir: Path, *, queue_bytes: int, drain_s: float) -> None:
        self.port = free_port()
        self.folder = folder
        self.kills = 0
        self.idle_mb = 0.0
        self.peak_mb = 0.0
        self._queue_bytes = queue_bytes
        self._drain_s = drain_s
        self.dead_letter_dir = folder / "dead-letters"
        options = {"queue-max-bytes": queue_bytes, "dead-letter-dir": self.dead_letter_dir, "retry-backoff-max-ms": 1000}
        self._command = [
            *DIE_WITH_PARENT,
            *(sys.executable, "-m", "tardis_machine", "serve", "--port", str(self.port), "--cache-dir", str(cache_dir)),
            *("--api-url", "http://127.0.0.1:9/v1", "--spool-mode", "always", "--spool-dir", str(folder / "spool")),
            *("--shutdown-timeout", f"{drain_s}s", "--workers", "1"),
            *bus.flags(**options),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    @property
    def sessions_dir(self) -> Path:
        """Where the ledgers are: of the one bus that is on."""
        [found] = self.folder.glob("spool/*/sessions")
        return found

    @property
    def log(self) -> Path:
        """What all its processes had to say."""
        return self.folder / "machine.log"

    @property
    def limit_mb(self) -> float:
        """What it may hold."""
        return self.idle_mb + self._queue_bytes / 2**20 + 100

    def start(self) -> None:
        """Returns when it answers."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TM_") and name != "PORT"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environ, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the machine does not start; its log ends with:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)
        if not self._watch.is_alive():
            self.idle_mb = _resident_mb(self._process.pid)
            self._watch.start()

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health-check", timeout=5):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """With -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def end(self) -> int:
        """Drains; its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(self._drain_s + 30)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends what is left of it."""
        self._over.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _look(self) -> None:
        while not self._over.wait(LOOK_INTERVAL_S):
            process = self._process
            if process is not None and process.poll() is None:
                self.peak_mb = max(self.peak_mb, _resident_mb(process.pid))


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    except (OSError, IndexError):
        return 0.0
