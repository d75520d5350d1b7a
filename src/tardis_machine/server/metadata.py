"""The history API's routes for metadata: exchanges, instruments and what the API key opens.

Invariant: a document is one of as many as there are exchanges, and in memory once for all who are sent it; what was made for one
request is bounded. Upstream is asked with the server's key; what it says is kept for an hour, and longer where it is away. Where it
says nothing, own recordings say what was heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
from aiohttp import hdrs, web

from ..engine import Machine
from ..errors import OptionsError, UpstreamError
from ..exchanges import exchange_named
from ..history.fair_slots import FairSlots
from ..history.metadata import InstrumentInfo, Metadata, filter_instruments
from .bodies import SharedBody, write_pieces
from .request_options import peer_of, query_of

__all__ = ["MetadataRoutes", "exchange_details", "is_public_document"]

# Lists of instruments have hundreds of thousands of rows; a filter that is longer names none.
MAX_FILTER_BYTES = 64 * 1024

_DOCUMENT = web.ResponseKey("DOCUMENT", Metadata)


class MetadataRoutes:
    """The handlers, for one machine."""

    def __init__(self, machine: Machine, slots: FairSlots) -> None:
        """`slots` bound what was made for one request and waits for its client."""
        self._machine = machine
        self._slots = slots

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

    async def exchanges(self, request: web.Request) -> web.StreamResponse:
        """All exchanges that upstream has; else those of the recordings."""
        try:
            return _answer(request, await self._machine.metadata.exchanges())
        except UpstreamError:
            found = [] if self._machine.recorded is None else await asyncio.to_thread(self._machine.recorded.exchanges)
            if not found:
                raise
            return _answer(request, _document_of(found))

    async def exchange(self, request: web.Request) -> web.StreamResponse:
        """One exchange."""
        return _answer(request, await exchange_details(self._machine, exchange_named(request.match_info["exchange"]).name))

    async def instruments(self, request: web.Request) -> web.StreamResponse:
        """The instruments of an exchange, those that `?filter=` leaves."""
        listed = await self._instruments(request)
        text = query_of(request).get("filter")
        if not text:
            return _answer(request, listed)
        wanted = _parse_filter(text)
        return await self._answer_found(request, listed, lambda all_: filter_instruments(all_, wanted))

    async def instrument(self, request: web.Request) -> web.StreamResponse:
        """The instrument of a symbol."""
        listed = await self._instruments(request)
        exchange, symbol = request.match_info["exchange"], request.match_info["symbol"].upper()

        def find(instruments: list[InstrumentInfo]) -> InstrumentInfo:
            for instrument in instruments:
                if instrument["id"].upper() == symbol:
                    return instrument
            raise UpstreamError(f"{exchange} has no instrument {request.match_info['symbol'][:80]!r}", 404, 404)

        return await self._answer_found(request, listed, find)

    async def _answer_found(self, request: web.Request, document: Metadata, find: Callable[[Any], Any]) -> web.StreamResponse:
        """What is found in a document: nobody else is sent the same, so that as many as there are slots may wait for their clients."""
        async with self._slots.held_by(peer_of(request)):
            body: bytes = await self._machine.metadata.look_up(document, lambda data: orjson.dumps(find(data)))
            response = web.StreamResponse(headers={**_headers_of(document), hdrs.CONTENT_LENGTH: str(len(body))})
            await response.prepare(request)
            with suppress(ConnectionError):
                await write_pieces(request, response, body)
                await response.write_eof()
            return response

    async def _instruments(self, request: web.Request) -> Metadata:
        name = exchange_named(request.match_info["exchange"]).name
        try:
            return await self._machine.metadata.instruments(name)
        except UpstreamError:
            found = [] if self._machine.recorded is None else await asyncio.to_thread(self._machine.recorded.instruments, name)
            if not found:
                raise
            return _document_of(found)

    async def api_key_info(self, request: web.Request) -> web.StreamResponse:
        """What the key of this server opens."""
        return _answer(request, await self._machine.metadata.api_key_info())


async def exchange_details(machine: Machine, exchange: str) -> Metadata:
    """What upstream tells of an exchange, else what was recorded of it; UpstreamError where neither is there."""
    try:
        return await machine.metadata.exchange(exchange)
    except UpstreamError:
        found = None if machine.recorded is None else await asyncio.to_thread(machine.recorded.exchange, exchange)
        if found is None:
            raise
        return _document_of(found)


def is_public_document(path: str) -> bool:
    """Whether a path is for everyone, as upstream: its clients ask for exchanges without a key."""
    return path == "/v1/exchanges" or path.startswith("/v1/exchanges/")


def _document_of(data: Any) -> Metadata:
    return Metadata(orjson.dumps(data))


def _answer(request: web.Request, document: Metadata) -> web.StreamResponse:
    answer = SharedBody(request, document.body, _headers_of(document))
    answer[_DOCUMENT] = document  # who asks for it while this one is sent gets the same
    return answer


def _headers_of(document: Metadata) -> dict[str, str]:
    warning = {"Warning": '110 - "upstream is away: this may be out of date"'} if document.is_stale else {}
    return {hdrs.CONTENT_TYPE: "application/json", **warning}


def _parse_filter(text: str) -> Any:
    if len(text) > MAX_FILTER_BYTES:
        raise OptionsError(f"filter: expected at most {MAX_FILTER_BYTES} characters, got {len(text)}", "filter")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OptionsError(f"filter: expected a JSON object, but it is not valid JSON ({error})", "filter") from None
