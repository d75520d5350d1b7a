"""The WebSocket routes: `/ws-replay`, `/ws-replay-normalized` and `/ws-stream-normalized`.

Invariant: frames come finished from a worker and are written as they are; a client that reads slowly pauses its own replay and
nothing else, and is never cut while it reads. Live data does not wait: who has too much of it unread is sent away. Close codes: 1000
done, 1001 the server stops, 1008 a bad request or a client that is too slow, 1009 a frame that is too large, 1011 an error, 1012 a fault
on purpose, 1013 too many requests; with a reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

import orjson
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import structs

from ..engine import Machine
from ..errors import BusyError, FaultError, OptionsError, PausedError, TardisMachineError
from ..exchanges import exchange_named
from ..filters import Filter, merge_filters
from ..messages import UNSET
from ..pipeline.frames import to_text_frames
from ..pipeline.limits import RequestLimits, option_of
from ..pipeline.playback import Playback, agreed_playback
from ..pipeline.request import (
    NormalizedRequest,
    RawRequest,
    SinceRequest,
    parse_raw_request,
    parse_replay_requests,
    parse_stream_requests,
)
from ..player.player import Player
from ..processes.jobs.contract import Chunk
from ..telemetry import CONNECTIONS, get_logger, redact
from .http import CLOSE_CODE, request_id_of
from .replays import answer_to_control, control_in
from .request_options import OptionsReader, query_of
from .token import PROTOCOL

log = get_logger("ws")

PING_INTERVAL_S = 30.0
# How long after its first connection a replay session waits for others, and for subscriptions.
SESSION_START_DELAY_S = 2.0
# How long a client may take to answer a good-bye.
CLOSE_TIMEOUT_S = 5.0
# The same where data was sent: megabytes of it may be on their way to a slow client, and hanging up early could cut them off.
CLOSE_AFTER_DATA_TIMEOUT_S = 300.0
MAX_REASON_BYTES = 123
# A frame that is too large is read to its end all the same, up to so many times the limit.
READ_AND_REFUSED = 4
# Live data that a client may have unread.
MAX_UNREAD_BYTES = 5 * 1024 * 1024
# Who has more unread is not told what came of its controls.
MAX_UNREAD_WITH_ANSWERS_BYTES = 1024 * 1024


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

    def __init__(self, request: web.Request, limits: RequestLimits) -> None:
        self._request = request
        self._max_frame_bytes = limits.max_subscription_bytes
        # Frames are made elsewhere, so they can't be compressed with this connection's state. What is read and refused can be answered,
        # what is not read at all makes the kernel hang up before the answer.
        self.socket = web.WebSocketResponse(
            protocols=(PROTOCOL,),
            compress=False,
            timeout=CLOSE_AFTER_DATA_TIMEOUT_S,
            max_msg_size=READ_AND_REFUSED * self._max_frame_bytes,
        )
        self._close_timeout_s = CLOSE_TIMEOUT_S
        self._tasks: list[asyncio.Task[None]] = []
        # Called with what the client says, while somebody wants to know.
        self.take: Callable[[bytes | str], Awaitable[None]] | None = None
        # Set when the client has left, or is to be sent away.
        self.gone = asyncio.Event()
        # Why it is sent away, where that is its own doing.
        self._refusal: Ending | None = None

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

    def steer(self, player: Player | None) -> None:
        """From now on controls that the client sends go to its player; all else that it says is passed over."""

        async def take(frame: bytes | str) -> None:
            if (control := control_in(frame)) is not None:
                self.answer(control, player)

        self.take = take

    def answer(self, control: Any, player: Player | None) -> None:
        """Has a player obey a control, where there is one, and tells the client what came of it, as long as it reads.

        Nobody waits for one that does not: what it says next would pile up.
        """
        answer, transport = answer_to_control(control, player), self._request.transport
        if transport is not None and transport.get_write_buffer_size() <= MAX_UNREAD_WITH_ANSWERS_BYTES:
            self.push_frames(to_text_frames([answer]))

    def push_frames(self, frames: bytes | memoryview) -> bool:
        """Writes finished frames without waiting; whether the client keeps up."""
        transport = self._request.transport
        if self.gone.is_set() or transport is None or transport.is_closing():
            return True
        self._close_timeout_s = CLOSE_AFTER_DATA_TIMEOUT_S
        transport.write(frames)
        return transport.get_write_buffer_size() <= MAX_UNREAD_BYTES

    async def until_gone(self, task: asyncio.Task[Any]) -> None:
        """Waits for the end of a task, but not longer than the client stays."""
        leaving = asyncio.create_task(self.gone.wait())
        try:
            await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()

    def refuse(self, ending: Ending) -> None:
        """Has the client sent away."""
        self.take = None
        self._refusal = self._refusal or ending
        self.gone.set()

    async def close(self, ending: Ending) -> None:
        """Says good-bye after everything that was written, and waits until the client has read it all and answered."""
        ending = self._refusal or ending
        transport = self._request.transport
        if transport is not None and not transport.is_closing() and not self.socket.closed:
            self._request[CLOSE_CODE] = ending.code
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
                    if len(message.data) > self._max_frame_bytes:
                        sentence = f"expected frames of at most {self._max_frame_bytes} bytes, got {len(message.data)}"
                        option = option_of("max_subscription_bytes")
                        self.refuse(Ending(WSCloseCode.MESSAGE_TOO_BIG, f"{sentence}; {option} allows more"))
                    elif self.take is not None:
                        await self.take(message.data)
                        await asyncio.sleep(0)  # thousands of frames may have come at once
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

    def __init__(self, machine: Machine, reader: OptionsReader) -> None:
        self._machine = machine
        self._reader = reader
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
        """Normalized history, a frame a message, which may go on live."""

        async def play(connection: ClientConnection) -> Ending:
            asked = await self._reader.read(request, parse_replay_requests)
            since = [each for each in asked if isinstance(each, SinceRequest)]
            if since:
                request_id = request_id_of(request)
                chunks = self._machine.replay_since(
                    request.path,
                    since,
                    form="frames",
                    transport="ws",
                    request_id=request_id,
                    parent=request.headers.get("traceparent"),
                )
                return await _play([connection], _write_all([connection], chunks))
            replays = [each for each in asked if isinstance(each, NormalizedRequest)]
            publish = self._machine.publishing(
                request.path, "ws", request_id_of(request), parent=request.headers.get("traceparent")
            )
            player = self._machine.players.make(request.path, replays)
            connection.steer(player)
            chunks = self._machine.replay(request.path, replays, form="frames", publish=publish, player=player)
            return await _play([connection], _write_all([connection], chunks))

        return await self._serve(request, play)

    async def stream_normalized(self, request: web.Request) -> web.StreamResponse:
        """Normalized live data, a frame a message, for as long as the client stays."""

        async def play(connection: ClientConnection) -> Ending:
            streams = await self._reader.read(request, parse_stream_requests)
            request_id = request_id_of(request)
            chunks = self._machine.stream(request.path, streams, form="frames", transport="ws", request_id=request_id)
            return await _play([connection], _push_all(connection, chunks))

        return await self._serve(request, play)

    async def _serve(self, request: web.Request, play: Callable[[ClientConnection], Awaitable[Ending]]) -> web.StreamResponse:
        """Shakes hands, plays, and tells the client how it ended."""
        async with ClientConnection(request, self._reader.limits) as connection:
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
        async with ClientConnection(request, self._reader.limits) as connection:
            try:
                query = query_of(request)
                session = self._join(query.get("session"), Member(connection, query, self._reader))
                await connection.until_gone(session.task)
                # A session goes on without those who leave.
                is_over = session.task.done() and not session.task.cancelled()
                ending = session.task.result() if is_over else STOPPING
            except OptionsError as error:
                ending = _refusal(error)
            await connection.close(ending)
            return connection.socket

    def _join(self, given: str | None, member: Member) -> ReplaySession:
        key = given or member
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = ReplaySession(self._machine, self._reader.limits)
            session.task.add_done_callback(lambda _: self._sessions.pop(key, None))
        session.add(member)
        return session


class Member:
    """One connection of a replay session, and what it subscribed to."""

    def __init__(self, connection: ClientConnection, query: Mapping[str, str], reader: OptionsReader) -> None:
        self.connection = connection
        self._limits = reader.limits
        self._reader = reader
        # Checked now, so that a mistake is told at once; the filters come later, from its subscriptions.
        self._request = parse_raw_request(_options_in(query))
        self._exchange = exchange_named(self._request.exchange)
        # None until there was a subscription; it may name nothing that was recorded.
        self._filters: list[Filter] | None = None
        # How many symbols these name, and in how many frames they came.
        self._symbols = self._frames = 0
        # Held while a subscription is being read, which on a busy machine takes a while.
        self.subscribing = asyncio.Lock()
        connection.take = self._subscribe

    @property
    def playback(self) -> Playback:
        """How it wants to be played."""
        return self._request.playback

    async def _subscribe(self, frame: bytes | str) -> None:
        """Takes a subscription; what is none, or not understood, is passed over, as an exchange would."""
        if (control := control_in(frame)) is not None:
            self.connection.answer(control, None)
            return
        try:
            self._frames += 1
            self._limits.check("max_subscriptions", self._frames, "subscriptions", "frames")
            async with self.subscribing:
                filters = await self._reader.in_turn(len(frame), lambda: self._parse(frame))
                if filters is not None:
                    self._filters = self._filters or []
                    self._filters.extend(filters)
        except OptionsError as error:
            self.connection.refuse(_refusal(error))
        except orjson.JSONDecodeError:
            return
        except Exception as error:
            log.warning("a subscription was not understood", exchange=self._exchange.name, error=repr(error)[:200])

    def _parse(self, frame: bytes | str) -> Sequence[Filter] | None:
        """The filters of a subscription, merged; None where it is none."""
        message = orjson.loads(frame)
        filters = self._exchange.subscriptions(message, self._request.from_us) if isinstance(message, (dict, list)) else None
        if filters is None:
            return None
        filters = [_listed(item) for item in filters]
        count = len(self._filters or ()) + len(filters)
        self._limits.check("max_filters", count, "subscriptions", "filters")
        # Before they are looked at: several filters may share a list.
        self._symbols += sum(len(item.symbols) for item in filters if item.symbols is not UNSET)
        self._limits.check("max_symbols", self._symbols, "subscriptions", "symbols")
        return [item for item in _checked(filters) if item.channel in self._exchange.channels]

    def request(self) -> RawRequest:
        """What to replay to it; it subscribes to no more from now on."""
        self.connection.take = None
        if self._filters is None:
            raise OptionsError(f"{self._exchange.name}: no subscription was received within {SESSION_START_DELAY_S:g} seconds")
        if not self._filters and not self._exchange.subscribes_to_all:
            channels = ", ".join(self._exchange.channels)
            raise OptionsError(f"nothing that was subscribed to was recorded; {self._exchange.name} has {channels}")
        request, filters = self._request, merge_filters(self._filters)
        return structs.replace(request, filters=filters)


def _options_in(query: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a raw request that stand in a URL."""
    options: dict[str, Any] = {name: query.get(name) for name in ("exchange", "from", "to", "speed", "faults")}
    try:
        options["faults"] = orjson.loads(options["faults"] or "null")
    except orjson.JSONDecodeError as error:
        raise OptionsError(f"faults: expected a JSON object, but it is not valid JSON ({error})", "faults") from None
    return options


def _listed(item: Filter) -> Filter:
    """A filter's one symbol may stand without its list. Where the frame named none there may be a null: that is every symbol."""
    if isinstance(item.symbols, str):
        return Filter(item.channel, [item.symbols])
    is_every = item.symbols is not UNSET and list[Any](item.symbols) == [None]
    return Filter(item.channel) if is_every else item


def _checked(filters: Sequence[Filter]) -> Sequence[Filter]:
    """A client may send anything where an exchange expects a name."""
    for item in filters:
        for name in (item.channel, *(() if item.symbols is UNSET else item.symbols)):
            if not isinstance(name, str):
                raise TypeError(f"{name!r} is not the name of a channel or a symbol")
    return filters


class ReplaySession:
    """Connections that replay in step. It starts a moment after the first of them, and takes no more then."""

    def __init__(self, machine: Machine, limits: RequestLimits) -> None:
        self._machine = machine
        self._limits = limits
        self._members: list[Member] = []
        self._started = False
        # Its result is how every connection ends.
        self.task = asyncio.create_task(self._run())

    def add(self, member: Member) -> None:
        """Takes another connection in."""
        if self._started:
            raise OptionsError("session: this session has already started; connections can join it only before that", "session")
        self._limits.check("max_merged_requests", len(self._members) + 1, "session", "connections")
        agreed_playback([*(other.playback for other in self._members), member.playback])
        self._members.append(member)

    async def _run(self) -> Ending:
        await asyncio.sleep(SESSION_START_DELAY_S)
        for member in list(self._members):
            async with member.subscribing:
                pass
        self._started = True
        members = [member for member in self._members if not member.connection.gone.is_set()]
        if not members:
            return STOPPING
        try:
            requests = [member.request() for member in members]
        except OptionsError as error:
            return _refusal(error)
        connections = [member.connection for member in members]
        player = self._machine.players.make(
            "/ws-replay", requests, lambda: sum(not connection.gone.is_set() for connection in connections)
        )
        for connection in connections:
            connection.steer(player)
        chunks = self._machine.replay("/ws-replay", requests, form="frames", player=player)
        return await _play(connections, _write_all(connections, chunks))


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
    except FaultError as error:
        return Ending(WSCloseCode.SERVICE_RESTART, str(error))
    except PausedError as error:
        return Ending(WSCloseCode.POLICY_VIOLATION, str(error))
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
