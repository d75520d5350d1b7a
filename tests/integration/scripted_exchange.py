"""An exchange that does what a test tells it to, over a real WebSocket and real HTTP.

Invariant: it invents nothing: each frame that it sends is one that the test gave it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

from tests.servers.http_site import http_site

START_TIMEOUT_S = 40.0
"""A process has to start before there is a client, on a machine that may be busy."""


class Client:
    """One connection to it."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self.request = request
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, *messages: Any) -> None:
        for message in messages:
            if isinstance(message, bytes):
                await self.socket.send_bytes(message)
            else:
                await self.socket.send_str(message if isinstance(message, str) else json.dumps(message))

    async def hear(self) -> Any:
        """The next frame, parsed where it is JSON."""
        return await asyncio.wait_for(self.heard.get(), START_TIMEOUT_S)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self.socket.close(code=code, message=reason.encode())

    def cut(self) -> None:
        """Hangs up without a word."""
        assert self.request.transport is not None
        self.request.transport.abort()


class ScriptedExchange:
    """Hands out connections as they come; answers REST by path."""

    def __init__(self) -> None:
        self.port = 0
        self.clients: asyncio.Queue[Client] = asyncio.Queue()
        self.connected = 0
        # Statuses that the next handshakes are refused with.
        self.refusals: list[web.Response] = []
        # By path, what answers.
        self.rest: dict[str, Callable[[web.Request], web.Response]] = {}

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def client(self) -> Client:
        """The next connection."""
        return await asyncio.wait_for(self.clients.get(), START_TIMEOUT_S)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return self.rest[request.path](request)
        if self.refusals:
            return self.refusals.pop(0)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connected += 1
        client = Client(socket, request)
        self.clients.put_nowait(client)
        async for frame in socket:
            if frame.type is WSMsgType.TEXT:
                client.heard.put_nowait(json.loads(frame.data) if frame.data[:1] in "{[" else frame.data)
        return socket


@asynccontextmanager
async def scripted_exchange() -> AsyncIterator[ScriptedExchange]:
    """One that listens; gone at the end."""
    exchange = ScriptedExchange()
    async with http_site(exchange.handle) as exchange.port:
        yield exchange
