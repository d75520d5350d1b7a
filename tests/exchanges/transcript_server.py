"""The generic exchange: a WebSocket and HTTP server that plays the live sections of any transcript.

Invariant: it invents nothing. What it sends stands in the transcript, or is one of the faults named here, which every exchange must
stand: frames in pieces, frames in one go, a connection that is cut, JSON of a shape that nobody knows.
"""

from __future__ import annotations

import asyncio
import gzip
import struct
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import takewhile
from typing import NoReturn

import pytest
from aiohttp import WSMsgType, web

from tardis_machine.messages import Disconnect, ErrorMessage, Message
from tests.exchanges.transcript import Section, Step, Transcript, difference, frame_matches, path_matches, shown
from tests.servers.http_site import http_site

_SETTLE_S = 0.02
TIMEOUT_S = 5.0
ODD_FRAMES = ("null", "[]", "17", '"what"', "{}", '{"no":{"such":["thing"]}}')
"""JSON, but of no exchange's format."""
_PACKERS: dict[str, Callable[[str], bytes]] = {
    "gzip": lambda text: gzip.compress(text.encode()),
    "deflate": lambda text: zlib.compress(text.encode(), wbits=-15),
    "binary": str.encode,
    "hex": bytes.fromhex,
}
_WHEN_CUT = ("the connection broke", "can't send")
_CONTINUATION, _TEXT, _BINARY = 0, 1, 2


class Knock:
    """Somebody is at the door: a handshake or a request that is not answered yet."""

    def __init__(self, request: web.Request, method: str) -> None:
        self.request = request
        self.method = method
        self.answer: asyncio.Future[web.Response | None] = asyncio.get_running_loop().create_future()

    @property
    def is_there(self) -> bool:
        """Whether anybody still waits for an answer."""
        return not self.answer.done() and self.request.transport is not None and not self.request.transport.is_closing()


class OpenConnection:
    """One connection that was accepted."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self.path = request.path_qs
        self._transport = request.transport
        self._socket = socket
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.pings: asyncio.Queue[str] = asyncio.Queue()
        """What keeps it open; empty for a WebSocket ping."""
        self.writing = asyncio.Lock()
        """Held while a frame is on its way: none goes between the bytes of another."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def close(self, code: int, reason: str) -> None:
        await self._socket.close(code=code, message=reason.encode())

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class PlayedExchange:
    """Listens on a port of its own; what it answers is for its player to say."""

    def __init__(self, ping: Step | None) -> None:
        self.port = 0
        self._ping = ping
        self._knocks: list[Knock] = []
        self._changed = asyncio.Event()
        self._accepted: asyncio.Queue[OpenConnection] = asyncio.Queue()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        is_handshake = request.headers.get("Upgrade", "").lower() == "websocket"
        knock = Knock(request, "CONNECT" if is_handshake else request.method)
        self._knocks.append(knock)
        self._changed.set()
        refusal = await knock.answer
        if refusal is not None:
            return refusal
        socket = web.WebSocketResponse(autoping=False, timeout=0.1)
        await socket.prepare(request)
        connection = OpenConnection(request, socket)
        self._accepted.put_nowait(connection)
        async for frame in socket:
            if frame.type is WSMsgType.PING:
                async with connection.writing:
                    await socket.pong(frame.data)
                if self._ping is not None and not self._ping.text:
                    connection.pings.put_nowait("")
            elif frame.type is WSMsgType.TEXT:
                is_ping = self._ping is not None and self._ping.text and frame_matches(self._ping.text, frame.data)
                (connection.pings if is_ping else connection.heard).put_nowait(frame.data)
        return socket

    async def knock(self, method: str, path: str) -> Knock | None:
        """The next request of that method and path; None where there is none for too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    self._knocks = [knock for knock in self._knocks if knock.is_there]
                    for knock in self._knocks:
                        if knock.method == method and path_matches(path, knock.request.path_qs):
                            return knock
                    self._changed.clear()
                    await self._changed.wait()
        return None

    def waiting(self) -> list[str]:
        """Who else is at the door."""
        return [f"{knock.method} {knock.request.path_qs}" for knock in self._knocks if knock.is_there]

    async def accept(self, knock: Knock) -> OpenConnection:
        knock.answer.set_result(None)
        return await asyncio.wait_for(self._accepted.get(), TIMEOUT_S)


@asynccontextmanager
async def played_exchange(ping: Step | None) -> AsyncIterator[PlayedExchange]:
    """One that listens; gone at the end."""
    exchange = PlayedExchange(ping)
    async with http_site(exchange.handle) as exchange.port:
        yield exchange


def encode_frame(opcode: int, payload: bytes, is_last: bool = True) -> bytes:
    """A WebSocket frame as a server sends it."""
    head = bytes([opcode | (0x80 if is_last else 0)])
    size = len(payload)
    if size < 126:
        return head + bytes([size]) + payload
    return head + (b"\x7e" + struct.pack("!H", size) if size < 1 << 16 else b"\x7f" + struct.pack("!Q", size)) + payload


def encode_whole(step: Step) -> bytes:
    """The frame of a step."""
    if step.packing:
        return encode_frame(_BINARY, _PACKERS[step.packing](step.text))
    return encode_frame(_TEXT, step.text.encode())


def encode_in_pieces(step: Step) -> bytes:
    """The same as a frame and its continuation."""
    payload = _PACKERS[step.packing](step.text) if step.packing else step.text.encode()
    middle = len(payload) // 2
    first = encode_frame(_BINARY if step.packing else _TEXT, payload[:middle], is_last=False)
    return first + encode_frame(_CONTINUATION, payload[middle:])


class LiveReader:
    """Reads what comes out, message by message."""

    def __init__(self, stream: AsyncGenerator[list[Message], None]) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._stream = stream
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self._stream:
            for message in batch:
                self._messages.put_nowait(message)

    async def take(self) -> Message | None:
        """The next message; None where there is none for too long."""
        taking = asyncio.ensure_future(self._messages.get())
        await asyncio.wait([taking, self._reading], timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            return taking.result()
        taking.cancel()
        if self._reading.done():
            self._reading.result()
        return None

    async def stop(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._stream.aclose()


class Player:
    """Plays a section, line by line, and fails at the first that is not so."""

    def __init__(self, transcript: Transcript, section: Section, exchange: PlayedExchange, reader: LiveReader) -> None:
        self._transcript = transcript
        self._section = section
        self._exchange = exchange
        self._reader = reader
        self._connections: list[OpenConnection] = []
        # What is sent only with the next that is sent at once, and what it must give.
        self._held: list[tuple[OpenConnection, bytes]] = []
        self._owed: list[Step] = []
        # Connections that were accepted and not told as lost yet.
        self._untold = 0
        # How it is played.
        self._manner = ""

    async def play_all(self) -> None:
        """In every manner, one after the other. Each ends with all connections cut, so that the next begins with new ones."""
        for manner, play in (
            ("as it stands", self.play),
            ("frames in pieces", self.play_in_pieces),
            ("frames at once", self.play_at_once),
            ("cut and connected again", self.play_cut),
            ("with odd frames", self.play_odd),
        ):
            self._manner = manner
            await play()

    async def play(self) -> None:
        """As it stands."""
        await self._play(self._section.steps)
        await self._end()

    async def play_in_pieces(self) -> None:
        """Each frame in two, and these a few bytes at a time."""
        for place, step in enumerate(self._section.steps):
            if step.verb != "<":
                await self._do(step, self._section.steps[place + 1 :])
                continue
            data = encode_in_pieces(step)
            size = max(1, len(data) // 3)
            connection = self._current(step)
            async with connection.writing:
                for start in range(0, len(data), size):
                    connection.write(data[start : start + size])
                    await asyncio.sleep(0)
        await self._end()

    async def play_at_once(self) -> None:
        """Frames that follow each other arrive together."""
        steps = self._section.steps
        for place, step in enumerate(steps):
            if step.verb == "<":
                self._held.append((self._current(step), encode_whole(step)))
            elif step.verb == "=" and self._held:
                self._owed.append(step)
            else:
                await self._release()
                await self._do(step, steps[place + 1 :])
        await self._release()
        await self._end()

    async def play_cut(self) -> None:
        """Cut after the first message that came out, then as it stands: all is asked for again, and begins anew."""
        for place, step in enumerate(self._section.steps):
            if step.verb == "=" and step.message_type not in ("error", "disconnect"):
                await self._play(self._section.steps[: place + 1])
                await self._cut_all()
                break
        await self.play()

    async def play_odd(self) -> None:
        """With frames of no known shape, after which a connection may go on or not; nothing comes of them."""
        opening = list(takewhile(lambda step: step.verb != "<", self._section.steps))
        for frame in ODD_FRAMES:
            await self._play(opening)
            self._connections[-1].write(encode_frame(_TEXT, frame.encode()))
            await self._cut_all(after=frame)
        await self.play()

    async def _play(self, steps: Sequence[Step]) -> None:
        for place, step in enumerate(steps):
            await self._do(step, steps[place + 1 :])

    async def _do(self, step: Step, rest: Sequence[Step]) -> None:
        match step.verb:
            case "CONNECT" | "GET" | "POST":
                await self._answer(step, rest[0] if rest and rest[0].verb == "STATUS" else None)
            case "STATUS" | "WITH":
                pass  # the line before has it; the client has it
            case ">":
                await self._hear(step)
            case "PING":
                await self._hear_ping(step)
            case "<":
                self._current(step).write(encode_whole(step))
            case "=":
                await self._expect(step)
            case "ON":
                connection = next((one for one in self._connections if one.is_open and path_matches(step.text, one.path)), None)
                if connection is None:
                    self._fail(step, f"there is no connection to {step.text}")
                self._connections.remove(connection)
                self._connections.append(connection)
            case "CUT":
                self._current(step).cut()
            case "CLOSE":
                code, _, reason = step.text.partition(" ")
                await self._current(step).close(int(code), reason)

    def _current(self, step: Step) -> OpenConnection:
        if not self._connections:
            self._fail(step, "there is no connection")
        return self._connections[-1]

    async def _answer(self, step: Step, status: Step | None) -> None:
        path, *headers = step.text.split()
        knock = await self._exchange.knock(step.verb, path)
        if knock is None:
            self._fail(step, f"expected {step.verb} {path}\n     got {', '.join(self._exchange.waiting()) or 'nothing'}")
        for name, value in (header.split("=", 1) for header in headers):
            if knock.request.headers.get(name) != value:
                self._fail(step, f"expected the header {name}={value}\n     got {knock.request.headers.get(name)}")
        if status is not None:
            knock.answer.set_result(_response(status.text))
            # What was fetched is read before what is sent after it: both ends share this event loop.
            await asyncio.sleep(_SETTLE_S)
        elif step.verb == "CONNECT":
            self._connections = [one for one in self._connections if one.is_open]
            self._connections.append(await self._exchange.accept(knock))
            self._untold += 1
        else:
            self._fail(step, "an answer must stand below it")

    async def _hear(self, step: Step) -> None:
        try:
            frame = await asyncio.wait_for(self._current(step).heard.get(), TIMEOUT_S)
        except TimeoutError:
            self._fail(step, f"expected {step.text}\n     got nothing")
        if not frame_matches(step.text, frame):
            self._fail(step, f"expected {step.text}\n     got {frame}")

    async def _hear_ping(self, step: Step) -> None:
        try:
            await asyncio.wait_for(self._current(step).pings.get(), TIMEOUT_S)
        except TimeoutError:
            heard = self._current(step).heard
            self._fail(step, f"expected a ping {step.text}\n     got {heard.get_nowait() if heard.qsize() else 'nothing'}")

    async def _expect(self, step: Step) -> None:
        message = await self._reader.take()
        problem = difference(step, message)
        if problem:
            self._fail(step, problem)
        self._untold -= isinstance(message, Disconnect)

    async def _release(self) -> None:
        for connection in dict.fromkeys(connection for connection, _ in self._held):
            connection.write(b"".join(data for of, data in self._held if of is connection))
        owed, self._held, self._owed = self._owed, [], []
        for step in owed:
            await self._expect(step)

    async def _end(self) -> None:
        """Nothing more was said, and nothing more comes out but that the connections are gone."""
        for connection in self._connections:
            if connection.is_open and connection.heard.qsize():
                self._fail(self._section.steps[-1], f"after it, got the frame {connection.heard.get_nowait()}")
        await self._cut_all()

    async def _cut_all(self, after: str = "") -> None:
        """Each connection is told as lost, once, and nothing else is. What an odd frame causes, an error or an end, is its own affair."""
        if after:
            await asyncio.sleep(0.02)  # whoever gives up on it has the time to
        for connection in self._connections:
            connection.cut()
        self._connections.clear()
        while self._untold:
            message = await self._reader.take()
            if isinstance(message, ErrorMessage) and (after or message.code == "WS_SEND"):
                continue
            if not isinstance(message, Disconnect) or not (after or str(message.reason).startswith(_WHEN_CUT)):
                where = f"after {after}" if after else "at the end"
                got = "nothing" if message is None else shown(message)
                self._fail(self._section.steps[-1], f"expected {where}: disconnect\n     got {got}")
            self._untold -= 1

    def _fail(self, step: Step, problem: str) -> NoReturn:
        pytest.fail(f"{self._transcript.place(step.line)} ({self._manner}): {problem}", pytrace=False)


def _response(text: str) -> web.Response:
    status, _, rest = text.partition(" ")
    headers: dict[str, str] = {}
    while rest and rest[0] not in "{[" and "=" in rest.partition(" ")[0]:
        header, _, rest = rest.partition(" ")
        name, _, value = header.partition("=")
        headers[name] = value
    return web.Response(status=int(status), text=rest, headers=headers)
