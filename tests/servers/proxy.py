"""A faulty network: a TCP proxy that delays, falls silent, cuts, resets and refuses.

Invariant: bytes are never lost or reordered inside a connection that stays open, as TCP has it; what is held flows on after
`heal`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

CHUNK_BYTES = 64 * 1024
CALL_TIMEOUT_S = 10.0
# Closing a socket that lingers for no time sends RST, not FIN.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Result = TypeVar("Result")


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and forwards to another port there.

    It runs in a thread of its own and its methods block, so that it serves clients of every kind. A fault lasts until `heal`, but
    for `cut` and `reset`, which strike the connections of that moment only.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.accepted = 0
        self._delay_s = 0.0
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._requests_flow = asyncio.Event()
        self._replies_flow = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def stop(self) -> None:
        self._run(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def delay(self, seconds: float) -> None:
        """Every chunk waits that long, in both directions."""
        self._call(lambda: setattr(self, "_delay_s", seconds))

    def hold(self) -> None:
        """Nothing passes; connections stay open, and new ones are accepted: a host that vanished."""
        self._call(self._requests_flow.clear)
        self._call(self._replies_flow.clear)

    def hold_replies(self) -> None:
        """Half open: what the client sends arrives, and it never hears of it."""
        self._call(self._replies_flow.clear)

    def cut(self) -> None:
        """Ends all connections in order (FIN); what is held is lost."""
        self._call(self._close_all)

    def reset(self) -> None:
        """Breaks all connections (RST); what is held is lost."""
        self._call(lambda: self._close_all(reset=True))

    def refuse(self) -> None:
        """Breaks all connections and takes no new ones: a host whose server is down."""
        self._run(self._refuse())

    def heal(self) -> None:
        """No fault from here on; what was held flows."""
        self._run(self._heal())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def _call(self, action: Callable[[], object]) -> None:
        async def call() -> None:
            action()

        self._run(call())

    async def _heal(self) -> None:
        self._delay_s = 0.0
        self._requests_flow.set()
        self._replies_flow.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._close_all(reset=True)
        while self._connections:
            await asyncio.wait(self._connections)

    def _close_all(self, reset: bool = False) -> None:
        for connection, writers in self._connections.items():
            for writer in writers:
                _close(writer, reset)
            connection.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self.accepted += 1
        writers = self._connections[connection] = [writer]
        reset = True
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            writers.append(target_writer)
            await asyncio.gather(
                self._forward(reader, target_writer, self._requests_flow),
                self._forward(target_reader, writer, self._replies_flow),
            )
            reset = False
        except (OSError, asyncio.CancelledError):
            pass  # broken on one side: broken on the other; or closed by us
        finally:
            for end in writers:
                _close(end, reset)
            del self._connections[connection]

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await asyncio.sleep(self._delay_s)
            await flow.wait()
            writer.write(chunk)
            await writer.drain()
        await flow.wait()
        writer.write_eof()


def _close(writer: asyncio.StreamWriter, reset: bool) -> None:
    if writer.is_closing():
        return
    if reset:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        writer.transport.abort()
    else:
        writer.close()
