"""The WebSocket routes: `/ws-replay`, `/ws-replay-normalized` and `/ws-stream-normalized`.

Invariant: frames come finished from a worker and are written as they are; a client that reads slowly pauses its own replay and
nothing else, and is never cut while it reads. Live data does not wait: who has too much of it unread is sent away. Close codes: 1000
done, 1001 the server stops, 1008 a bad request or a client that is too slow, 1011 an error, 1013 too many live requests; with a reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from ..engine import Machine
from ..errors import BusyError, OptionsError, TardisMachineError
from ..exchanges import exchange_named
from ..filters import Filter
from ..messages import UNSET
from ..pipeline.request import RawRequest, parse_normalized_requests, parse_raw_request, parse_stream_requests
from ..processes.jobs.contract import Chunk
from ..telemetry import CONNECTIONS, get_logger, redact
from .http import read_options, request_id_of

log = get_logger("ws")

PING_INTERVAL_S = 30.0
# How long after its first connection a replay session waits for others, and for subscriptions.
SESSION_START_DELAY_S = 2.0
# How long a client may take to answer a good-bye.
CLOSE_TIMEOUT_S = 5.0
# The same where data was sent: megabytes of it may be on their way to a slow client, and hanging up early could cut them off.
CLOSE_AFTER_DATA_TIMEOUT_S = 300.0
MAX_REASON_BYTES = 123
# Live data that a client may have unread.
MAX_UNREAD_BYTES = 5 * 1024 * 1024


class Ending(NamedTuple):
    """How a connection ends: what its client is told."""

    code: int
    reason: str


DONE = Ending(WSCloseCode.OK, "WS replay finished")
TOO_SLOW = Ending(WSCloseCode.POLICY_VIOLATION, f"more than {MAX_UNREAD_BYTES >> 20} MiB of live data were unread")
STOPPING = Ending(WSCloseCode.GOING_AWAY, "the server is stopping")


def _refusal(error: OptionsError) -> Ending:
    return Ending(WSCloseCode.POLICY_VIOLATION, str(error))


class ClientConnection:
    """One client: finished frames out, with back-pressure; reads what it says, and pings it, for as long as it lasts.

    An asynchronous context: shakes hands at its start, and has said good-bye at its end.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        # Frames are made elsewhere, so they can't be compressed with this connection's state.
        self.socket = web.WebSocketResponse(compress=False, timeout=CLOSE_AFTER_DATA_TIMEOUT_S)
        self._close_timeout_s = CLOSE_TIMEOUT_S
        self._tasks: list[asyncio.Task[None]] = []
        # Called with what the client says.
        self.take: Callable[[bytes | str], None] = lambda _: None
        # Set when the client has left, or is to be sent away.
        self.gone = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            await self.socket.prepare(self._request)
        except ValueError:
            # aiohttp stumbles over bytes that are no text where it looks for words.
            raise web.HTTPBadRequest(reason="the WebSocket handshake is not valid text") from None
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._ping())]
        CONNECTIONS.labels(self._request.path).inc()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        CONNECTIONS.labels(self._request.path).dec()
        await self.close(STOPPING)  # does nothing where it was closed for a better reason

    async def write_frames(self, frames: bytes | memoryview) -> None:
        """Writes finished frames, and waits while the client has too much unread; one that has left gets nothing."""
        transport = self._request.transport
        if self.gone.is_set() or transport is None or transport.is_closing():
            return
        self._close_timeout_s = CLOSE_AFTER_DATA_TIMEOUT_S
        transport.write(frames)
        with suppress(ConnectionError):
            # aiohttp has no public way to wait for a transport that it did not write to itself.
            await self._request.protocol._drain_helper()

    def push_frames(self, frames: bytes | memoryview) -> bool:
        """Writes finished frames without waiting; whether the client keeps up."""
        transport = self._request.transport
        if self.gone.is_set() or transport is None or transport.is_closing():
            return True
        self._close_timeout_s = CLOSE_AFTER_DATA_TIMEOUT_S
        transport.write(frames)
        return transport.get_write_buffer_size() <= MAX_UNREAD_BYTES

    async def close(self, ending: Ending) -> None:
        """Says good-bye after everything that was written, and waits until the client has read it all and answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        reason = redact(ending.reason).encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(self._close_timeout_s):
                await self.socket.close(code=ending.code, message=reason.encode())

    async def _read(self) -> None:
        """Reads all the time, as only that finds out when the client leaves."""
        try:
            async for message in self.socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    self.take(message.data)
        finally:
            self.gone.set()

    async def _ping(self) -> None:
        """An answer is not awaited, as it may stand behind megabytes that are unread."""
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(PING_INTERVAL_S)
                await self.socket.ping()


class WsRoutes:
    """The handlers, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._connections: set[ClientConnection] = set()
        # Sessions that have not ended, by the key that clients chose, or by their only member.
        self._sessions: dict[str | Member, ReplaySession] = {}

    def add_to(self, app: web.Application) -> None:
        """Puts the routes into an application."""
        app.router.add_get("/ws-replay", self.replay, allow_head=False)
        app.router.add_get("/ws-replay-normalized", self.replay_normalized, allow_head=False)
        app.router.add_get("/ws-stream-normalized", self.stream_normalized, allow_head=False)
        app.on_shutdown.append(self._send_away)

    async def _send_away(self, _app: web.Application) -> None:
        """The server stops: every replay ends, and the handlers tell their clients."""
        for connection in self._connections:
            connection.gone.set()
        tasks = [session.task for session in self._sessions.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def replay_normalized(self, request: web.Request) -> web.StreamResponse:
        """Normalized history, a frame a message."""

        async def play(connection: ClientConnection) -> Ending:
            replays = parse_normalized_requests(await read_options(request))
            publish = self._machine.publishing(request.path, "ws", request_id_of(request))
            chunks = self._machine.replay(request.path, replays, form="frames", publish=publish)
            return await _play([connection], _write_all([connection], chunks))

        return await self._serve(request, play)

    async def stream_normalized(self, request: web.Request) -> web.StreamResponse:
        """Normalized live data, a frame a message, for as long as the client stays."""

        async def play(connection: ClientConnection) -> Ending:
            streams = parse_stream_requests(await read_options(request))
            request_id = request_id_of(request)
            chunks = self._machine.stream(request.path, streams, form="frames", transport="ws", request_id=request_id)
            return await _play([connection], _push_all(connection, chunks))

        return await self._serve(request, play)

    async def _serve(self, request: web.Request, play: Callable[[ClientConnection], Awaitable[Ending]]) -> web.StreamResponse:
        """Shakes hands, plays, and tells the client how it ended."""
        async with ClientConnection(request) as connection:
            self._connections.add(connection)
            try:
                ending = await play(connection)
            except OptionsError as error:
                ending = _refusal(error)
            finally:
                self._connections.discard(connection)
            await connection.close(ending)
            return connection.socket

    async def replay(self, request: web.Request) -> web.StreamResponse:
        """Raw history, as if live: the client subscribes in the exchange's own language."""
        async with ClientConnection(request) as connection:
            try:
                session = self._join(request.query.get("session"), Member(connection, request.query))
                await asyncio.wait([session.task])
                ending = STOPPING if session.task.cancelled() else session.task.result()
            except OptionsError as error:
                ending = _refusal(error)
            await connection.close(ending)
            return connection.socket

    def _join(self, given: str | None, member: Member) -> ReplaySession:
        key = given or member
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = ReplaySession(self._machine)
            session.task.add_done_callback(lambda _: self._sessions.pop(key, None))
        session.add(member)
        return session


class Member:
    """One connection of a replay session, and what it subscribed to."""

    def __init__(self, connection: ClientConnection, query: Mapping[str, str]) -> None:
        self.connection = connection
        # Checked now, so that a mistake is told at once; the filters come later, from its subscriptions.
        self._request = parse_raw_request({name: query.get(name) for name in ("exchange", "from", "to")})
        self._exchange = exchange_named(self._request.exchange)
        # None until there was a subscription; it may name nothing that was recorded.
        self._filters: list[Filter] | None = None
        connection.take = self._subscribe

    def _subscribe(self, frame: bytes | str) -> None:
        """Takes a subscription; what is none, or not understood, is passed over, as an exchange would."""
        try:
            message = orjson.loads(frame)
            filters = self._exchange.subscriptions(message, self._request.from_us) if isinstance(message, (dict, list)) else None
            if filters is not None:
                self._filters = [*(self._filters or ()), *_checked(filters)]
        except orjson.JSONDecodeError:
            return
        except Exception as error:
            log.warning("a subscription was not understood", exchange=self._exchange.name, error=repr(error)[:200])

    def request(self) -> RawRequest:
        """What to replay to it."""
        if self._filters is None:
            raise OptionsError(f"{self._exchange.name}: no subscription was received within {SESSION_START_DELAY_S:g} seconds")
        request = self._request
        # No filter would mean everything: who subscribed only to what was not recorded gets an empty replay.
        to_us = request.to_us if self._filters or self._exchange.subscribes_to_all else request.from_us
        return RawRequest(exchange=request.exchange, from_us=request.from_us, to_us=to_us, filters=self._filters)


def _checked(filters: Sequence[Filter]) -> Sequence[Filter]:
    """A client may send anything where an exchange expects a name."""
    for item in filters:
        for name in (item.channel, *(() if item.symbols is UNSET else item.symbols)):
            if not isinstance(name, str):
                raise TypeError(f"{name!r} is not the name of a channel or a symbol")
    return filters


class ReplaySession:
    """Connections that replay in step. It starts a moment after the first of them, and takes no more then."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._members: list[Member] = []
        self._started = False
        # Its result is how every connection ends.
        self.task = asyncio.create_task(self._run())

    def add(self, member: Member) -> None:
        """Takes another connection in."""
        if self._started:
            raise OptionsError("session: this session has already started; connections can join it only before that", "session")
        self._members.append(member)

    async def _run(self) -> Ending:
        await asyncio.sleep(SESSION_START_DELAY_S)
        self._started = True
        members = [member for member in self._members if not member.connection.gone.is_set()]
        if not members:
            return STOPPING
        try:
            requests = [member.request() for member in members]
        except OptionsError as error:
            return _refusal(error)
        connections = [member.connection for member in members]
        return await _play(connections, _write_all(connections, self._machine.replay("/ws-replay", requests, form="frames")))


async def _play(connections: Sequence[ClientConnection], work: Coroutine[Any, Any, Ending]) -> Ending:
    """Writes to connections until all is sent, something fails, or nobody is left."""
    writing = asyncio.create_task(work)
    leaving = asyncio.create_task(_all_gone(connections))
    try:
        await asyncio.wait([writing, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            return STOPPING
        return await writing
    except OptionsError as error:
        return _refusal(error)
    except BusyError as error:
        return Ending(WSCloseCode.TRY_AGAIN_LATER, str(error))
    except TardisMachineError as error:
        log.error("a WebSocket replay failed", error=str(error))
        return Ending(WSCloseCode.INTERNAL_ERROR, str(error))
    except Exception as error:
        log.exception("a WebSocket replay met an internal error", cause=error)
        return Ending(WSCloseCode.INTERNAL_ERROR, "an internal error ended this replay")
    finally:
        writing.cancel()
        leaving.cancel()
        await asyncio.gather(writing, leaving, return_exceptions=True)


async def _write_all(connections: Sequence[ClientConnection], chunks: AsyncGenerator[Chunk, None]) -> Ending:
    """Writes each chunk to the connection it is for, at the pace of whoever reads it."""
    async with aclosing(chunks):
        async for chunk in chunks:
            await connections[chunk.request].write_frames(chunk.data)
    return DONE


async def _push_all(connection: ClientConnection, chunks: AsyncGenerator[Chunk, None]) -> Ending:
    """Writes chunks as they come, for as long as the client keeps up."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if not connection.push_frames(chunk.data):
                return TOO_SLOW
    return STOPPING


async def _all_gone(connections: Sequence[ClientConnection]) -> None:
    for connection in connections:
        await connection.gone.wait()
