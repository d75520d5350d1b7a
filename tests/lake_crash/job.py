"""The ingest job as a process of its own: the command that users run.

Invariant: what was started is gone when the test run is, and when it is killed, so is its JVM.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.fault.samples import children_of
from tests.servers.process import DIE_WITH_PARENT

__all__ = ["QUICK_START", "LakeJob"]

QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a JVM that does not live long enough to gain from compiling well."""

POLL_S = 0.05
END_TIMEOUT_S = 1800.0


class LakeJob:
    """`tardis-machine lake …`, once or several times, with one log."""

    def __init__(
        self,
        *arguments: str,
        log: Path,
        environ: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "tardis_machine", "lake"),
    ) -> None:
        self._command = [*DIE_WITH_PARENT, sys.executable, *program, *arguments]
        self._environ = {**{name: value for name, value in os.environ.items() if not name.startswith("TM_")}, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    def start(self) -> None:
        """Returns at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_until(self, done: Callable[[], object], timeout_s: float = END_TIMEOUT_S) -> None:
        """Waits while it runs; raises RuntimeError when it ends, or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if not self.is_running or time.monotonic() > deadline:
                happened = "takes too long" if self.is_running else "ended"
                self.kill()
                raise RuntimeError(f"the job {happened}; its log ends with:\n{self.tail}")
            time.sleep(POLL_S)

    def kill(self, *, only_driver: bool = False) -> None:
        """With -9: all of it, as a machine that goes; or the command alone, as `kill -9 PID` does."""
        if self._process is None:
            return
        if only_driver:
            self._process.kill()
            # Its JVM sees that nobody reads it any more; it must be gone before another job works on the lake.
            self._process.wait()
            time.sleep(0.5)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def kill_worker(self) -> bool:
        """One of the processes in which Spark runs Python, with -9; False where there is none at the moment."""
        assert self._process is not None
        for daemon in _descendants(self._process.pid):
            with suppress(OSError):
                if "pyspark.daemon" in Path(f"/proc/{daemon}/cmdline").read_text():
                    for worker in children_of(daemon):
                        os.kill(worker, signal.SIGKILL)
                        return True
        return False

    def deny_descriptors(self) -> None:
        """Its processes, and those that they start, keep the files and sockets they have, and get no more."""
        assert self._process is not None
        for pid in (self._process.pid, *_descendants(self._process.pid)):
            with suppress(OSError):
                # One that has ended holds none.
                held = max((int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()), default=0)
                _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (held + 1, hard))

    def terminate(self) -> int:
        """With SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Until it ends by itself; its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the job takes too long; its log ends with:\n{self.tail}") from None
        finally:
            self.kill()

    @property
    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def _descendants(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from _descendants(child)
