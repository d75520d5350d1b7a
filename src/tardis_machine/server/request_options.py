"""The options of a request, read: `?options=` in the URL, or the body of a POST.

Invariant: the event loop is not held by what is long; that is read in a thread, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from ..errors import OptionsError
from ..pipeline.limits import RequestLimits, option_of

__all__ = ["REQUEST_TIMEOUT_S", "OptionsReader", "query_of"]

REQUEST_TIMEOUT_S = web.AppKey("REQUEST_TIMEOUT_S", float)
"""How long the body of a request may take."""

# What is parsed and checked in a millisecond or two.
SHORT_BYTES = 64 * 1024

# A query that has more is not one of ours, and takes long to take apart.
MAX_QUERY_FIELDS = 100

Parsed = TypeVar("Parsed")


class OptionsReader:
    """Reads requests within their limits."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        # One thread at a time is enough to be off the loop; more would take turns with it.
        self._turn = asyncio.Lock()

    async def read(self, request: web.Request, parse: Callable[[Any, RequestLimits], Parsed]) -> Parsed:
        """What `parse` makes of the options of a request; OptionsError says what is wrong with them."""
        if request.method == "POST":
            text: bytes | str = await _read_body(request)
            name = "body"
        else:
            text = query_of(request).get("options", "")
            name = "options"
            if not text:
                raise OptionsError(
                    'options: expected a JSON object, as in ?options={"exchange":"bitmex",…}, got nothing', "options"
                )
        return await self.in_turn(len(text), lambda: parse(_parse_json(text, name), self.limits))

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


async def _read_body(request: web.Request) -> bytes:
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(reason="body: expected JSON that is not compressed")
    try:
        async with asyncio.timeout(request.app[REQUEST_TIMEOUT_S]):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="body: it did not come in time; see --request-timeout") from None
    except web.HTTPRequestEntityTooLarge:
        most = request.client_max_size
        reason = f"body: expected at most {most} bytes; {option_of('max_request_bytes')} allows more"
        raise web.HTTPRequestEntityTooLarge(most, reason=reason) from None
    except (HttpProcessingError, web.RequestPayloadError) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise OptionsError(f"body: the JSON object could not be read to its end ({cause})", "body") from None


def _parse_json(text: bytes | str, name: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OptionsError(
            f'{name}: expected an object such as {{"exchange":"bitmex",…}}, but it is not valid JSON ({error})', name
        ) from None
