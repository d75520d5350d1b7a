"""The machine, for the server and for commands: `Engine` builds it, `Machine` serves requests.

Invariant: what an engine starts it stops, in the opposite order, and nothing outlives it. Every session that was opened with the
publisher is closed with it, complete or not, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import uuid4

from msgspec.structs import replace

from ._version import __version__
from .errors import TardisMachineError
from .history.cache import clear_cache, node_cache_dir
from .history.client import HistoryClient
from .history.metadata import MetadataClient
from .history.recordings import recover_journals
from .messages import BookChange, from_json, to_json
from .pipeline.book_at import BookRequest
from .pipeline.compression import Compression
from .pipeline.frames import Form
from .pipeline.recorded import RecordedHistory
from .pipeline.request import NormalizedRequest, RawRequest, SinceRequest, StreamRequest
from .player.player import Player, SoughtError
from .player.players import Players
from .processes.jobs.contract import Chunk, Events, PublishSpec, ReplaySpec, SinceSpec
from .processes.live_pool import LivePool
from .processes.replay_pool import SYMBOLS_TOGETHER, ReplayPool
from .processes.since_pool import SincePool
from .realtime.accounts import check_credentials
from .realtime.backoff import Timings
from .realtime.endpoints import check_urls
from .settings.resolve import Settings
from .telemetry import MESSAGES_SENT, get_logger

if TYPE_CHECKING:
    from .bronze.encoding import Origin
    from .eventbus.publisher import Publisher
    from .eventbus.receipt import Receipt

__all__ = ["SOURCE", "Engine", "LiveMachine", "Machine", "start_publisher"]

log = get_logger("machine")

SOURCE = f"tardis-machine/{__version__}"
Transport = Literal["http", "ws", "cli"]


@dataclass(kw_only=True)
class LiveMachine:
    """Serves live requests, and publishes what comes of them."""

    live: LivePool
    publisher: Publisher | None
    """None while no bus is on."""
    book_changes: str
    since: SincePool
    since_spec: SinceSpec
    """What all requests that go on live have in common."""

    def publishing(
        self, route: str, transport: Transport, request_id: str, origin: Origin = "replay", parent: str | None = None
    ) -> PublishSpec | None:
        """How the events of a new session are to be encoded; None while no bus is on. `parent` is the client's own `traceparent`."""
        if self.publisher is None:
            return None
        session_id = uuid4().hex
        meta = {
            "request_id": request_id,
            "session_id": session_id,
            "transport": transport,
            "route": route,
            "app_version": __version__,
        }
        if self.publisher.tracing is not None:
            meta["traceparent"] = self.publisher.tracing.begin(session_id, route, transport, request_id, parent)
        return PublishSpec(session_id, origin, meta, SOURCE, self.book_changes, self.publisher.include)

    async def stream(
        self,
        route: str,
        requests: Sequence[StreamRequest],
        *,
        form: Form,
        transport: Transport,
        request_id: str,
        holds_up: bool = False,
    ) -> AsyncGenerator[Chunk, None]:
        """The finished bytes of live requests, until nobody wants more or the machine stops. See LivePool.listen.

        What is heard is published once, however many ask for it; its session is that of the stream.
        """
        sent = MESSAGES_SENT.labels(route)
        make_publish = partial(self.publishing, route, transport, request_id, "realtime")
        chunks = self.live.listen(requests, form, make_publish, holds_up=holds_up)
        async with aclosing(chunks):
            async for chunk in chunks:
                sent.inc(chunk.messages)
                yield chunk

    async def replay_since(
        self,
        route: str,
        requests: Sequence[SinceRequest],
        *,
        form: Form,
        transport: Transport,
        request_id: str,
        parent: str | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """The finished bytes of replays that go on live, until nobody wants more or the machine stops.

        They have connections of their own (ADR 17). What is replayed and what is heard are published as a session each.
        """
        sent = MESSAGES_SENT.labels(route)
        is_published = all(request.history.publish for request in requests)
        sessions = [
            self.publishing(route, transport, request_id, origin, parent) if is_published else None
            for origin in ("replay", "realtime")
        ]
        asked_key = next((request.history.api_key for request in requests if request.history.api_key), None)
        spec = replace(
            self.since_spec,
            requests=requests,
            form=form,
            publish=sessions[0],
            publish_live=sessions[1],
            api_key=asked_key or self.since_spec.api_key,
        )
        outputs = self.since.run(spec)
        async with aclosing(outputs), _SinceSessions(self.publisher, sessions) as opened:
            async for output in outputs:
                if isinstance(output, Chunk):
                    sent.inc(output.messages)
                    yield output
                elif output.events:
                    await opened.publish(output)


class _SinceSessions:
    """The sessions of a replay that goes on live: that of history ends when the first event comes that was heard. A context."""

    def __init__(self, publisher: Publisher | None, sessions: Sequence[PublishSpec | None]) -> None:
        self._publisher = publisher
        self._sessions = sessions
        # The one that is open.
        self._open: PublishSpec | None = None

    async def publish(self, output: Events) -> None:
        """Publishes events, in the session that they belong to."""
        assert self._publisher is not None
        session = next(
            each for each in self._sessions if each is not None and each.session_id == output.events[0].stream.session_id
        )
        if session is not self._open:
            self._end(complete=True)
            self._open = session
            await self._publisher.session_start(
                session.session_id, source=session.source, origin=session.origin, meta=session.meta
            )
        await self._publisher.publish(output.events)

    def _end(self, *, complete: bool, reason: str = "") -> None:
        if self._open is not None and self._publisher is not None:
            self._publisher.session_end(self._open.session_id, complete=complete, reason=reason)
            self._open = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # What is heard has no end of its own: all of it that was heard is there. History that was cut off is not complete.
        is_live = self._open is not None and self._open is self._sessions[1]
        reason = str(error) if isinstance(error, TardisMachineError) else "the client went away"
        is_complete = is_live and not isinstance(error, Exception)
        self._end(complete=is_complete, reason="" if is_complete else reason)


@dataclass(kw_only=True)
class Machine(LiveMachine):
    """Serves all requests: the one thing that routes need."""

    client: HistoryClient
    metadata: MetadataClient
    recorded: RecordedHistory | None
    """None: no folder of recordings was given."""
    workers: ReplayPool
    players: Players

    async def replay(
        self,
        route: str,
        requests: Sequence[RawRequest] | Sequence[NormalizedRequest],
        *,
        form: Form,
        publish: PublishSpec | None = None,
        compression: Compression | None = None,
        cut: str = "the client went away",
        player: Player | None = None,
        take_events: Callable[[Events], None] | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """The finished bytes of a request; its events go to the publisher on the way. `cut` is why nobody takes the rest.

        BusyError where as many replays run as may; then no session was opened. `player` is what clients steer it by.
        Where there is `take_events`, it gets the events, and the publisher nothing.
        """
        if any(isinstance(request, NormalizedRequest) and not request.publish for request in requests):
            publish = None
        sent = MESSAGES_SENT.labels(route)
        player = player or self.players.make(route, requests)
        whole = ReplaySpec(requests, form, compression, publish)
        with self.workers.admitted(requests), self.players.listed(player):
            is_over = False
            while not is_over:
                try:
                    async with _session(None if take_events else self.publisher, whole.publish, cut) as publisher:
                        outputs = player.play(self.workers.run(self.client, player.part(whole), player.attach))
                        async with aclosing(outputs):
                            async for output in outputs:
                                if isinstance(output, Chunk):
                                    sent.inc(output.messages)
                                    yield output
                                elif take_events is not None:
                                    take_events(output)
                                else:
                                    assert publisher is not None
                                    await publisher.publish(output.events)
                    is_over = True
                except SoughtError:
                    # What is played from elsewhere is a session of its own: its events begin anew.
                    whole = replace(whole, publish=None if publish is None else self._renewed(publish))

    def _renewed(self, publish: PublishSpec) -> PublishSpec:
        """The same for another session, which goes on with the trace of the first."""
        meta = publish.meta
        fresh = self.publishing(meta["route"], meta["transport"], meta["request_id"], publish.origin, meta.get("traceparent"))  # type: ignore[arg-type]
        assert fresh is not None
        return fresh

    async def book_at(self, asked: BookRequest) -> bytes | None:
        """The book at an instant as JSON; None where none is known. BusyError where as many replays run as may."""
        with self.workers.admitted([]):
            for request in asked.replays():
                # What is sent is what holds when all has been read.
                spec = ReplaySpec([request], "lines", opening_us=request.to_us)
                async with aclosing(self.workers.run(self.client, spec)) as outputs:
                    data = b"".join([bytes(output.data) async for output in outputs if isinstance(output, Chunk)])
                for line in data.splitlines():
                    book = from_json(line)
                    if isinstance(book, BookChange):
                        return to_json(asked.cut(book))
        return None


@asynccontextmanager
async def _session(publisher: Publisher | None, publish: PublishSpec | None, cut: str) -> AsyncGenerator[Publisher | None, None]:
    """A session from its start to its end; `cut` is why it is not complete where nobody waits for the rest."""
    if publisher is None or publish is None:
        yield None
        return
    complete, reason = False, cut
    await publisher.session_start(publish.session_id, source=publish.source, origin=publish.origin, meta=publish.meta)
    try:
        yield publisher
        complete, reason = True, ""
    except Exception as error:
        reason = str(error) if isinstance(error, TardisMachineError) else "an internal error"
        raise
    finally:
        publisher.session_end(publish.session_id, complete=complete, reason=reason)


class Engine:
    """Builds a machine out of settings, and ends it. `history` is what HistoryClient takes beside the settings."""

    def __init__(self, settings: Settings, history: Mapping[str, Any] | None = None, timings: Timings | None = None) -> None:
        self._settings = settings
        self._history = history or {}
        self._timings = timings or Timings()
        # What was started, each with how it is stopped.
        self._stack = AsyncExitStack()
        self._workers: ReplayPool | None = None
        self._live: LivePool | None = None
        self._since: SincePool | None = None
        self.publisher: Publisher | None = None

    async def start(self, *, publishing: bool = True) -> Machine:
        """Starts all of it, the buses only for `publishing`; what had started is stopped where something can't."""
        settings = self._settings
        if settings.source("cache_dir") == "default" and (node_cache_dir() / "feeds").is_dir():
            log.info("the Node client's cache is not used; --cache-dir with its folder would", folder=node_cache_dir())
        try:
            if settings.clear_cache:
                await asyncio.to_thread(clear_cache, settings.cache_dir)
            recorded = await self._open_recorded()
            history = {"find_recorded": None if recorded is None else recorded.find, **self._history}
            client = HistoryClient(settings.api_url, settings.api_key, settings.cache_dir, **history)
            await self._stack.enter_async_context(client)
            metadata = MetadataClient(settings.api_url, settings.api_key, settings.cache_dir)
            await self._stack.enter_async_context(metadata)
            self._workers = workers = ReplayPool(
                settings.workers,
                most=settings.get("max_replays"),
                most_symbols=SYMBOLS_TOGETHER * settings.get("max_symbols", inf),
                unread_bytes=settings.get("max_unread_bytes"),
            )
            self._stack.push_async_callback(workers.stop)
            await workers.start()
            live = self._open_live(in_process=settings.workers == 0, most=settings.get("max_live_requests"))
            since = self._open_since(in_process=settings.workers == 0, most=settings.get("max_live_requests"))
            if publishing and settings.buses:
                self.publisher = await start_publisher(settings)
        except BaseException:
            await self.stop()
            raise
        return Machine(
            client=client,
            metadata=metadata,
            recorded=recorded,
            workers=workers,
            players=Players(settings.get("max_pause")),
            live=live,
            since=since,
            since_spec=self._since_spec(),
            publisher=self.publisher,
            book_changes=settings.get("book_changes") or "",  # a command that does not publish has none
        )

    async def _open_recorded(self) -> RecordedHistory | None:
        record_dir = self._settings.get("record_dir")
        if record_dir is None:
            return None
        for name in await asyncio.to_thread(recover_journals, record_dir):
            log.warning("a recording was cut off, and what there is of its last minute was taken in", minute=name)
        return RecordedHistory(record_dir)

    async def start_live(self) -> LiveMachine:
        """Starts what live data alone takes."""
        live = self._open_live()
        since = self._open_since()
        if self._settings.buses:
            self.publisher = await start_publisher(self._settings)
        return LiveMachine(
            live=live,
            since=since,
            since_spec=self._since_spec(),
            publisher=self.publisher,
            book_changes=self._settings.book_changes,
        )

    def _open_live(self, *, in_process: bool = False, most: int | None = None) -> LivePool:
        self._live = live = LivePool(
            publish=self._publish_live,
            urls=check_urls(self._settings.get("exchange_urls") or {}),
            credentials=check_credentials(self._settings.get("exchange_credentials") or {}),
            timings=self._timings,
            in_process=in_process,
            most=most,
            record_dir=self._settings.get("record_dir"),
        )
        self._stack.push_async_callback(live.stop, self._settings.shutdown_timeout)
        return live

    def _open_since(self, *, in_process: bool = False, most: int | None = None) -> SincePool:
        self._since = since = SincePool(in_process=in_process, most=most)
        self._stack.push_async_callback(since.stop, self._settings.shutdown_timeout)
        return since

    def _since_spec(self) -> SinceSpec:
        settings = self._settings
        record_dir = settings.get("record_dir")
        return SinceSpec(
            requests=(),
            form="none",
            api_url=settings.api_url,
            api_key=settings.api_key,
            cache_dir=str(settings.cache_dir),
            record_dir=None if record_dir is None else str(record_dir),
            history=self._history,
            urls=check_urls(settings.get("exchange_urls") or {}),
            credentials=check_credentials(settings.get("exchange_credentials") or {}),
            timings=self._timings,
        )

    async def _publish_live(self, publish: PublishSpec, events: AsyncIterable[Events]) -> None:
        """See Publish."""
        async with _session(self.publisher, publish, "the machine stopped before all of it was published") as publisher:
            assert publisher is not None
            async for output in events:
                await publisher.publish(output.events)

    async def stop(self, drain_s: float | None = None) -> list[Receipt]:
        """Ends replays first, then drains: nothing new may come while the buses are emptied. None: as long as settings allow."""
        await self._stack.aclose()
        limit_s = self._settings.shutdown_timeout if drain_s is None else drain_s
        return [] if self.publisher is None else await self.publisher.close(limit_s)

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes."""
        return [] if self._workers is None else self._workers.pids

    @property
    def live_pids(self) -> list[int]:
        """The processes of live streams, and of replays that go on live."""
        return [pid for pool in (self._live, self._since) if pool is not None for pid in pool.pids]


async def start_publisher(settings: Settings) -> Publisher:
    """A publisher to the buses that are on."""
    # Imported only when a bus is on: without one, nothing of the buses is loaded.
    from .eventbus import plan_bus
    from .eventbus.publisher import Publisher

    publisher = Publisher(
        [plan_bus(bus, settings.for_bus(bus)) for bus in settings.buses],
        spool_dir=settings.spool_dir,
        spool_max_bytes=settings.spool_max_bytes,
        spool_mode=settings.spool_mode,
        otel_endpoint=settings.otel_endpoint,
    )
    await publisher.start()
    return publisher
