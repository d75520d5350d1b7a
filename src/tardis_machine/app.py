"""The one place where concrete things are built and put together: the server, as a command and as a library.

Invariant: what starts here stops here, in the opposite order, and nothing outlives it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import structs

from .errors import SettingsError, UndeliveredError
from .history.cache import clear_cache
from .history.client import HistoryClient
from .server.http import HttpRoutes, aiohttp_logger, errors_as_answers, measured, requires_token
from .server.session import Machine
from .server.ws import WsRoutes
from .settings.resolve import Settings, from_keywords
from .telemetry import get_logger, hide
from .workers import WorkerPool

if TYPE_CHECKING:
    from .eventbus.publisher import Publisher
    from .eventbus.receipt import Receipt

__all__ = ["TardisMachine", "serve"]

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

    def __init__(self, *, _history: Mapping[str, Any] | None = None, **options: Any) -> None:
        """`_history` is for tests: what HistoryClient takes beside the options."""
        self._settings = from_keywords(options, os.environ)
        hide(*self._settings.secrets())
        self._running = _Running(self._settings, _history)

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
        return [] if self._running.workers is None else self._running.workers.pids

    @property
    def ws_port(self) -> int:
        """The WebSocket port: one above the HTTP port, unless the system picked them."""
        return self._running.ports[1]


class _Running:
    """A server and everything it holds."""

    def __init__(self, settings: Settings, history: Mapping[str, Any] | None = None) -> None:
        self._settings = settings
        self._history = history or {}
        self._stack = AsyncExitStack()
        self.publisher: Publisher | None = None
        self.workers: WorkerPool | None = None
        self.ports: tuple[int, int] = (0, 0)

    async def start(self, host: str, port: int) -> None:
        settings = self._settings
        if settings.clear_cache:
            await asyncio.to_thread(clear_cache, settings.cache_dir)
        if settings.auth_token is None and not _is_loopback(host):
            log.warning("anyone who reaches this address is served: set auth-token, or listen on 127.0.0.1", host=host)
        try:
            client = HistoryClient(settings.api_url, settings.api_key, settings.cache_dir, **self._history)
            await self._stack.enter_async_context(client)
            self.workers = workers = WorkerPool(settings.workers)
            self._stack.push_async_callback(workers.stop)
            await workers.start()
            if settings.buses:
                await self._start_publisher()
            runner = web.AppRunner(
                _application(Machine(client, workers, self.publisher, settings.book_changes), settings.auth_token),
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

    async def _start_publisher(self) -> None:
        # Imported only when a bus is on: without one, nothing of the buses is loaded.
        from .eventbus import plan_bus
        from .eventbus.publisher import Publisher

        settings = self._settings
        publisher = Publisher(
            [plan_bus(bus, settings.for_bus(bus)) for bus in settings.buses],
            spool_dir=settings.spool_dir,
            spool_max_bytes=settings.spool_max_bytes,
            spool_mode=settings.spool_mode,
        )
        await publisher.start()
        self.publisher = publisher

    async def stop(self) -> list[Receipt]:
        """Ends requests first, then drains: nothing new may come while the buses are emptied."""
        await self._stack.aclose()
        if self.publisher is None:
            return []
        try:
            return await self.publisher.close(self._settings.shutdown_timeout)
        finally:
            for receipt in self.publisher.receipts:
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


def serve(settings: Settings) -> int:
    """The `serve` command: runs until SIGTERM or Ctrl-C, then drains; 1 when something could not be delivered."""
    if sys.platform == "win32":
        return asyncio.run(_serve(settings))
    import uvloop

    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    running = _Running(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await running.start(settings.host, settings.port)
    await stopping.wait()
    log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
    hurry = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hurry.set)
    hurrying = asyncio.create_task(_abort_when(hurry, running))
    try:
        await running.stop()
    except UndeliveredError as error:
        log.error("stopped with events undelivered", error=str(error))
        return 1
    finally:
        hurrying.cancel()
    log.info("stopped")
    return 0


async def _abort_when(hurry: asyncio.Event, running: _Running) -> None:
    """A second signal: end now; what is left goes to the spool."""
    await hurry.wait()
    if running.publisher is not None:
        await running.publisher.abort()
