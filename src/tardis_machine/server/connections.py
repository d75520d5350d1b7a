"""The connections of clients, on all ports: how many there may be, and how long one may wait before it asks for something.

A connection is silent until its first request is whole, is served while a request is answered, and rests between requests.

Invariant: at the limit a new connection takes the place of the one that has been silent or resting for longest; one that is being
served never loses its place. A connection counts from the moment it is accepted, so that TLS handshakes count too.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..telemetry import get_logger

__all__ = ["ClientProtocol", "Connections"]

log = get_logger("http")

# Silent connections, which need no token, may be one in so many.
_SILENT_SHARE = 8
_FEWEST_SILENT = 32
_MOST_LEAVING = 8
_LOG_INTERVAL_S = 30.0


class ClientProtocol(web.RequestHandler):
    """One connection, as aiohttp serves it; tells when it is lost."""

    __slots__ = ("_connections",)

    def __init__(self, connections: Connections, server: web.Server, options: dict[str, Any]) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol. It may have been given up on the way."""
        super().connection_made(transport)
        if not self._connections.knows(self):
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        self._connections.lose(self)


class Connections:
    """All connections there are, at most `most` of them."""

    def __init__(self, *, most: int, request_timeout_s: float) -> None:
        self._most = most
        self._most_silent = max(most // _SILENT_SHARE, min(most, _FEWEST_SILENT))
        self._request_timeout_s = request_timeout_s
        # By connection: what ends it when its first request does not come. The oldest is first.
        self._silent: dict[ClientProtocol, asyncio.TimerHandle] = {}
        # The one that rests for longest is first.
        self._resting: dict[ClientProtocol, None] = {}
        self._served: set[ClientProtocol] = set()
        # Those on their way from the accepted socket to a connection, which takes a moment, or with TLS a handshake.
        self._connecting: dict[ClientProtocol, asyncio.Task[None]] = {}
        self._shaking_hands: set[ClientProtocol] = set()
        # Those that were closed, and still have their descriptors.
        self._leaving: set[ClientProtocol] = set()
        self._refused = 0
        self._logged_at_s = float("-inf")

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._silent) + len(self._resting) + len(self._served)

    @property
    def is_ready(self) -> bool:
        """Whether another one may be accepted: not while many that were closed still have their descriptors."""
        return len(self._leaving) < _MOST_LEAVING

    def knows(self, protocol: ClientProtocol) -> bool:
        """Whether it has a place."""
        return protocol in self._silent or protocol in self._resting or protocol in self._served

    def take(self, accepted: socket.socket, make: Callable[[], ClientProtocol], tls: ssl.SSLContext | None) -> None:
        """Serves a socket that was accepted, or refuses it where there is no room."""
        if self.count >= self._most and not self._close_longest_waiting():
            self._refuse(accepted, in_words=tls is None)
            return
        if len(self._silent) >= self._most_silent:
            self._close(next(iter(self._silent)))
        loop = asyncio.get_running_loop()
        protocol = make()
        self._silent[protocol] = loop.call_later(self._request_timeout_s, self._close, protocol)
        task = loop.create_task(self._connect(accepted, protocol, tls))
        self._connecting[protocol] = task
        if tls is not None:
            self._shaking_hands.add(protocol)
        task.add_done_callback(lambda task: self._end_connecting(protocol, task))

    async def _connect(self, accepted: socket.socket, protocol: ClientProtocol, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        handshake_s = None if tls is None else self._request_timeout_s
        try:
            await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=handshake_s)
        except OSError as error:  # errors of TLS are of this kind, time-outs too
            log.debug("a connection was not made", error=str(error))

    def _end_connecting(self, protocol: ClientProtocol, task: asyncio.Task[None]) -> None:
        del self._connecting[protocol]
        self._shaking_hands.discard(protocol)
        if protocol.transport is None:
            self.lose(protocol)
        elif task.cancelled():
            # The loop closes what was cancelled without a word to the protocol, even if that had just been told of it.
            protocol.connection_lost(None)

    def _close_longest_waiting(self) -> bool:
        """Whether there was one that could be closed."""
        for waiting in (self._silent, self._resting):
            for protocol in waiting:
                self._close(protocol)
                return True
        return False

    def _close(self, protocol: ClientProtocol) -> None:
        self._forget(protocol)
        if protocol.transport is not None:
            self._leaving.add(protocol)
            # Not closed in order, which would wait for a client that does not read.
            protocol.transport.abort()
        elif protocol in self._connecting:
            self._leaving.add(protocol)
            if protocol in self._shaking_hands:
                self._connecting[protocol].cancel()

    def _refuse(self, accepted: socket.socket, *, in_words: bool) -> None:
        self._refused += 1
        with accepted:
            if in_words:
                accepted.setblocking(False)
                try:
                    accepted.send(self._refusal())
                    accepted.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it has left already
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_at_s >= _LOG_INTERVAL_S:
            self._logged_at_s = now_s
            log.warning("connections are refused, as there are too many", open=self.count, refused=self._refused)

    def _refusal(self) -> bytes:
        body = b'{"message":"max-connections: %d connections are open, and no more are allowed; try again later"}' % self.count
        return (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )

    def lose(self, protocol: ClientProtocol) -> None:
        """It is no more."""
        self._leaving.discard(protocol)
        self._forget(protocol)

    def _forget(self, protocol: ClientProtocol) -> None:
        timer = self._silent.pop(protocol, None)
        if timer is not None:
            timer.cancel()
        self._resting.pop(protocol, None)
        self._served.discard(protocol)

    def close(self) -> None:
        """Gives up those that are not made yet."""
        for task in self._connecting.values():
            task.cancel()
        for timer in self._silent.values():
            timer.cancel()

    def watch(self) -> Middleware:
        """Notes when the requests of connections begin and end."""

        @web.middleware
        async def note_request(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            protocol = request.protocol
            assert isinstance(protocol, ClientProtocol)
            self._forget(protocol)
            self._served.add(protocol)
            try:
                return await handler(request)
            finally:
                self._forget(protocol)
                if protocol.transport is not None:
                    self._resting[protocol] = None

        return note_request
