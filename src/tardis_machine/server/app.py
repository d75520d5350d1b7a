"""The server as an object: opens the ports in front of an engine, and closes them before it.

Invariant: no request is taken before everything behind it has started, or after anything of that has stopped.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import structs

from ..engine import Engine, Machine
from ..history.fair_slots import FairSlots
from ..pipeline.limits import RequestLimits
from ..realtime.backoff import Timings
from ..settings.resolve import Settings, from_keywords
from ..telemetry import get_logger, hide
from .books import BookRoutes
from .connections import ClientProtocol, Connections
from .data_feeds import DataFeedRoutes
from .datasets import DatasetRoutes
from .descriptors import descriptors_for_clients
from .http import HttpRoutes, aiohttp_logger, errors_as_answers, measured
from .listening import ListeningPort, bind
from .metadata import MetadataRoutes, is_public_document
from .origins import OriginPolicy, is_loopback
from .page.routes import PageRoutes, is_page_file
from .replays import ReplaysRoutes
from .request_options import REQUEST_TIMEOUT_S, OptionsReader
from .tls import load_tls
from .token import requires_token
from .ws import WsRoutes

if TYPE_CHECKING:
    from ..eventbus.receipt import Receipt

__all__ = ["Server", "TardisMachine"]

log = get_logger("machine")

# Long symbol lists travel in the URL; longer ones are POSTed.
MAX_URL_BYTES = 256 * 1024
MAX_HEADER_BYTES = 8 * 1024
MAX_HEADERS = 64


class TardisMachine:
    """The server as an object; keyword arguments are the command line's options, buses as groups.

    machine = TardisMachine(cache_dir="/data/cache", file={"dir": "/data/events"})
    await machine.start(port=8000)
    ...
    await machine.stop()   # drains the buses
    """

    def __init__(self, *, _history: Mapping[str, Any] | None = None, _timings: Timings | None = None, **options: Any) -> None:
        """For tests: `_history` is what HistoryClient takes beside the options, `_timings` the times that live connections keep to."""
        self._settings = from_keywords(options, os.environ)
        hide(*self._settings.secrets())
        self._server = Server(self._settings, _history, _timings)

    async def start(self, port: int | None = None, host: str | None = None) -> None:
        """Opens the ports; with port 0 the system picks them."""
        await self._server.start(self._settings.host if host is None else host, self._settings.port if port is None else port)

    async def stop(self) -> list[Receipt]:
        """Takes no more requests, ends the workers, drains the buses within the limit; a receipt for each bus.

        Raises UndeliveredError when something was not delivered.
        """
        return await self._server.stop()

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self._server.ports[0]

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes."""
        return self._server.engine.worker_pids

    @property
    def live_pids(self) -> list[int]:
        """The processes of live streams."""
        return self._server.engine.live_pids

    @property
    def ws_port(self) -> int:
        """The WebSocket port: one above the HTTP port, unless the system picked them."""
        return self._server.ports[1]


class Server:
    """A server and everything it holds."""

    def __init__(self, settings: Settings, history: Mapping[str, Any] | None = None, timings: Timings | None = None) -> None:
        self._settings = settings
        self.engine = Engine(settings, history, timings)
        self._stack = AsyncExitStack()
        self.ports: tuple[int, int] = (0, 0)

    async def start(self, host: str, port: int) -> None:
        settings = self._settings
        tls = load_tls(settings.tls_cert, settings.tls_key)
        if settings.auth_token is None and not is_loopback(host):
            log.warning("anyone who reaches this address is served; set auth-token, or listen on 127.0.0.1", host=host)
        machine = await self.engine.start()
        try:
            connections = Connections(most=_most_connections(settings), request_timeout_s=settings.request_timeout)
            runner = web.AppRunner(
                _application(machine, settings, connections, host), handler_cancellation=True, shutdown_timeout=1.0
            )
            await runner.setup()
            self._stack.push_async_callback(runner.cleanup)
            self._stack.callback(connections.close)
            assert runner.server is not None
            make_protocol = partial(ClientProtocol, connections, runner.server, _protocol_options(settings))
            self.ports = (await self._listen(host, port, connections, make_protocol, tls), 0)
            second = await self._listen(host, self.ports[0] + 1 if port else 0, connections, make_protocol, tls)
            self.ports = (self.ports[0], second)
        except BaseException:
            await self.stop()
            raise
        secure = "" if tls is None else "s"
        log.info("listening", http=f"http{secure}://{host}:{self.ports[0]}", ws=f"ws{secure}://{host}:{self.ports[1]}")

    async def _listen(
        self,
        host: str,
        port: int,
        connections: Connections,
        make_protocol: Callable[[], ClientProtocol],
        tls: ssl.SSLContext | None,
    ) -> int:
        listening = ListeningPort(await bind(host, port), connections, make_protocol, tls)
        self._stack.callback(listening.close)
        return listening.number

    async def stop(self) -> list[Receipt]:
        """Takes no more requests and ends those under way, then drains."""
        await self._stack.aclose()
        try:
            return await self.engine.stop()
        finally:
            for receipt in self.engine.publisher.receipts if self.engine.publisher is not None else ():
                (log.info if receipt.is_complete else log.error)("receipt", **structs.asdict(receipt))


def _most_connections(settings: Settings) -> int:
    """As many as allowed, as long as the disk keeps descriptors of its own."""
    # Shared streams, and as many replays that go on live.
    possible = descriptors_for_clients(workers=settings.workers, live_requests=2 * settings.max_live_requests)
    if possible < settings.max_connections:
        log.warning("fewer connections than max-connections are possible; raise the limit of open files", connections=possible)
    return min(int(settings.max_connections), possible)


def _application(machine: Machine, settings: Settings, connections: Connections, host: str) -> web.Application:
    origins = OriginPolicy(
        origins=settings.allowed_origins,
        hosts=settings.allowed_hosts,
        is_guarded=bool(settings.buses) or settings.api_key is not None or settings.record_dir is not None,
        is_on_loopback=is_loopback(host),
    )
    limits = RequestLimits.from_settings(settings)
    middlewares: list[Middleware] = [connections.watch(), measured, errors_as_answers, origins.check()]
    if settings.auth_token is not None:
        open_paths = [is_public_document, *([is_page_file] if settings.ui == "on" else [])]
        middlewares.append(requires_token(settings.auth_token, lambda path: any(is_open(path) for is_open in open_paths)))
    app = web.Application(middlewares=middlewares, client_max_size=limits.max_request_bytes)
    app[REQUEST_TIMEOUT_S] = settings.request_timeout
    app.on_response_prepare.append(origins.add_headers)
    reader = OptionsReader(limits)
    HttpRoutes(machine, reader).add_to(app)
    ReplaysRoutes(machine, reader).add_to(app)
    slots = FairSlots(settings.max_slices)
    DataFeedRoutes(machine, reader, slots).add_to(app)
    MetadataRoutes(machine, slots).add_to(app)
    DatasetRoutes(machine).add_to(app)
    BookRoutes(machine).add_to(app)
    WsRoutes(machine, reader).add_to(app)
    if settings.ui == "on":
        PageRoutes(machine, may_control=settings.ui_control, lake_metrics=settings.lake_metrics or ()).add_to(app)
    return app


def _protocol_options(settings: Settings) -> dict[str, Any]:
    """What aiohttp allows a connection before anyone has looked at its token, and afterwards."""
    return {
        "access_log": None,
        "logger": aiohttp_logger(),
        "keepalive_timeout": settings.idle_timeout,
        "max_line_size": MAX_URL_BYTES,
        "max_field_size": MAX_HEADER_BYTES,
        "max_headers": MAX_HEADERS,
        "auto_decompress": False,  # a body of kilobytes would become one of gigabytes
    }
