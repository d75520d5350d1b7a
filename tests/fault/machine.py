"""The machine under fault: a `tardis-machine serve` in write-ahead mode that is killed and started again on the same spool and port.

Its spools and ledgers lie on a small disk that can be full; its time of day can step back.

Invariant: one process at a time; what it holds is looked at as long as it lives.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from urllib.request import urlopen

from tests.contract.bus_under_test import BusUnderTest
from tests.fault.plan import MachineFault
from tests.fault.samples import Samples, children_of, resident_mb
from tests.fault.small_disk import SmallDisk
from tests.fault.stepping_clock import SteppingClock, why_no_clock
from tests.servers.process import DIE_WITH_PARENT, free_port

__all__ = ["MachineUnderFault"]

START_TIMEOUT_S = 60.0
PROCESS_TIMEOUT_S = 30.0
END_TIMEOUT_S = 60.0
"""For all but the drain."""
DISK_BYTES = 256 * 2**20
UNREAD_MB = 32
"""The default of --max-unread-bytes."""
READER_MB = 0.6
"""What each of very many slow readers may cost besides: one chunk, some of it being written."""
BACK_AT_MOST_S = 3600
_MODULES = {"kill worker": "processes.jobs.replay", "kill live": "processes.jobs.live"}


class MachineUnderFault:
    """Starts, strikes, kills and ends it; `close` at last."""

    def __init__(
        self,
        buses: Sequence[BusUnderTest],
        folder: Path,
        cache_dir: Path,
        *,
        queue_bytes: int,
        drain_s: float,
        slow_readers: int = 0,
        exchange_urls: Mapping[str, str] | None = None,
        seed: int = 1,
    ) -> None:
        self.port = free_port()
        self.folder = folder
        self.kills = 0
        self.idle_mb = 0.0
        self._may_grow_mb = len(buses) * queue_bytes / 2**20 + 100 + slow_readers * READER_MB + (UNREAD_MB if slow_readers else 0)
        self._drain_s = drain_s
        self._random = Random(seed)
        self.disk = SmallDisk(folder / "disk", DISK_BYTES)
        self.cannot = {} if (reason := why_no_clock()) is None else {"clock back": reason}
        self._clock = None if self.cannot else SteppingClock(folder)
        live = [f"{name}:{url}" for name, url in (exchange_urls or {}).items()]
        self._command = [
            *DIE_WITH_PARENT,
            *(sys.executable, "-m", "tardis_machine", "serve", "--port", str(self.port), "--cache-dir", str(cache_dir)),
            *("--api-url", "http://127.0.0.1:9/v1", "--spool-mode", "always", "--spool-dir", str(folder / "disk" / "spool")),
            *("--shutdown-timeout", f"{drain_s}s", "--workers", "1", "--max-replays", str(slow_readers + 500)),
            *(("--exchange-urls", ",".join(live)) if live else ()),
        ]
        for bus in buses:
            letters = self.dead_letter_dir / bus.prefix
            options = {"queue-max-bytes": queue_bytes, "dead-letter-dir": letters, "retry-backoff-max-ms": 1000, **bus.in_order}
            self._command += bus.flags(**options)
        self._process: subprocess.Popen[bytes] | None = None
        self.samples = Samples(lambda: None if self._process is None or self._process.poll() is not None else self._process.pid)

    @property
    def dead_letter_dir(self) -> Path:
        """With a folder for each bus."""
        return self.folder / "dead-letters"

    def sessions_dir(self, bus: str) -> Path:
        """Where the ledgers of a bus are."""
        return self.folder / "disk" / "spool" / bus / "sessions"

    @property
    def log(self) -> Path:
        """What all its processes had to say."""
        return self.folder / "machine.log"

    @property
    def limit_mb(self) -> float:
        """What it may hold."""
        return self.idle_mb + self._may_grow_mb

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TM_") and name != "PORT"}
        if self._clock is not None:
            environ |= self._clock.environ
        is_first = self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environ, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the machine does not start; its log ends with:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)
        if is_first:
            self.idle_mb = resident_mb(self.pid)
            self.samples.start()

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health-check", timeout=5):
                return True
        except OSError:
            return False

    def strike(self, fault: MachineFault) -> None:
        """Begins a fault; `heal` ends it."""
        if fault == "kill":
            self.kill()
            self.start()
        elif fault in _MODULES:
            os.kill(self._await_child(_MODULES[fault]), signal.SIGKILL)
        elif fault == "descriptors":
            # It keeps those it has, and gets no more.
            held = max(int(entry.name) for entry in Path(f"/proc/{self.pid}/fd").iterdir())
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (held + 1, hard))
        elif fault == "full disk":
            self.disk.fill(self.pid)
        else:
            assert self._clock is not None, self.cannot
            self._clock.step(-self._random.randint(1, BACK_AT_MOST_S))

    def heal(self, fault: MachineFault) -> None:
        """Ends it."""
        if fault == "descriptors":
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (hard, hard))
        elif fault == "full disk":
            self.disk.empty(self.pid)

    def _await_child(self, module: str) -> int:
        """One of its processes that runs this module; waits until there is one."""
        deadline = time.monotonic() + PROCESS_TIMEOUT_S
        while time.monotonic() < deadline:
            for child in children_of(self.pid):
                with suppress(OSError):
                    if module in Path(f"/proc/{child}/cmdline").read_text():
                        return child
            time.sleep(0.05)
        raise RuntimeError(f"the machine has had no process for {module} for {PROCESS_TIMEOUT_S:.0f} s")

    def kill(self) -> None:
        """With -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def end(self) -> int | None:
        """Drains; its exit code, or None where it did not end in time and was killed."""
        assert self._process is not None
        self.samples.stop()
        self._process.terminate()
        try:
            return self._process.wait(self._drain_s + END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends what is left of it."""
        self.samples.stop()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Its disk goes; the ledgers must have been read."""
        self.stop()
        self.disk.close()
