"""The options of a request, read: `?options=` in the URL, or the body of a POST.

Invariant: the event loop is not held by what is long; that is read in a thread, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from ..errors import BusyError, OptionsError
from ..pipeline.limits import RequestLimits, option_of

__all__ = ["REQUEST_TIMEOUT_S", "OptionsReader", "peer_of", "query_of"]

REQUEST_TIMEOUT_S = web.AppKey("REQUEST_TIMEOUT_S", float)
"""How long the body of a request may take."""

# What is parsed and checked in a millisecond or two.
SHORT_BYTES = 64 * 1024

BODIES_TOGETHER = 8
"""How many of the largest bodies may be in memory at a time."""

# A query that has more is not one of ours, and takes long to take apart.
MAX_QUERY_FIELDS = 100

Parsed = TypeVar("Parsed")


class OptionsReader:
    """Reads requests within their limits."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        # One thread at a time is enough to be off the loop; more would take turns with it.
        self._turn = asyncio.Lock()
        # Of bodies that are not short.
        self._held_bytes = 0

    async def read(self, request: web.Request, parse: Callable[[Any, RequestLimits], Parsed]) -> Parsed:
        """What `parse` makes of the options of a request; OptionsError says what is wrong with them."""
        if request.method != "POST":
            text = query_of(request).get("options", "")
            if text:
                return await self._parse(text, "options", parse)
            raise OptionsError('options: expected a JSON object, as in ?options={"exchange":"bitmex",…}, got nothing', "options")
        with self._held() as hold:
            return await self._parse(await _read_body(request, hold), "body", parse)

    async def _parse(self, text: bytes | bytearray | str, name: str, parse: Callable[[Any, RequestLimits], Parsed]) -> Parsed:
        return await self.in_turn(len(text), lambda: parse(_parse_json(text, name), self.limits))

    @contextmanager
    def _held(self) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of a body while it is in memory; BusyError where those of all clients are too many. Short ones always pass."""
        held = counted = 0
        most = BODIES_TOGETHER * self.limits.max_request_bytes

        def hold(size: int) -> None:
            nonlocal held, counted
            held += size
            if held <= SHORT_BYTES:
                return
            if self._held_bytes + held - counted > most:
                raise BusyError(f"max-request-bytes: {self._held_bytes} bytes of requests are being read; try again later")
            self._held_bytes += held - counted
            counted = held

        try:
            yield hold
        finally:
            self._held_bytes -= counted

    async def in_turn(self, size_bytes: int, work: Callable[[], Parsed]) -> Parsed:
        """What `work` gives, of so many bytes."""
        if size_bytes <= SHORT_BYTES:
            return work()
        async with self._turn:
            return await asyncio.to_thread(work)


def query_of(request: web.Request) -> Mapping[str, str]:
    """The fields of the URL's query."""
    if request.rel_url.raw_query_string.count("&") >= MAX_QUERY_FIELDS:
        raise OptionsError(f"query: expected at most {MAX_QUERY_FIELDS} fields", "query")
    return request.query


def peer_of(request: web.Request) -> str:
    """Who asks: what is shared fairly is so between addresses."""
    return request.remote or ""


async def _read_body(request: web.Request, hold: Callable[[int], None]) -> bytearray:
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(reason="body: expected JSON that is not compressed")
    body = bytearray()
    most = request.client_max_size
    try:
        async with asyncio.timeout(request.app[REQUEST_TIMEOUT_S]):
            async for part in request.content.iter_any():
                if len(body) + len(part) > most:
                    reason = f"body: expected at most {most} bytes; {option_of('max_request_bytes')} allows more"
                    raise web.HTTPRequestEntityTooLarge(most, reason=reason)
                hold(len(part))
                body += part
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="body: it did not come in time; see --request-timeout") from None
    except (HttpProcessingError, web.RequestPayloadError) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise OptionsError(f"body: the JSON object could not be read to its end ({cause})", "body") from None
    return body


def _parse_json(text: bytes | bytearray | str, name: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OptionsError(
            f'{name}: expected an object such as {{"exchange":"bitmex",…}}, but it is not valid JSON ({error})', name
        ) from None
