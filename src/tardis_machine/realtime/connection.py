"""One connection to an exchange, kept up: connects, subscribes, listens, and does it all again when it is lost.

Invariant: what the receiver takes is in the order in which it arrived, with nothing missing between two losses that were told. A
connection that was made and is no more is always told as lost, one that could not be made never is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from random import random
from typing import Any, NamedTuple, Protocol

import aiohttp

from .._version import __version__
from ..errors import NormalizeError
from ..exchanges import Action, Credentials, Exchange, Feed, Fetch, FrameKind, Json, LiveApi, kind_of_error
from ..filters import Filter
from ..messages import ErrorCode
from ..recorded_line import to_clock, to_line
from ..telemetry import get_logger
from .backoff import Backoff, Timings
from .clock import now_us, recorded_now
from .endpoints import rest_url, socket_url
from .frame_runs import RunSocket
from .troubles import Trouble, Troubles

__all__ = ["Arrivals", "Connection", "Listener", "open_session"]

log = get_logger("realtime")

MAX_MESSAGE_BYTES = RunSocket.limit_bytes
# Of an answer with a token.
MAX_ACCESS_BYTES = 1024 * 1024
# What is read of an answer that refuses.
MAX_REFUSAL_BYTES = 64 * 1024
# At most so many messages are handed on at once, so that other connections have their turn.
MAX_ARRIVALS = 1_000
MAX_FETCHES = 4
# Snapshots in a row that did not fit, until the connection is made anew.
MAX_UNFIT = 10
_DAY_US = 86_400_000_000
# How often it is looked whether the clock was set.
_CLOCK_CHECK_S = 60.0
_CODES: Mapping[str, ErrorCode] = {"auth": "SOURCE_AUTH", "rate_limit": "SOURCE_RATE_LIMIT"}
_BANNED = 418
_REFUSALS: Mapping[int, ErrorCode] = {
    401: "SOURCE_AUTH",
    403: "SOURCE_AUTH",
    _BANNED: "SOURCE_RATE_LIMIT",
    429: "SOURCE_RATE_LIMIT",
}
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


class Arrivals:
    """Messages in the order of their arrival. What one read of the socket brought arrived at one time."""

    __slots__ = ("_clock", "_stamp", "clocks", "messages", "raws", "stamps")

    def __init__(self) -> None:
        # The recorder's time of what is added next, as it writes it and as messages show it.
        self._stamp = b""
        self._clock = ""
        self.stamps: list[bytes] = []
        """The recorder's time of each, as it writes it."""
        self.clocks: list[str] = []
        """The same as messages show it."""
        self.raws: list[bytes] = []
        self.messages: list[Json] = []
        """What was parsed of each."""

    def look_at_clock(self) -> None:
        """What is added from here on arrives now."""
        now = recorded_now()
        self._stamp = now.encode()
        self._clock = to_clock(now)

    def add(self, raws: Sequence[bytes], messages: Sequence[Json]) -> None:
        """Messages that arrived."""
        self.stamps += [self._stamp] * len(raws)
        self.clocks += [self._clock] * len(raws)
        self.raws += raws
        self.messages += messages

    def lines(self, count: int | None = None) -> list[bytes]:
        """The first of them as the history API records them."""
        return [to_line(stamp, raw) for stamp, raw in zip(self.stamps[:count], self.raws, strict=False)]


class Listener(Protocol):
    """Whoever hears what happens on one connection. Nothing here waits but `ready`."""

    def take(self, arrivals: Arrivals) -> None:
        """Messages arrived. Raises NormalizeError where one can't be taken; the connection is then made anew."""

    def lost(self, reason: str, close_code: int | None) -> None:
        """The connection is no more; messages after this are of another one."""

    def failed(self, trouble: Trouble) -> None:
        """Something went wrong."""

    @property
    def is_full(self) -> bool:
        """Whether so much is unread that listening has to pause."""

    async def ready(self) -> None:
        """Waits until it is full no more."""


class _Ending(NamedTuple):
    """Why a connection ended."""

    reason: str
    close_code: int | None = None
    limited: bool = False
    """The exchange was asked too often."""
    wait_s: float = 0.0
    """As long as it says itself."""
    is_ours: bool = False
    """It was ended to be made anew at once."""


def open_session(urls: Mapping[str, str], timings: Timings) -> aiohttp.ClientSession:
    """What all connections of a stream go through: a proxy, where the environment names one and no address is given."""
    return aiohttp.ClientSession(
        trust_env=not urls,
        ws_response_class=RunSocket,
        # Some exchanges refuse what does not begin as a browser's.
        headers={"User-Agent": f"Mozilla/5.0 (compatible; tardis-machine/{__version__})"},
        timeout=aiohttp.ClientTimeout(total=30.0, sock_connect=timings.connect_timeout_s),
    )


class Connection:
    """Keeps one connection up for as long as `run` runs."""

    def __init__(
        self,
        exchange: Exchange,
        filters: Sequence[Filter],
        receiver: Listener,
        session: aiohttp.ClientSession,
        *,
        timeout_s: float,
        urls: Mapping[str, str],
        timings: Timings,
        credentials: Credentials | None = None,
        is_daily: bool = False,
    ) -> None:
        """`is_daily`: it is made anew at the start of each day, so that what is recorded of a day begins with whole books."""
        assert exchange.live is not None
        self.exchange = exchange.name
        self.live: LiveApi = exchange.live
        self.filters = filters
        self.receiver = receiver
        self.session = session
        self.timeout_s = timeout_s
        """How long a connection may be without data; 0: for ever."""
        self.urls = urls
        self.timings = timings
        self.credentials = credentials
        self.is_daily = is_daily
        self.troubles = Troubles(timings.summary_s)
        self.backoff = Backoff(timings)

    async def run(self) -> None:
        """Never returns; ends when it is cancelled."""
        try:
            while True:
                ending = await self._attempt()
                if ending.is_ours:
                    continue
                wait_s = self.backoff.next_s(limited=ending.limited, at_least_s=ending.wait_s)
                log.debug("connecting again", exchange=self.exchange, reason=ending.reason, wait_s=round(wait_s, 3))
                await asyncio.sleep(wait_s)
        finally:
            self._tell(self.troubles.end())

    async def _attempt(self) -> _Ending:
        feed = self.live.feed(self.exchange, self.filters, self.credentials)
        try:
            async with asyncio.timeout(self.timings.connect_timeout_s):
                socket = await self._connect(feed)
        except _FAILURES as error:
            return self._not_connected(error)
        ending = await _Attempt(self, feed, socket).run()
        log.warning("connection lost", exchange=self.exchange, reason=ending.reason, close_code=ending.close_code)
        self.receiver.lost(ending.reason, ending.close_code)
        return ending

    async def _connect(self, feed: Feed) -> aiohttp.ClientWebSocketResponse[Any]:
        access = await self._fetch_access(feed)
        try:
            handshake = feed.handshake(access, now_us())
        except (LookupError, TypeError, ValueError) as error:
            if access is None:
                raise
            # What was fetched may be secret: only the kind of error is told.
            raise aiohttp.ClientPayloadError(
                f"the answer to the request for access makes no sense: {type(error).__name__}"
            ) from None
        url = socket_url(self.exchange, self.live, handshake, self.urls)
        socket = await self.session.ws_connect(
            url,
            timeout=aiohttp.ClientWSTimeout(ws_close=self.timings.close_timeout_s),
            max_msg_size=MAX_MESSAGE_BYTES,
            decode_text=False,
            headers=handshake.headers,
        )
        log.info("connected", exchange=self.exchange, url=url.partition("?")[0])  # a query may hold a token
        return socket

    async def _fetch_access(self, feed: Feed) -> bytes | None:
        request = feed.access_request(now_us())
        if request is None:
            return None
        url = rest_url(self.exchange, self.live, request.path, self.urls)
        async with self.session.request(request.method, url, headers=request.headers) as response:
            response.raise_for_status()
            return await _read_body(response, MAX_ACCESS_BYTES)

    def _not_connected(self, error: Exception) -> _Ending:
        details = f"can't connect: {_said(error)}"
        code: ErrorCode = "WS_CONNECT"
        wait_s = 0.0
        if isinstance(error, aiohttp.ClientResponseError):
            code, wait_s = _REFUSALS.get(error.status, code), self.asked_wait_s(error.status, error.headers)
        self.fail(code, details)
        return _Ending(details, None, code == "SOURCE_RATE_LIMIT", wait_s)

    def asked_wait_s(self, status: int, headers: Mapping[str, str] | None) -> float:
        """How long a refusal asks to wait."""
        given = headers.get("Retry-After", "") if headers else ""
        if given.isdecimal():
            return float(given)
        return self.timings.banned_s if status == _BANNED else 0.0

    def fail(self, code: ErrorCode | None, details: str) -> None:
        """Something went wrong: told, or counted."""
        self._tell(self.troubles.add(code, details, asyncio.get_running_loop().time()))

    def settle(self) -> None:
        """Tells what was counted for long enough."""
        self._tell(self.troubles.settle(asyncio.get_running_loop().time()))

    def works(self) -> None:
        """Data arrives on a new connection."""
        self.backoff.reset()
        self._tell(self.troubles.recover())

    def _tell(self, troubles: Sequence[Trouble]) -> None:
        for trouble in troubles:
            log.warning("live feed error", exchange=self.exchange, **trouble._asdict())
            self.receiver.failed(trouble)


class _Attempt:
    """One connection, from its handshake to its end."""

    def __init__(self, owner: Connection, feed: Feed, socket: aiohttp.ClientWebSocketResponse[Any]) -> None:
        self._owner = owner
        self._receiver = owner.receiver
        self._feed = feed
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        # Set when the connection has to end, or has.
        self._ended: asyncio.Future[_Ending] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        # What arrived and was not handed on yet.
        self._arrivals = Arrivals()
        # Whether one of them could not be taken: those behind it are of a connection that is no more.
        self._is_spoiled = False
        # When there was data; None before the first.
        self._data_at_s: float | None = None
        self._fetching = asyncio.Semaphore(MAX_FETCHES)
        # Until when nothing is to be fetched.
        self._fetch_at_s = 0.0

    async def run(self) -> _Ending:
        try:
            self._start(self._read())
            self._start(self._subscribe())
            self._start(self._keep_alive())
            if self._owner.timeout_s:
                self._start(self._watch())
            if self._owner.is_daily:
                self._start(self._see_midnight())
            return await self._ended
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._hand_on()
            await self._socket.close()

    def _start(self, work: Coroutine[Any, Any, _Ending | None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never runs its work.
        task.add_done_callback(lambda _: work.close())

    async def _guarded(self, work: Coroutine[Any, Any, _Ending | None]) -> None:
        """What a task returns ends the connection, and what it did not expect too: the exchange said what nobody understands."""
        try:
            ending = await work
        except Exception as error:
            ending = _Ending(f"a message was not understood: {type(error).__name__}: {error}"[:500])
        if ending is not None:
            self._end(ending)

    def _end(self, ending: _Ending) -> None:
        if not self._ended.done():
            self._ended.set_result(ending)

    # what is said

    async def _subscribe(self) -> _Ending | None:
        return await self._act(self._feed.subscribe(now_us()))

    async def _act(self, actions: Sequence[Action]) -> _Ending | None:
        """Sends the frames and begins to fetch the rest."""
        for action in actions:
            if isinstance(action, Fetch):
                self._start(self._fetch(action))
                continue
            if ending := await self._send(action):
                return ending
            await asyncio.sleep(self._feed.subscribe_interval_s)
        return None

    async def _keep_alive(self) -> _Ending | None:
        while True:
            await asyncio.sleep(self._feed.ping_interval_s)
            self._owner.settle()
            if ending := await self._send(self._feed.ping(now_us())):
                return ending

    async def _send(self, frame: str | None) -> _Ending | None:
        """Sends a frame, or a WebSocket ping."""
        try:
            if frame is None:
                await self._socket.ping()
            else:
                await self._socket.send_str(frame)
        except _FAILURES as error:
            if self._socket.closed:
                return None  # the reader knows why, and says so
            self._hand_on()
            details = f"can't send: {_said(error)}"
            self._owner.fail("WS_SEND", details)
            return _Ending(details)
        return None

    # what is heard

    async def _read(self) -> _Ending:
        feed = self._feed
        text, binary = aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY
        while True:
            frame = await self._socket.receive()
            if frame.type is not text and frame.type is not binary:
                return _ending_of(frame, self._socket)
            raws = frame.data if type(frame.data) is list else [frame.data]
            texts, error = (raws, None) if frame.type is text else _texts_of(feed, raws)
            while texts:
                messages, mistake = feed.decode_all(texts)
                if ending := await self._take(texts[: len(messages)], messages):
                    return ending
                if mistake is not None:
                    raise mistake
                texts = texts[len(messages) :]
            if error is not None:
                raise error

    async def _take(self, texts: Sequence[bytes], messages: Sequence[Json]) -> _Ending | None:
        """What was said: data arrives, all else is heard."""
        start = 0
        while start < len(messages):
            end, kind = self._feed.hear(messages, start)
            await self._arrive(texts[start:end], messages[start:end])
            if end == len(messages):
                break
            if isinstance(kind, Exception):
                raise kind
            if ending := self._hear(kind, messages[end]):
                return ending
            start = end + 1
        return None

    async def _arrive(self, raws: Sequence[bytes], messages: Sequence[Json]) -> None:
        """Data came, as much as was there to be read."""
        for start in range(0, len(raws), MAX_ARRIVALS):
            if not self._arrivals.raws:
                if self._receiver.is_full:
                    await self._pause()
                self._arrivals.look_at_clock()
                # Runs when nothing more is to be read at once: a batch is what one read of the socket brought.
                self._loop.call_soon(self._hand_on)
            self._arrivals.add(raws[start : start + MAX_ARRIVALS], messages[start : start + MAX_ARRIVALS])
            if len(self._arrivals.raws) >= MAX_ARRIVALS:
                self._hand_on()

    def _hear(self, kind: FrameKind, message: Json) -> _Ending | None:
        """What is not delivered."""
        if kind is FrameKind.GAP:
            return _Ending(self._feed.books.gap)
        if kind is FrameKind.ERROR:
            error = self._feed.complaint(message)
            self._hand_on()
            self._owner.fail(_CODES.get(error.kind), error.details)
            is_limited = error.kind == "rate_limit"
            return _Ending(error.details, limited=is_limited) if is_limited or error.is_final else None
        if actions := self._feed.reply(message, now_us()):
            self._start(self._act(actions))
        return None

    def _hand_on(self) -> None:
        arrivals = self._arrivals
        if not arrivals.raws or self._is_spoiled:
            return
        self._arrivals = Arrivals()
        if self._data_at_s is None:
            self._owner.works()
        self._data_at_s = self._loop.time()
        try:
            self._receiver.take(arrivals)
        except NormalizeError as error:
            self._is_spoiled = True
            self._end(_Ending(str(error)))

    async def _pause(self) -> None:
        log.warning("reading pauses because too many messages are waiting", exchange=self._owner.exchange)
        self._hand_on()
        await self._receiver.ready()
        self._data_at_s = self._loop.time()

    async def _watch(self) -> _Ending:
        """Ends a connection without data. That it lives, as heartbeats show, is not enough."""
        timeout_s = self._owner.timeout_s
        since_s = now_s = self._loop.time()
        while True:
            since_s = max(since_s, self._data_at_s or 0.0)
            wait_s = since_s + timeout_s - now_s
            if wait_s <= 0 and not self._receiver.is_full:
                return _Ending(f"no data for {timeout_s:g} s")
            # Shorter than the time-out, so that what holds up this process itself is seen, and not held against the exchange.
            wait_s = min(max(wait_s, 0.01), timeout_s / 4)
            await asyncio.sleep(wait_s)
            then_s, now_s = now_s, self._loop.time()
            if now_s - then_s > 2 * wait_s:
                since_s += now_s - then_s - wait_s

    async def _see_midnight(self) -> _Ending:
        day = now_us() // _DAY_US
        while True:
            left_us = (day + 1) * _DAY_US - now_us()
            if left_us <= 0:
                # Not all connections at once, which exchanges would refuse.
                await asyncio.sleep(random() * self._owner.timings.daily_s)
                return _Ending("the recording of a new day begins with whole books", is_ours=True)
            await asyncio.sleep(min(left_us / 1e6, _CLOCK_CHECK_S))

    # what is fetched

    async def _fetch(self, fetch: Fetch) -> _Ending | None:
        owner, unfit = self._owner, 0
        backoff = Backoff(owner.timings)
        while True:
            async with self._fetching:
                await asyncio.sleep(max(0.0, self._fetch_at_s - self._loop.time()))
                body, wait_s = await self._get(fetch, backoff)
            if body is not None:
                raws = fetch.to_messages(body)
                if raws is not None:
                    self._deliver(raws)
                    if fetch.every_s is None:
                        return None
                    backoff.reset()
                    wait_s, unfit = fetch.every_s, 0
                else:
                    unfit += 1
                    if unfit == MAX_UNFIT:
                        return _Ending(f"{fetch.name}: none of {unfit} snapshots joined the updates")
                    wait_s = owner.timings.refetch_s
            await asyncio.sleep(wait_s)

    async def _get(self, fetch: Fetch, backoff: Backoff) -> tuple[bytes | None, float]:
        """The body of an answer; None where there is none, and how long to wait then."""
        owner = self._owner
        url = rest_url(owner.exchange, owner.live, fetch.path, owner.urls)
        try:
            async with owner.session.get(url) as response:
                is_given = response.status == 200
                body = (
                    await _read_body(response, MAX_MESSAGE_BYTES) if is_given else await response.content.read(MAX_REFUSAL_BYTES)
                )
        except _FAILURES as error:
            owner.fail(None, f"{fetch.name}: can't be fetched: {_said(error)}")
            return None, backoff.next_s()
        if response.status == 200:
            self._fetch_at_s = max(self._fetch_at_s, self._loop.time() + self._feed.pause_after_s(response.headers))
            return body, 0.0
        code = _REFUSALS.get(response.status)
        self._hand_on()
        owner.fail(code, f"{fetch.name}: {response.status} {body[:200].decode(errors='replace')}")
        limited = code == "SOURCE_RATE_LIMIT"
        wait_s = backoff.next_s(limited=limited, at_least_s=owner.asked_wait_s(response.status, response.headers))
        if limited:
            self._fetch_at_s = self._loop.time() + wait_s
        return None, wait_s

    def _deliver(self, raws: Sequence[bytes]) -> None:
        """What was fetched takes its place among what was heard."""
        self._arrivals.look_at_clock()
        for raw in raws:
            self._arrivals.add([raw], [self._feed.decode(raw)])
        self._hand_on()


def _texts_of(feed: Feed, frames: Sequence[bytes]) -> tuple[list[bytes], Exception | None]:
    """The texts of binary frames, and why what follows them has none."""
    texts: list[bytes] = []
    try:
        texts.extend(map(feed.to_text, frames))
    except Exception as error:
        return texts, error
    return texts, None


async def _read_body(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """The body, decompressed; an error where it is longer than the limit, found before it is in memory."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit_bytes:
            raise aiohttp.ClientPayloadError(f"the answer has more than {limit_bytes} bytes")
    return bytes(body)


def _said(error: Exception) -> str:
    """In words. An error of aiohttp's has the whole address in its own, with a query that may hold a token."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{error.status} {error.message}"
    return str(error) or type(error).__name__


def _ending_of(frame: Any, socket: aiohttp.ClientWebSocketResponse[Any]) -> _Ending:
    if frame.type is aiohttp.WSMsgType.CLOSE:
        said = (frame.extra or "").strip()
        reason = f"closed by the exchange: {said}" if said else "closed by the exchange"
        return _Ending(reason, int(frame.data or 1005), kind_of_error(said) == "rate_limit")
    if frame.type is aiohttp.WSMsgType.ERROR:
        return _Ending(f"what was received is no WebSocket frame: {frame.data}")
    return _Ending("the connection broke", int(socket.close_code or aiohttp.WSCloseCode.ABNORMAL_CLOSURE))
