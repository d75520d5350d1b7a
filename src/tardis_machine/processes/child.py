"""A child process on a socket: what is sent to it and comes back, and how it starts and ends.

Invariant: a child lives only as long as its socket. It inherits nothing but that, hears no signal, and starts from any script.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from struct import Struct
from typing import Any, Protocol

from ..errors import WorkerError
from .jobs.contract import Chunk, Failed, Output

__all__ = ["ChildProcess", "Sink", "take_commands", "to_frame"]

# job, kind, payload bytes
_HEADER = Struct("<QBI")
_KIND_PICKLED, _KIND_CHUNK = 0, 1
# messages, stream; the data follows
_CHUNK = Struct("<IH")
_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
# A program of its own, not a fork: it must not inherit sockets, and must start from any script, guarded or not.
_START = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


def to_frame(job: int, output: Output) -> bytes:
    if isinstance(output, Chunk):
        head = _HEADER.pack(job, _KIND_CHUNK, len(output.data) + _CHUNK.size) + _CHUNK.pack(output.messages, output.stream)
        return head + output.data
    payload = pickle.dumps(output, pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(job, _KIND_PICKLED, len(payload)) + payload


def take_commands(received: bytearray) -> list[tuple[int, tuple[str, Any]]]:
    commands = []
    start = 0
    while len(received) - start >= _HEADER.size:
        job, _, size = _HEADER.unpack_from(received, start)
        end = start + _HEADER.size + size
        if end > len(received):
            break
        commands.append((job, pickle.loads(received[start + _HEADER.size : end])))  # noqa: S301 - from our own parent process
        start = end
    del received[:start]
    return commands


class Sink(Protocol):
    """Where the outputs of a job go."""

    def put(self, place: int, output: Output) -> None:
        """An output of the job's worker at that place."""

    def fail(self, failure: Failed) -> None:
        """The process is gone."""


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """What is started here never hears SIGINT or SIGTERM, from its first moment on: a terminal or a service manager may signal every
    process at once, but when a worker ends is the server's decision. A blocked signal is inherited, a handler would come too late."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ChildProcess(asyncio.BufferedProtocol):
    """The server's end of one child."""

    def __init__(self, module: str) -> None:
        """Runs `main` of a module; its argument is the number of its socket."""
        # By job, where its outputs go, and this worker's place there.
        self.jobs: dict[int, tuple[Sink, int]] = {}
        self._transport: asyncio.WriteTransport | None = None
        # What is being received, straight into the buffer it stays in: a header, then the payload that it announces.
        self._header: tuple[int, int] | None = None
        self._buffer = bytearray(_HEADER.size)
        self._filled = 0
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self._socket = ours
        with theirs, _blocked_signals():
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", _START.format(path=sys.path, module=module), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # a signal to the server's group is the server's to answer; workers end with their socket
            )
        # Set when the process is gone.
        self.gone = asyncio.Event()

    async def open(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def command(self, job: int, name: str, arguments: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            payload = pickle.dumps((name, arguments), pickle.HIGHEST_PROTOCOL)
            self._transport.write(_HEADER.pack(job, _KIND_PICKLED, len(payload)) + payload)

    def close(self) -> None:
        """Hangs up, which ends the worker; what is under way either way is lost."""
        if self._transport is not None:
            self._transport.abort()

    async def wait(self, timeout_s: float) -> int:
        """Its exit code; a process that does not end in time is killed."""
        try:
            return await asyncio.to_thread(self.process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return await asyncio.to_thread(self.process.wait)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._buffer):
            return
        received = self._buffer
        if self._header is None:
            job, kind, size = _HEADER.unpack(received)
            self._header = (job, kind)
        else:
            self._take(*self._header, received)
            self._header, size = None, _HEADER.size
        self._buffer, self._filled = bytearray(size), 0

    def _take(self, job: int, kind: int, payload: bytearray) -> None:
        if job not in self.jobs:
            return  # cancelled while this was on its way
        outputs, place = self.jobs[job]
        if kind == _KIND_CHUNK:
            messages, stream = _CHUNK.unpack_from(payload)
            outputs.put(place, Chunk(memoryview(payload)[_CHUNK.size :], messages, stream))
        else:
            outputs.put(place, pickle.loads(payload))  # noqa: S301 - from our own worker

    def connection_lost(self, exc: Exception | None) -> None:
        for outputs, _ in self.jobs.values():
            outputs.fail(Failed(WorkerError("the worker process that served this request died")))
        self.gone.set()
