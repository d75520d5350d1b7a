"""The program of a child process: takes commands off its socket, runs its jobs on an event loop, and sends what comes of them.

Invariant: it ends when the server is gone. While the server does not read, its jobs wait.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable

from .child_log import Logged, send_logs
from .framing import take_commands, to_frame, to_log_frame
from .jobs import Jobs, Put
from .jobs.contract import Output

__all__ = ["serve"]

# What may wait to be sent before jobs are paused.
_MAX_UNSENT_BYTES = 8 * 1024 * 1024
# Messages live for microseconds and form no cycles; what little does is collected so often.
_COLLECT_EVERY_S = 10.0


class _ServerEnd(asyncio.Protocol):
    """The child's end of its socket."""

    def __init__(self, make_jobs: Callable[[Put], Jobs]) -> None:
        self._jobs = make_jobs(self._put)
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        # Set when the server is gone.
        self.gone = asyncio.Event()

    def _put(self, job: int, output: Output) -> None:
        self._send(to_frame(job, output))

    def log(self, line: Logged) -> None:
        """Sends a log line."""
        self._send(to_log_frame(line))

    def _send(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._received += data
        for job, name, arguments in take_commands(self._received):
            self._jobs.obey(job, name, arguments)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._jobs.pause()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._jobs.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.gone.set()


async def _serve(make_jobs: Callable[[Put], Jobs], server: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: _ServerEnd(make_jobs), sock=server)
    send_logs(connection.log)

    def collect() -> None:
        gc.collect()
        loop.call_later(_COLLECT_EVERY_S, collect)

    gc.freeze()
    gc.disable()
    loop.call_later(_COLLECT_EVERY_S, collect)
    await connection.gone.wait()


def serve(make_jobs: Callable[[Put], Jobs]) -> None:
    """The life of a child; the number of its socket to the server is the program's argument."""
    server = socket.socket(fileno=int(sys.argv[1]))
    if sys.platform == "win32":
        asyncio.run(_serve(make_jobs, server))
    else:
        import uvloop

        uvloop.run(_serve(make_jobs, server))
