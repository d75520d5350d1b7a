"""A client that speaks bytes: for requests that no library would send, and for answers that must be seen as they come.

Invariant: it sends exactly what it was given, and waits for nothing longer than it was told.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

WS_TEXT, WS_CLOSE, WS_PING, WS_PONG = 1, 8, 9, 10


def http_get(path: str, options: Any = None, **headers: str) -> bytes:
    """A GET with options in its URL, after which the connection closes."""
    target = path if options is None else f"{path}?options={quote(options if isinstance(options, str) else json.dumps(options))}"
    lines = [
        f"GET {target} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def http_post(path: str, body: bytes, **headers: str) -> bytes:
    """A POST of a body, after which the connection closes."""
    named = {"Content-Length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        *(f"{name}: {value}" for name, value in named.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ws_get(target: str, **headers: str) -> bytes:
    """An offer to speak WebSocket."""
    named = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(b"sixteen bytes ok").decode(),
    } | headers
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def ws_frame(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True) -> bytes:
    """A frame as a client sends it."""
    size = len(payload)
    head = bytes([(0x80 if final else 0) | opcode])
    flag = 0x80 if masked else 0
    if size < 126:
        head += bytes([flag | size])
    elif size < 65_536:
        head += bytes([flag | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([flag | 127]) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


def status_of(answer: bytes) -> int | None:
    """The status of an HTTP answer; None when there is none."""
    head = answer.split(b" ", 2)
    return int(head[1]) if len(head) == 3 and head[0].startswith(b"HTTP/1.") and head[1].isdigit() else None


def body_of(answer: bytes) -> bytes:
    """The body of an answer that has a length or ends with its connection."""
    return answer.partition(b"\r\n\r\n")[2]


class RawClient:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Sends; a server that has hung up already is no error here."""
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def receive_all(self, timeout_s: float) -> tuple[bytes, bool]:
        """What comes until the server hangs up, and whether it did so in time."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(timeout_s):
                while part := await self.reader.read(1 << 16):
                    parts.append(part)
        except TimeoutError:
            return b"".join(parts), False
        except ConnectionError:
            pass
        return b"".join(parts), True

    async def read_frame(self) -> tuple[int, bytes]:
        """The next frame of the server: opcode and payload."""
        first, second = await self.reader.readexactly(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
        return first & 0x0F, await self.reader.readexactly(size)

    def abort(self) -> None:
        """Leaves without a word."""
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int, *, receive_buffer_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """A connection to a port of this machine; a small receive buffer makes a reader that is slow soon felt."""
    raw = socket.socket()
    if receive_buffer_bytes is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    limit = receive_buffer_bytes or 1 << 16
    reader, writer = await asyncio.open_connection(sock=raw, limit=limit)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
