"""The life of a test server: started on a free port, killed, paused and started again on the same port and data.

Invariant: a server that was started is gone when the test run is, also when the run itself is killed.
"""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
PROBE_INTERVAL_S = 0.05
# Has the kernel kill the server when the thread that started it is gone; becomes the server, so signals need not find their way.
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
# That thread: it lives as long as the run does, whichever thread asks for a server.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="server-starter")


class ServerMissingError(Exception):
    """A part of the server is not installed; says which, and what brings it."""


class ServerFailedError(Exception):
    """The server ended, or did not answer in time; holds the end of its log."""


def free_port() -> int:
    """A port that nobody listens on, nor on the one after it, which a machine takes for WebSocket.

    Below those that the kernel gives to clients: a connection of another test must not be there when the server starts, or starts again.
    """
    while True:
        port = SystemRandom().randrange(10_000, 32_000, 2)
        with socket.socket() as one, socket.socket() as other, suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port


def java() -> str:
    """The Java that the set-up found."""
    return installed(TOOLS / "java" / "bin" / "java", "Java 17")


def class_path(jars: str) -> str:
    """All jars of a set, as the JVM wants them."""
    return f"{installed(TOOLS / 'jars' / jars, f'the jars of {jars}')}/*"


def installed(path: Path, what: str) -> str:
    """The path as text, when the set-up has brought it."""
    if not path.exists():
        raise ServerMissingError(f"This test needs {what}, and there is no {path.relative_to(ROOT)}: run `make setup`.")
    return str(path)


def http_status(port: int, path: str, host: str = "127.0.0.1") -> int:
    """How the HTTP server on this port answers a GET."""
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


class ServerProcess(AbstractContextManager["ServerProcess"], ABC):
    """One server on 127.0.0.1, with a folder of its own for its data, settings and log.

    The owner calls `start`, then any of the others, and at last `stop`, which may be called in every state; or uses it as a
    context.
    """

    name: str
    scheme: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    def prepare(self) -> None:
        """Writes what the server reads at its start; called once, before the first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """The server itself, not a script that starts it: signals go to this process."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves; OSError means no. Must not wait for long."""

    def start(self) -> Self:
        """Returns when the server answers."""
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            self.prepare()
        with self.log_path.open("ab") as log:
            self._process = _STARTER.submit(
                subprocess.Popen,
                [*DIE_WITH_PARENT, *self.command()],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the test run, which then stops its servers
            ).result()
        self._wait_until_it_answers()
        return self

    def stop(self) -> None:
        """Ends it as an operator would; a server that does not listen to that is killed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it as a power cut would; what it had confirmed must still be there after `restart`."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Hangs it: connections stay open and nothing answers."""
        self._running.send_signal(signal.SIGSTOP)
        while not _is_stopped(self._running.pid):
            time.sleep(0.001)

    def resume(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def restart(self) -> Self:
        """Starts it again on the same port and data, after a stop if it still runs."""
        self.stop()
        return self.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailedError(f"{self.name} was not started.")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)  # a paused process would hear of it only then
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.is_running and time.monotonic() < deadline:
            try:
                if self.answers():
                    return
            except OSError:
                pass
            time.sleep(PROBE_INTERVAL_S)
        happened = f"did not answer within {START_TIMEOUT_S:.0f} s" if self.is_running else "ended at its start"
        self.kill()
        log = self.log_path.read_text(errors="replace").splitlines()[-20:]
        raise ServerFailedError("\n".join([f"{self.name} {happened}; the end of its log:", *log]))


def _is_stopped(pid: int) -> bool:
    """Whether all its threads are: they stop one after the other, and may still answer meanwhile."""
    try:
        states = {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}
    except OSError:  # one has ended just now
        return False
    return states <= {"T", "Z"}
