"""The one place where concrete things are built and put together: the server, as a command and as a library.

Invariant: what starts here stops here, in the opposite order, and nothing outlives it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import structs

from .errors import SettingsError, UndeliveredError
from .history.cache import clear_cache
from .history.client import HistoryClient
from .live import LivePool
from .realtime.backoff import Pace
from .realtime.endpoints import check_urls
from .server.http import HttpRoutes, aiohttp_logger, errors_as_answers, measured, requires_token
from .server.session import LiveMachine, Machine
from .server.ws import WsRoutes
from .settings.resolve import Settings, from_keywords
from .telemetry import get_logger, hide
from .workers import WorkerPool

if TYPE_CHECKING:
    from .eventbus.publisher import Publisher
    from .eventbus.receipt import Receipt

__all__ = ["Engine", "Interruption", "TardisMachine", "run_loop", "serve", "start_publisher"]

log = get_logger("machine")

# Long symbol lists travel in the URL; longer ones are POSTed.
MAX_URL_BYTES = 256 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024


class TardisMachine:
    """The server as an object; keyword arguments are the command line's options, buses as groups.

    machine = TardisMachine(cache_dir="/data/cache", file={"dir": "/data/events"})
    await machine.start(port=8000)
    ...
    await machine.stop()   # drains the buses
    """

    def __init__(self, *, _history: Mapping[str, Any] | None = None, _pace: Pace | None = None, **options: Any) -> None:
        """For tests: `_history` is what HistoryClient takes beside the options, `_pace` the times that live connections keep to."""
        self._settings = from_keywords(options, os.environ)
        hide(*self._settings.secrets())
        self._running = _Running(self._settings, _history, _pace)

    async def start(self, port: int | None = None, host: str | None = None) -> None:
        """Opens the ports; with port 0 the system picks them."""
        await self._running.start(self._settings.host if host is None else host, self._settings.port if port is None else port)

    async def stop(self) -> list[Receipt]:
        """Takes no more requests, ends the workers, drains the buses within the limit; a receipt for each bus.

        Raises UndeliveredError when something was not delivered.
        """
        return await self._running.stop()

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self._running.ports[0]

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes."""
        return self._running.engine.worker_pids

    @property
    def live_pids(self) -> list[int]:
        """The processes of live requests."""
        return self._running.engine.live_pids

    @property
    def ws_port(self) -> int:
        """The WebSocket port: one above the HTTP port, unless the system picked them."""
        return self._running.ports[1]


class Engine:
    """What replays and publishes, without a door: the history client, the workers and, where a bus is on, the publisher."""

    def __init__(self, settings: Settings, history: Mapping[str, Any] | None = None, pace: Pace | None = None) -> None:
        self._settings = settings
        self._history = history or {}
        self._pace = pace or Pace()
        self._stack = AsyncExitStack()
        self._workers: WorkerPool | None = None
        self._live: LivePool | None = None
        self.publisher: Publisher | None = None

    async def start(self, *, publishing: bool = True) -> Machine:
        """Starts all of it, the buses only for `publishing`; what had started is stopped where something can't."""
        settings = self._settings
        urls = self._check_urls()
        try:
            if settings.clear_cache:
                await asyncio.to_thread(clear_cache, settings.cache_dir)
            client = HistoryClient(settings.api_url, settings.api_key, settings.cache_dir, **self._history)
            await self._stack.enter_async_context(client)
            self._workers = workers = WorkerPool(settings.workers)
            self._stack.push_async_callback(workers.stop)
            await workers.start()
            self._live = live = LivePool(in_process=settings.workers == 0, most=settings.get("max_live_requests"))
            self._stack.push_async_callback(live.stop)
            if publishing and settings.buses:
                self.publisher = await start_publisher(settings)
        except BaseException:
            await self.stop()
            raise
        return Machine(client=client, workers=workers, **self._common(live, urls))

    async def start_live(self) -> LiveMachine:
        """Starts what live data alone takes."""
        urls = self._check_urls()
        self._live = live = LivePool()
        self._stack.push_async_callback(live.stop)
        if self._settings.buses:
            self.publisher = await start_publisher(self._settings)
        return LiveMachine(**self._common(live, urls))

    def _check_urls(self) -> dict[str, str]:
        return check_urls(self._settings.get("exchange_urls") or {})

    def _common(self, live: LivePool, urls: Mapping[str, str]) -> dict[str, Any]:
        return {
            "live": live,
            "publisher": self.publisher,
            "book_changes": self._settings.book_changes,
            "exchange_urls": urls,
            "pace": self._pace,
        }

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
        """The processes of live requests."""
        return [] if self._live is None else self._live.pids


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
    )
    await publisher.start()
    return publisher


class _Running:
    """A server and everything it holds."""

    def __init__(self, settings: Settings, history: Mapping[str, Any] | None = None, pace: Pace | None = None) -> None:
        self._settings = settings
        self.engine = Engine(settings, history, pace)
        self._stack = AsyncExitStack()
        self.ports: tuple[int, int] = (0, 0)

    async def start(self, host: str, port: int) -> None:
        settings = self._settings
        if settings.auth_token is None and not _is_loopback(host):
            log.warning("anyone who reaches this address is served: set auth-token, or listen on 127.0.0.1", host=host)
        machine = await self.engine.start()
        try:
            runner = web.AppRunner(
                _application(machine, settings.auth_token),
                access_log=None,
                logger=aiohttp_logger(),
                handler_cancellation=True,
                max_line_size=MAX_URL_BYTES,
                max_field_size=MAX_URL_BYTES,
                shutdown_timeout=1.0,
            )
            await runner.setup()
            self._stack.push_async_callback(runner.cleanup)
            self.ports = (await _listen(runner, host, port), 0)
            self.ports = (self.ports[0], await _listen(runner, host, self.ports[0] + 1 if port else 0))
        except BaseException:
            await self.stop()
            raise
        log.info("listening", http=f"http://{host}:{self.ports[0]}", ws=f"ws://{host}:{self.ports[1]}")

    async def stop(self) -> list[Receipt]:
        """Takes no more requests and ends those under way, then drains."""
        await self._stack.aclose()
        try:
            return await self.engine.stop()
        finally:
            for receipt in self.engine.publisher.receipts if self.engine.publisher is not None else ():
                log.info("receipt", **structs.asdict(receipt))


def _application(machine: Machine, token: str | None) -> web.Application:
    middlewares: list[Middleware] = [measured, errors_as_answers]
    if token is not None:
        middlewares.append(requires_token(token))
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    HttpRoutes(machine).add_to(app)
    WsRoutes(machine).add_to(app)
    return app


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        problem = (
            f"port: got {port}, which can't be listened on at {host} ({error.strerror}), takes one that is free, as is the next"
        )
        raise SettingsError([problem]) from error
    server: Any = site._server
    return int(server.sockets[0].getsockname()[1])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Interruption:
    """SIGTERM and Ctrl-C: the first asks to stop; one that comes while the buses are drained, to end now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.signal: signal.Signals | None = None
        self._hurry = asyncio.Event()
        self._is_draining = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take, number)

    def _take(self, number: signal.Signals) -> None:
        if self._is_draining:
            self._hurry.set()
        elif self.signal is None:
            self.signal = number
            self.asked.set()

    async def drain(self, stop: Callable[[], Awaitable[list[Receipt]]], engine: Engine) -> list[Receipt]:
        """Stops with `stop`; a signal meanwhile puts what is left into the spool."""
        self._is_draining = True
        hurrying = asyncio.create_task(self._abort_when_asked(engine))
        try:
            return await stop()
        finally:
            hurrying.cancel()

    async def _abort_when_asked(self, engine: Engine) -> None:
        await self._hurry.wait()
        if engine.publisher is not None:
            await engine.publisher.abort()


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Runs a command on the fastest event loop that this system has."""
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


def serve(settings: Settings) -> int:
    """The `serve` command: runs until SIGTERM or Ctrl-C, then drains; 1 when something could not be delivered."""
    return run_loop(_serve(settings))


async def _serve(settings: Settings) -> int:
    running = _Running(settings)
    interruption = Interruption()
    await running.start(settings.host, settings.port)
    await interruption.asked.wait()
    log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
    try:
        await interruption.drain(running.stop, running.engine)
    except UndeliveredError as error:
        log.error("stopped with events undelivered", error=str(error))
        return 1
    log.info("stopped")
    return 0
