"""One client's WebSocket to a simulated exchange. It carries a dialogue, and misbehaves when told to.

Invariant: frames leave in the order in which they were queued, and the log holds only what was sent.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import deque
from collections.abc import Callable
from itertools import count

from aiohttp import WSMsgType, web

from .families import Dialogue, Frame, Hangup, Ping, parse
from .misbehaviour import Close, DropUpdates, ErrorFrame, Garbage, HalfFrame, Misbehaviour, Reset, Silence

__all__ = ["SimulatedConnection", "reset"]

_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_CLOSING_S = 1.0
_MOST_BUFFERED_BYTES = 64 << 20
_REQUEST = re.compile("subscribe|login|auth", re.IGNORECASE)
_GARBAGE = {
    "text": b"<html>502 Bad Gateway</html>",
    "shape": b'{"unexpected":[1,null,{"shape":true}]}',
    "utf8": b'{"caf\xe9":"\xff\xfe"}',
}
_identities = count(1)


class _Raw(bytes):
    """Bytes for the wire as they are."""


class SimulatedConnection:
    """One WebSocket of one client. Calls `log` with itself and the messages whenever it sends some."""

    def __init__(self, request: web.Request, dialogue: Dialogue, log: Callable[[SimulatedConnection, list[bytes]], None]) -> None:
        self.identity = next(_identities)
        self.dialogue = dialogue
        self.exchange = dialogue.venue.name
        self._request = request
        self._log = log
        self._socket = web.WebSocketResponse(autoping=False, autoclose=False, compress=dialogue.deflate, timeout=_CLOSING_S)
        self._queue: deque[Frame | _Raw] = deque()
        self._flushing = asyncio.Lock()
        self._silent_until_s = dialogue.venue.faults.silent_until_s
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def talk(self) -> web.WebSocketResponse:
        """Serves the client until either side ends it."""
        await self._socket.prepare(self._request)
        self._queue.extend(self.dialogue.greet())
        await self.flush()
        async for message in self._socket:
            if message.type is WSMsgType.TEXT:
                self._hear(message.data)
            elif message.type is WSMsgType.PING:
                self._queue.append(_Raw(_frame(_PONG, message.data)))
            elif message.type is WSMsgType.PONG:
                self.dialogue.hear_pong()
            await self.flush()
        self._end_transport()
        return self._socket

    async def pump(self, position: int) -> None:
        """Sends what became due."""
        if not self._socket.prepared or self._socket.closed or self._ended or self._is_silent:
            return
        self._queue.extend(self.dialogue.subscriptions.due(position))
        self._queue.extend(self.dialogue.tick())
        await self.flush()

    def misbehave(self, what: Misbehaviour) -> None:
        """Does to this connection what was told of it."""
        if isinstance(what, Silence):
            self.silence(what.seconds)
        elif isinstance(what, Close):
            self._break_silence()
            self._start(Hangup(what.code, what.reason))
        elif isinstance(what, Reset):
            reset(self._request)
        elif isinstance(what, HalfFrame):
            self._send_half(what)
        elif isinstance(what, Garbage):
            raw = b"\xff\xff\x00garbage" if what.form == "frame" else _frame(_TEXT, _GARBAGE[what.form])
            self._start(_Raw(raw))
        elif isinstance(what, ErrorFrame) and not what.instead_of_answers:
            self._start(*self.dialogue.error(what.error))
        elif isinstance(what, DropUpdates):
            self.dialogue.subscriptions.drop = what

    def silence(self, seconds: float | None) -> None:
        """Sends nothing for so long by the timer, None for good."""
        self._silent_until_s = float("inf") if seconds is None else self.dialogue.timer_s + seconds

    @property
    def _is_silent(self) -> bool:
        return self._silent_until_s > self.dialogue.timer_s

    def _break_silence(self) -> None:
        """What was held back is lost."""
        if self._is_silent:
            self._silent_until_s = 0.0
            self._queue.clear()

    def recover(self) -> None:
        """Forgets what it was told."""
        self._silent_until_s = 0.0
        self.dialogue.subscriptions.drop = None

    async def end(self) -> None:
        """Closes the socket, as the exchange goes away."""
        if self._socket.prepared and not self._socket.closed and not self._ended:
            await self._socket.close(code=1001)

    async def flush(self) -> None:
        """Sends what is queued, unless it is to be silent."""
        async with self._flushing:
            if self._is_silent:
                return
            batch: list[str | bytes | Ping | _Raw] = []
            while self._queue and not self._ended:
                frame = self._queue.popleft()
                if isinstance(frame, Hangup):
                    self._ended = True
                    batch.append(_Raw(_frame(_CLOSE, frame.code.to_bytes(2, "big") + frame.reason.encode())))
                    # The client is to answer; one that does not is not waited for.
                    asyncio.get_running_loop().call_later(_CLOSING_S, self._end_transport)
                    break
                batch.append(frame)
            await self._send(batch)

    async def _send(self, batch: list[str | bytes | Ping | _Raw]) -> None:
        """All in one write, but for messages that are to be compressed."""
        transport = self._request.transport
        if transport is None or transport.is_closing() or not batch:
            return
        if transport.get_write_buffer_size() > _MOST_BUFFERED_BYTES:
            reset(self._request)
            return
        self.dialogue.sent_s = self.dialogue.timer_s
        self._log(self, [_payload(frame) for frame in batch if isinstance(frame, str | bytes) and not isinstance(frame, _Raw)])
        if not self._socket.compress:
            transport.write(b"".join([_wire(frame) for frame in batch]))
            return
        for frame in batch:
            if isinstance(frame, Ping | _Raw):
                transport.write(_wire(frame))
            else:
                await self._socket.send_frame(_payload(frame), WSMsgType.TEXT)

    def _hear(self, text: str) -> None:
        self.dialogue.heard_s = self.dialogue.timer_s
        denied = self.dialogue.venue.faults.take_denial() if _REQUEST.search(text) else None
        self._queue.extend(self.dialogue.error(denied, parse(text)) if denied is not None else self.dialogue.hear(text))

    def _send_half(self, what: HalfFrame) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        whole = _frame(_TEXT, b'{"half":"' + b"x" * 400 + b'"}')
        transport.write(whole[: len(whole) // 2])
        if what.then == "close":
            transport.close()
        elif what.then == "reset":
            reset(self._request)
        else:
            self.silence(None)

    def _end_transport(self) -> None:
        """Hangs up at last; a client that closed first is answered by the socket itself."""
        if self._ended and self._request.transport is not None:
            self._request.transport.close()

    def _start(self, *frames: Frame | _Raw) -> None:
        self._queue.extend(frames)
        task = asyncio.create_task(self.flush())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def reset(request: web.Request) -> None:
    """Ends a connection with a TCP reset."""
    transport = request.transport
    if transport is not None:
        own = transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def _payload(frame: str | bytes) -> bytes:
    return frame.encode() if isinstance(frame, str) else frame


def _wire(frame: str | bytes | Ping | _Raw) -> bytes:
    if type(frame) is bytes:
        return _frame(_TEXT, frame)
    if isinstance(frame, _Raw):
        return frame
    return _frame(_PING, frame.payload) if isinstance(frame, Ping) else _frame(_TEXT, _payload(frame))


def _frame(opcode: int, payload: bytes) -> bytes:
    """A whole frame as servers send it, unmasked."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", 0x80 | opcode, 126, size) + payload
    return struct.pack("!BBQ", 0x80 | opcode, 127, size) + payload
