"""The page's routes: its files at `/` and `/ui/`, the state of the machine at `/ui/events`, which exchanges and symbols there are.

Invariant: none of them changes anything.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import web

from ...engine import Machine
from ...errors import TardisMachineError, UpstreamError
from ...exchanges import exchange_named
from ...history.metadata import ExchangeDetails
from ..metadata import exchange_details
from .files import INDEX, PageFiles
from .status import StatusFeed

__all__ = ["PageRoutes", "is_page_file"]

_FOLDER = "/ui/"
_EVENTS, _EXCHANGES, _ABILITIES = (f"{_FOLDER}{name}" for name in ("events", "exchanges", "abilities"))
_SYMBOLS = f"{_FOLDER}symbols/"
# A browser gets slow with the tens of thousands of options that some exchanges list.
_MOST_SYMBOLS = 2_000


def is_page_file(path: str) -> bool:
    """Whether this is a file of the page, which is served without a token: the page itself then asks for one."""
    if path in (_EVENTS, _EXCHANGES, _ABILITIES) or path.startswith(_SYMBOLS):
        return False
    return path in ("/", _FOLDER.rstrip("/")) or path.startswith(_FOLDER)


class PageRoutes:
    """The handlers. `may_control`: the page shows what steers replays of others too; `lake_metrics`: where lake jobs tell theirs."""

    def __init__(self, machine: Machine, *, may_control: bool, lake_metrics: Sequence[str]) -> None:
        self._machine = machine
        self._files = PageFiles()
        self._status = StatusFeed(machine, lake_metrics)
        self._may_control = may_control
        self._exchanges: asyncio.Task[bytes] | None = None

    def add_to(self, app: web.Application) -> None:
        """Puts the routes into an application."""
        for path in ("/", _FOLDER.rstrip("/")):
            app.router.add_get(path, self.index)
        app.router.add_get(_EVENTS, self.events)
        app.router.add_get(_EXCHANGES, self.exchanges)
        app.router.add_get(_ABILITIES, self.abilities)
        app.router.add_get(f"{_SYMBOLS}{{exchange}}", self.symbols)
        app.router.add_get(f"{_FOLDER}{{name:.+}}", self.file)

    async def index(self, request: web.Request) -> web.Response:
        """The page."""
        return self._files.answer(request, INDEX)

    async def file(self, request: web.Request) -> web.Response:
        """One of its files."""
        return self._files.answer(request, request.match_info["name"])

    async def abilities(self, _request: web.Request) -> web.Response:
        """What the page may do here; also how it finds out whether it needs a token."""
        return web.json_response({"mayControl": self._may_control})

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The state of the machine, each second, for as long as the browser listens."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        async with self._status as status:
            await response.prepare(request)
            with suppress(ConnectionError):
                while True:
                    await response.write(b"data: %b\n\n" % await status.next())
        return response

    async def exchanges(self, _request: web.Request) -> web.Response:
        """What `tardis-machine exchanges` prints."""
        # In a process of its own: the modules of all exchanges take memory that a server does not need.
        if self._exchanges is None or (self._exchanges.done() and self._exchanges.exception() is not None):
            self._exchanges = asyncio.create_task(_list_exchanges())
        return web.Response(body=await asyncio.shield(self._exchanges), content_type="application/json")

    async def symbols(self, request: web.Request) -> web.Response:
        """Symbols to choose from, those that are still traded first; none where nobody tells: any may be typed."""
        try:
            details = await exchange_details(self._machine, exchange_named(request.match_info["exchange"]).name)
        except UpstreamError:
            return web.json_response([])
        return web.json_response(await self._machine.metadata.look_up(details, _symbols_of))


def _symbols_of(details: ExchangeDetails) -> list[str]:
    listed = sorted(details.get("availableSymbols", ()), key=lambda symbol: symbol.get("availableTo") is not None)
    return [symbol["id"] for symbol in listed[:_MOST_SYMBOLS]]


async def _list_exchanges() -> bytes:
    command = (sys.executable, "-m", "tardis_machine", "exchanges", "--format", "json")
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE)
    try:
        printed, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode:
        raise TardisMachineError(f"the list of exchanges could not be made (exit code {process.returncode})")
    return printed
