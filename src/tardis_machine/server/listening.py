"""A port that takes connections, each of which is counted before anything is read from it.

Invariant: where the system has no descriptor left, connections wait; the port never closes because of that.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from ..errors import SettingsError
from .connections import ClientProtocol, Connections

__all__ = ["ListeningPort", "bind"]

_BACKLOG = 1024
# Accepted at a time, so that other work of the loop has its turn.
_ACCEPTED_AT_ONCE = 16
_PAUSE_S = 0.02


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on a port of every address that the host's name has; with port 0 the system picks one."""
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            chosen = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(socket.create_server((address[0], chosen), family=family, backlog=_BACKLOG))
            except OSError as error:
                # A name may have an address of a family that this machine does not speak.
                failure = error
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
        if not sockets and failure is not None:
            raise failure
    except OSError as error:
        for opened in sockets:
            opened.close()
        is_in_use = error.errno == errno.EADDRINUSE
        problem = f"is in use on {host}" if is_in_use else f"can't be used on {host} ({error.strerror})"
        raise SettingsError([f"port {port} {problem}; choose another with --port (the next port is used too)"]) from error
    return sockets


class ListeningPort:
    """Takes connections off bound sockets until it is closed."""

    def __init__(
        self,
        sockets: list[socket.socket],
        connections: Connections,
        make_protocol: Callable[[], ClientProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._sockets = sockets
        self._connections = connections
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        for bound in sockets:
            bound.setblocking(False)
            self._listen(bound)

    @property
    def number(self) -> int:
        """Its number."""
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Takes no more connections; those there are go on."""
        for bound in self._sockets:
            if bound.fileno() >= 0:
                self._loop.remove_reader(bound.fileno())
                bound.close()

    def _listen(self, bound: socket.socket) -> None:
        if bound.fileno() >= 0:
            self._loop.add_reader(bound.fileno(), self._accept, bound)

    def _pause(self, bound: socket.socket) -> None:
        """Takes no connection for a moment."""
        self._loop.remove_reader(bound.fileno())
        self._loop.call_later(_PAUSE_S, self._listen, bound)

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if not self._connections.is_ready:
                self._pause(bound)  # until those that were closed are gone
                return
            try:
                accepted, _ = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No descriptor or memory is left: who knocks waits in the system's queue.
                self._pause(bound)
                return
            accepted.setblocking(False)
            self._connections.take(accepted, self._make_protocol, self._tls)
