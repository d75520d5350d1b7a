"""A child process on a socket, as the server sees it: how it starts and ends, what is sent to it and comes back.

Invariant: a child lives only as long as its socket. It inherits nothing but that, hears no signal, and starts from any script.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import WorkerError
from .child_log import write_log
from .framing import HEADER, NO_JOB, parse_log, parse_output, to_command
from .jobs.contract import Failed
from .output_queue import OutputSink

__all__ = ["ChildProcess"]

_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
_DIED = "the worker process that served this request died"
# How long a child may take to notice that the server hung up.
_END_TIMEOUT_S = 5.0
# What is freed is taken again with the next batch: memory that goes back to the system between them costs a page fault each 4 kB. Names
# and meaning are glibc's; others pass them over.
_KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(128 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
# A program of its own, not a fork: it must not inherit sockets, and must start from any script, guarded or not.
_START = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


class ChildProcess(asyncio.BufferedProtocol):
    """An Executor: the server's end of one child."""

    def __init__(self, module: str) -> None:
        """Runs `main` of a module; its argument is the number of its socket."""
        self.queues: dict[int, OutputSink] = {}
        self._transport: asyncio.Transport | None = None
        # What is being received, straight into the buffer it stays in: a header, then the payload that it announces.
        self._header: tuple[int, int] | None = None
        self._buffer = bytearray(HEADER.size)
        self._filled = 0
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self._socket = ours
        try:
            with theirs, _blocked_signals():
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    [sys.executable, "-c", _START.format(path=sys.path, module=module), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=_KEPT_MEMORY | os.environ,
                    process_group=0,  # a signal to the server's group is the server's to answer; children end with their socket
                )
        except OSError:
            ours.close()
            raise
        self.gone = asyncio.Event()
        """Set when the process is gone."""

    @property
    def pid(self) -> int:
        """See Executor."""
        return self._process.pid

    async def open(self) -> None:
        """See Executor."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def attach(self, job: int, queue: OutputSink) -> None:
        """See Executor. A process may have died before it was given anything to do."""
        self.queues[job] = queue
        if self.gone.is_set():
            queue.put(Failed(WorkerError(_DIED)))

    def command(self, job: int, name: str, *arguments: Any) -> None:
        """See Executor."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(to_command(job, name, arguments))

    def pause(self) -> None:
        """See Executor: it notices when the socket is full."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """See Executor."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """See Executor. Hanging up ends the child."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()

    async def wait(self) -> int:
        """See Executor. A process that does not end in time is killed."""
        try:
            return await asyncio.to_thread(self._process.wait, _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BufferedProtocol."""
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self._filled += nbytes
        if self._filled < len(self._buffer):
            return
        received = self._buffer
        if self._header is None:
            job, kind, size = HEADER.unpack(received)
            self._header = (job, kind)
        else:
            self._take(*self._header, received)
            self._header, size = None, HEADER.size
        self._buffer, self._filled = bytearray(size), 0

    def _take(self, job: int, kind: int, payload: bytearray) -> None:
        if job == NO_JOB:
            write_log(parse_log(payload))
        elif job in self.queues:  # else: it was cancelled while this was on its way
            self.queues[job].put(parse_output(kind, payload))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BufferedProtocol."""
        for queue in self.queues.values():
            queue.put(Failed(WorkerError(_DIED)))
        self.gone.set()


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """What is started here never hears SIGINT or SIGTERM, from its first moment on.

    A terminal or a service manager may signal every process at once, but when a child ends is the server's decision. A blocked signal
    is inherited; a handler would come too late.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
