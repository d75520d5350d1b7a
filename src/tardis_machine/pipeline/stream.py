"""Live data as batches of messages: the same normalizing and computing as for history, over what connections hear.

Invariant: what comes of a connection depends only on the lines that were recorded of it; a replay of them gives the same messages. Each
connection has mappers of its own: one that is lost forgets nothing that another knows. Only connections that bring parts of the same
messages, as prices and funding of one ticker at two addresses, have their mappers in common, and one number: to all but the exchange they
are one connection, whose parts are lost one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..computed.data_types import parse_data_types
from ..errors import NormalizeError
from ..exchanges import Credentials, exchange_named, make_mappers
from ..filters import Filter
from ..messages import UNSET, Disconnect, ErrorMessage, Message
from ..realtime.accounts import check_credentials, conceal, find_credentials
from ..realtime.backoff import Timings
from ..realtime.clock import recorded_now
from ..realtime.connection import Arrivals, Connection, open_session
from ..realtime.endpoints import check_urls
from ..realtime.troubles import Trouble
from ..recorded_line import to_clock
from .normalizer import Decoded, Normalizer, messages_of, symbol_filter
from .request import StreamRequest, parse_stream_request
from .view import View

__all__ = ["LiveStream", "Outlet", "Recorder", "plan_connections", "stream_normalized"]

# Messages that may wait for whoever iterates before listening pauses.
MAX_UNREAD = 100_000

Recorder = Callable[[str, int, Sequence[bytes]], None]
"""(exchange, number of the connection, lines): hears what the history API would have recorded; an empty line is a lost connection."""


class Outlet(Protocol):
    """Where the messages of a stream go."""

    def deliver(self, connection: int, messages: list[Message]) -> None:
        """Normalized messages of a connection, errors and disconnects too; either of those is the last of its list."""

    @property
    def is_full(self) -> bool:
        """Whether so much is unread that listening has to pause."""

    async def ready(self) -> None:
        """Waits until it is full no more."""


class PlannedConnection(NamedTuple):
    """What one connection serves."""

    sockets: Sequence[Sequence[Filter]]
    """The filters of each of its parts; most have one."""
    symbols: Sequence[str] | None

    @property
    def filters(self) -> list[Filter]:
        """Those of all parts."""
        return [item for filters in self.sockets for item in filters]


def plan_connections(request: StreamRequest) -> Iterator[PlannedConnection]:
    """The connections that a request takes: as many as its symbols fit on, at each address that its channels are at."""
    exchange = exchange_named(request.exchange)
    assert exchange.live is not None
    feed = exchange.live.feed
    normalizer = Normalizer(exchange.name, parse_data_types(request.data_types).normalizers, realtime=True)
    groups: list[Sequence[str] | None] = [None]
    if request.symbols:
        channels = len(normalizer.filters(request.symbols))
        size = max(1, feed.max_subscriptions // channels)
        groups = [request.symbols[start : start + size] for start in range(0, len(request.symbols), size)]
    mappers = make_mappers(exchange, parse_data_types(request.data_types).normalizers, None, realtime=True)
    for symbols in groups:
        read = [{item.channel for item in mapper.filters(symbols)} for mapper in mappers]
        for sockets in _joined(feed.split(exchange.name, normalizer.filters(symbols)), read):
            yield PlannedConnection(sockets, symbols)


def _joined(sockets: Sequence[Sequence[Filter]], read: Iterable[set[str]]) -> list[list[Sequence[Filter]]]:
    """Sockets, those together whose channels one mapper reads."""
    groups = [[filters] for filters in sockets]
    for channels in read:
        first, *others = [
            group for group in groups if any(item.channel in channels for filters in group for item in filters)
        ] or [[]]
        for group in others:
            first += group
            groups.remove(group)
    return groups


class LiveSource:
    """One connection of a stream: what is heard on it, or on its parts, becomes messages."""

    def __init__(
        self, request: StreamRequest, plan: PlannedConnection, outlet: Outlet, number: int, record: Recorder | None
    ) -> None:
        self._request = request
        self._outlet = outlet
        self._number = number
        self._record = record
        self._names = UNSET if plan.symbols is None else list(plan.symbols)
        self._symbols = symbol_filter(plan.symbols, plan.filters)
        normalizers = parse_data_types(request.data_types).normalizers
        self._normalizer = Normalizer(request.exchange, normalizers, realtime=True, with_disconnects=True)

    @property
    def is_full(self) -> bool:
        """See Listener."""
        return self._outlet.is_full

    async def ready(self) -> None:
        """See Listener."""
        await self._outlet.ready()

    def take(self, arrivals: Arrivals) -> None:
        """See Listener. What was normalized before a message that can't be is kept, and so are its lines."""
        try:
            messages = self._normalizer.feed_decoded(Decoded(arrivals.stamps, arrivals.clocks, arrivals.messages))
        except NormalizeError as error:
            if self._record is not None:
                self._keep(arrivals.lines(error.place))
            self._emit(list(error.emitted))  # type: ignore[arg-type]
            raise
        if self._record is not None:
            self._keep(arrivals.lines())
        self._emit(messages)

    def lost(self, reason: str, close_code: int | None) -> None:
        """See Listener."""
        self._keep([b""])
        # Of a connection that never had a message, nobody knows a better time than now.
        for message in self._normalizer.disconnect() or [Disconnect(self._request.exchange, _now())]:
            assert isinstance(message, Disconnect)
            message.symbols = self._names
            message.reason = reason
            message.close_code = UNSET if close_code is None else close_code
            self._emit([message])

    def failed(self, trouble: Trouble) -> None:
        """See Listener."""
        followed = trouble.followed or UNSET
        code = UNSET if trouble.code is None else trouble.code
        self._outlet.deliver(self._number, [ErrorMessage(self._request.exchange, _now(), trouble.details, followed, code)])

    def _emit(self, messages: list[Message]) -> None:
        if self._symbols is not None:
            messages = messages_of(messages, self._symbols)
        if messages:
            self._outlet.deliver(self._number, messages)

    def _keep(self, lines: Sequence[bytes]) -> None:
        if self._record is not None:
            self._record(self._request.exchange, self._number, lines)


def _now() -> str:
    return to_clock(recorded_now())


class LiveStream:
    """All connections of a request; they are numbered from 0."""

    def __init__(
        self,
        request: StreamRequest,
        outlet: Outlet,
        *,
        urls: Mapping[str, str] | None = None,
        timings: Timings | None = None,
        record: Recorder | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._request = request
        self._credentials = Credentials() if credentials is None else credentials
        conceal(request.exchange, self._credentials)  # this may be another process than that which found them
        self._urls = check_urls(urls or {})
        self._timings = timings or Timings()
        self._is_recorded = record is not None
        self._sources = [
            (plan, LiveSource(request, plan, outlet, number, record)) for number, plan in enumerate(plan_connections(request))
        ]

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._sources)

    async def run(self) -> None:
        """Keeps all of them up; ends when it is cancelled."""
        async with open_session(self._urls, self._timings) as session, asyncio.TaskGroup() as tasks:
            for filters, source in ((filters, source) for plan, source in self._sources for filters in plan.sockets):
                connection = Connection(
                    exchange_named(self._request.exchange),
                    filters,
                    source,
                    session,
                    timeout_s=self._request.timeout_interval_ms / 1000,
                    urls=self._urls,
                    timings=self._timings,
                    credentials=self._credentials,
                    is_daily=self._is_recorded,
                )
                tasks.create_task(connection.run())


class _Batches:
    """Messages that wait for whoever iterates."""

    def __init__(self) -> None:
        self._waiting: list[Message] = []
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    def add(self, messages: list[Message]) -> None:
        self._waiting += messages
        self._changed.set()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MAX_UNREAD

    async def ready(self) -> None:
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    async def wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def take(self) -> list[Message]:
        batch, self._waiting = self._waiting, []
        self._taken.set()
        return batch


class _Viewed:
    """An Outlet: what a request shows of its stream waits with what others show."""

    def __init__(self, request: StreamRequest, batches: _Batches) -> None:
        self._view = View(request)
        self._batches = batches

    def deliver(self, connection: int, messages: list[Message]) -> None:
        self._batches.add(self._view.shown(self._view.feed(connection, messages)))

    @property
    def is_full(self) -> bool:
        return self._batches.is_full

    async def ready(self) -> None:
        await self._batches.ready()


async def _run_all(streams: Sequence[LiveStream]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for stream in streams:
            tasks.create_task(stream.run())


async def _stream(
    requests: Sequence[StreamRequest],
    urls: Mapping[str, str],
    credentials: Mapping[str, str],
    timings: Timings | None,
    record: Recorder | None,
) -> AsyncGenerator[list[Message], None]:
    batches = _Batches()
    streams = [
        LiveStream(
            request,
            _Viewed(request, batches),
            urls=urls,
            timings=timings,
            record=record,
            credentials=find_credentials(request.exchange, credentials),
        )
        for request in requests
    ]
    running = asyncio.create_task(_run_all(streams))
    changed = asyncio.create_task(batches.wait())
    try:
        while True:
            await asyncio.wait([running, changed], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running  # a fault of our own: exchanges' never end it
            changed = asyncio.create_task(batches.wait())
            if batch := batches.take():
                yield batch
    finally:
        running.cancel()
        changed.cancel()
        await asyncio.gather(running, changed, return_exceptions=True)


def stream_normalized(
    *requests: dict[str, Any],
    exchange: str | None = None,
    symbols: Sequence[str] | None = None,
    data_types: Sequence[str] = (),
    with_disconnect_messages: bool = False,
    with_error_messages: bool = False,
    timeout_interval_ms: float | None = None,
    exchange_urls: Mapping[str, str] | None = None,
    exchange_credentials: Mapping[str, str] | None = None,
    _timings: Timings | None = None,
    _record: Recorder | None = None,
) -> AsyncGenerator[list[Message], None]:
    """Live data as batches of messages, in the order of their arrival; several requests are given as options objects.

    async for batch in stream_normalized(exchange="bitmex", symbols=["XBTUSD"], data_types=["trade", "book_change"]):
        for message in batch: ...

    It goes on for ever: a connection that is lost is made anew, which a `disconnect` message tells where it is asked for.
    """
    options = list(requests) or [
        {
            "exchange": exchange,
            "symbols": None if symbols is None else list(symbols),
            "dataTypes": list(data_types),
            "withDisconnectMessages": with_disconnect_messages,
            "withErrorMessages": with_error_messages,
            "timeoutIntervalMS": timeout_interval_ms,
        }
    ]
    return _stream(
        [parse_stream_request(item) for item in options],
        check_urls(exchange_urls or {}),
        check_credentials(exchange_credentials or {}),
        _timings,
        _record,
    )
