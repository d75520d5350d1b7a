"""The server as an object: opens the ports in front of an engine, and closes them before it.

Invariant: no request is taken before everything behind it has started, or after anything of that has stopped.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import structs

from ..engine import Engine, Machine
from ..errors import SettingsError
from ..pipeline.limits import RequestLimits
from ..realtime.backoff import Timings
from ..settings.resolve import Settings, from_keywords
from ..telemetry import get_logger, hide
from .http import HttpRoutes, aiohttp_logger, errors_as_answers, measured, requires_token
from .request_options import OptionsReader
from .ws import WsRoutes

if TYPE_CHECKING:
    from ..eventbus.receipt import Receipt

__all__ = ["Server", "TardisMachine"]

log = get_logger("machine")

# Long symbol lists travel in the URL; longer ones are POSTed.
MAX_URL_BYTES = 256 * 1024


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
        if settings.auth_token is None and not _is_loopback(host):
            log.warning("anyone who reaches this address is served; set auth-token, or listen on 127.0.0.1", host=host)
        machine = await self.engine.start()
        try:
            runner = web.AppRunner(
                _application(machine, settings.auth_token, RequestLimits.from_settings(settings)),
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


def _application(machine: Machine, token: str | None, limits: RequestLimits) -> web.Application:
    middlewares: list[Middleware] = [measured, errors_as_answers]
    if token is not None:
        middlewares.append(requires_token(token))
    app = web.Application(middlewares=middlewares, client_max_size=limits.max_request_bytes)
    reader = OptionsReader(limits)
    HttpRoutes(machine, reader).add_to(app)
    WsRoutes(machine, reader).add_to(app)
    return app


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        is_in_use = error.errno == errno.EADDRINUSE
        problem = f"is in use on {host}" if is_in_use else f"can't be used on {host} ({error.strerror})"
        raise SettingsError([f"port {port} {problem}; choose another with --port (the next port is used too)"]) from error
    server: Any = site._server
    return int(server.sockets[0].getsockname()[1])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
