"""The history API's routes for metadata: exchanges, instruments and what the API key opens.

Invariant: a document is one of as many as there are exchanges. Upstream is asked with the server's key; what it says is kept for an
hour, and longer where it is away. Where it says nothing, own recordings say what was heard.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
from aiohttp import web

from ..engine import Machine
from ..errors import OptionsError, UpstreamError
from ..exchanges import exchange_named
from ..history.metadata import Metadata, filter_instruments
from .request_options import query_of

__all__ = ["MetadataRoutes", "exchange_details", "is_public_document"]

# Lists of instruments have hundreds of thousands of rows; a filter that is longer names none.
MAX_FILTER_BYTES = 64 * 1024


class MetadataRoutes:
    """The handlers, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def add_to(self, app: web.Application) -> None:
        """Puts the routes into an application."""
        for path, handler in (
            ("/v1/exchanges", self.exchanges),
            ("/v1/exchanges/{exchange}", self.exchange),
            ("/v1/instruments/{exchange}", self.instruments),
            ("/v1/instruments/{exchange}/{symbol:.+}", self.instrument),
            ("/v1/api-key-info", self.api_key_info),
        ):
            app.router.add_get(path, handler, allow_head=False)

    async def exchanges(self, _request: web.Request) -> web.Response:
        """All exchanges that upstream has; else those of the recordings."""
        try:
            return await _answer(await self._machine.metadata.exchanges())
        except UpstreamError:
            found = [] if self._machine.recorded is None else await asyncio.to_thread(self._machine.recorded.exchanges)
            if not found:
                raise
            return await _answer(Metadata(found))

    async def exchange(self, request: web.Request) -> web.Response:
        """One exchange."""
        return await _answer(await exchange_details(self._machine, exchange_named(request.match_info["exchange"]).name))

    async def instruments(self, request: web.Request) -> web.Response:
        """The instruments of an exchange, those that `?filter=` leaves."""
        listed = await self._instruments(request)
        text = query_of(request).get("filter")
        if not text:
            return await _answer(listed)
        try:
            wanted = json.loads(text) if len(text) <= MAX_FILTER_BYTES else None
        except ValueError as error:
            raise OptionsError(f"filter: expected a JSON object, but it is not valid JSON ({error})", "filter") from None
        found = await asyncio.to_thread(filter_instruments, listed.data, wanted)
        return await _answer(listed._replace(data=found))

    async def instrument(self, request: web.Request) -> web.Response:
        """The instrument of a symbol."""
        listed = await self._instruments(request)
        symbol = request.match_info["symbol"]
        for instrument in listed.data:
            if instrument["id"].upper() == symbol.upper():
                return await _answer(listed._replace(data=instrument))
        raise UpstreamError(f"{request.match_info['exchange']} has no instrument {symbol[:80]!r}", 404, 404)

    async def _instruments(self, request: web.Request) -> Metadata:
        name = exchange_named(request.match_info["exchange"]).name
        try:
            return await self._machine.metadata.instruments(name)
        except UpstreamError:
            found = [] if self._machine.recorded is None else await asyncio.to_thread(self._machine.recorded.instruments, name)
            if not found:
                raise
            return Metadata(found)

    async def api_key_info(self, _request: web.Request) -> web.Response:
        """What the key of this server opens."""
        return await _answer(await self._machine.metadata.api_key_info())


async def exchange_details(machine: Machine, exchange: str) -> Metadata:
    """What upstream tells of an exchange, else what was recorded of it; UpstreamError where neither is there."""
    try:
        return await machine.metadata.exchange(exchange)
    except UpstreamError:
        found = None if machine.recorded is None else await asyncio.to_thread(machine.recorded.exchange, exchange)
        if found is None:
            raise
        return Metadata(found)


def is_public_document(path: str) -> bool:
    """Whether a path is for everyone, as upstream: its clients ask for exchanges without a key."""
    return path == "/v1/exchanges" or path.startswith("/v1/exchanges/")


async def _answer(document: Metadata) -> web.Response:
    body: bytes = await asyncio.to_thread(_encode, document.data)
    response = web.Response(body=body, content_type="application/json")
    if document.is_stale:
        response.headers["Warning"] = '110 - "upstream is away: this may be out of date"'
    return response


def _encode(data: Any) -> bytes:
    return orjson.dumps(data)
