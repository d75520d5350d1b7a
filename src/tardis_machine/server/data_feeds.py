"""The history API's own route, `/v1/data-feeds/{exchange}`: for clients that read history themselves, slice by slice.

A slice comes from the cache, from own recordings, or from upstream by way of the cache, asked with the server's key.

Invariant: an answer has all lines of the minutes that were asked for. What it costs is bounded, and shared fairly between clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import orjson
import zstandard
from aiohttp import hdrs, web
from isal import igzip

from ..engine import Machine
from ..errors import OptionsError, SliceError
from ..history.fair_slots import FairSlots
from ..history.reader import load_slice, read_slice
from ..history.slice import MINUTE_US, Encoding, Slice
from ..history.threads import Threads
from ..pipeline.limits import RequestLimits
from ..pipeline.request import RawRequest, parse_raw_request
from .bodies import write_pieces
from .request_options import OptionsReader, peer_of, query_of

__all__ = ["DataFeedRoutes"]

COMPRESSIONS = ("zstd-multiframe", "zstd", "gzip", "none")
Compression = Literal["zstd-multiframe", "zstd", "gzip", "none"]

MAX_SLICE_MINUTES = 10
SUGGESTED_BYTES = 1 << 20
"""Decompressed; smaller minutes are better asked for by the slice."""

ATTEMPTS = 2
"""Clients ask again themselves; until then they had better know."""

_MAX_OFFSET = 1 << 31


class SliceRequest(NamedTuple):
    """What one request asks for."""

    exchange: str
    start_us: int
    minutes: int
    feed: RawRequest
    compression: Compression

    @property
    def end_us(self) -> int:
        return self.start_us + self.minutes * MINUTE_US


class DataFeedRoutes:
    """The handler, for one machine. At most as many slices as there are slots are in memory."""

    def __init__(self, machine: Machine, reader: OptionsReader, slots: FairSlots) -> None:
        self._machine = machine
        self._reader = reader
        self._slots = slots
        self._threads = Threads(count=2)

    def add_to(self, app: web.Application) -> None:
        """Puts the route into an application."""
        app.router.add_get("/v1/data-feeds/{exchange}", self.data_feed, allow_head=False)

    async def data_feed(self, request: web.Request) -> web.StreamResponse:
        """One slice."""
        query = query_of(request)
        accepted = request.headers.get(hdrs.ACCEPT_ENCODING, "")
        asked = await self._reader.in_turn(
            len(query.get("filters", "")),
            lambda: parse_slice_request(request.match_info["exchange"], query, accepted, self._reader.limits),
        )
        asker = peer_of(request)
        slices = self._machine.client.slices(
            asked.exchange, asked.start_us, asked.end_us, asked.feed.filters, asker=asker, attempts=ATTEMPTS
        )
        items = [item async for item in slices]
        async with self._slots.held_by(asker):
            try:
                body, lines_bytes = await self._threads.run(_pack, items, asked.compression)
            except SliceError:
                items = [whole for item in items for whole in await self._machine.client.refetch(item, asker=asker)]
                body, lines_bytes = await self._threads.run(_pack, items, asked.compression)
            return await _send(request, body, _headers(asked, lines_bytes))


def parse_slice_request(exchange: str, query: Mapping[str, str], accepted: str, limits: RequestLimits) -> SliceRequest:
    """The fields of the URL, as clients of the history API send them."""
    start = query.get("from", "")
    if "T" in start:
        start = start.replace(" ", "+")  # what a client means by a + that it did not escape
    feed = parse_raw_request({"exchange": exchange, "from": start, "to": start, "filters": _parse_filters(query)}, limits)
    from_us = feed.from_us - feed.from_us % MINUTE_US
    start_us = from_us + _parse_whole(query, "offset", 0, 0, _MAX_OFFSET) * MINUTE_US
    minutes = _parse_whole(query, "sliceSize", 1, 1, MAX_SLICE_MINUTES)
    return SliceRequest(feed.exchange, start_us, minutes, feed, _parse_compression(query, accepted))


def _parse_filters(query: Mapping[str, str]) -> Any:
    text = query.get("filters", "")
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError as error:
        raise OptionsError(
            f"filters: expected a JSON array of {{channel, symbols?}}, but it is not valid JSON ({error})", "filters"
        ) from None


def _parse_whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise OptionsError(f"{name}: expected a whole number from {least} to {most}, got {text[:40]!r}", name)
    return int(text)


def _parse_compression(query: Mapping[str, str], accepted: str) -> Compression:
    """The one that is asked for; else the first that the client accepts."""
    text = query.get("compression", "")
    for compression in COMPRESSIONS:
        if text == compression:
            return compression  # type: ignore[return-value]
    if text:
        raise OptionsError(f"compression: expected one of {', '.join(COMPRESSIONS)}, got {text[:40]!r}", "compression")
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0"):
            if name.strip() in ("gzip", "*"):
                return "gzip"
            if name.strip() == "zstd":
                return "zstd"
    return "none"


def _pack(items: Sequence[Slice], compression: Compression) -> tuple[bytes, int]:
    """The body, and how many bytes it has decompressed. SliceError where a slice is damaged."""
    loaded = [load_slice(item) for item in items]
    parts = [read_slice(item) for item in loaded]
    lines = b"".join(parts)
    encoding: Encoding | None = None if compression == "none" else "gz" if compression == "gzip" else "zst"
    if not any(item.partial or item.encoding != encoding for item in loaded) and (
        encoding == "gz" or compression == "zstd-multiframe" or _is_one_frame(loaded, len(lines))
    ):
        return b"".join([item.data or b"" for item in loaded]), len(lines)
    if encoding is None:
        return lines, len(lines)
    return (bytes(igzip.compress(lines, 1, mtime=0)) if encoding == "gz" else zstandard.compress(lines, 1)), len(lines)


def _is_one_frame(loaded: Sequence[Slice], lines_bytes: int) -> bool:
    """Whether a client that reads but one frame reads all of it."""
    return len(loaded) == 1 and zstandard.frame_content_size(loaded[0].data or b"") == lines_bytes


def _headers(asked: SliceRequest, lines_bytes: int) -> dict[str, str]:
    headers = {
        hdrs.CONTENT_TYPE: "application/x-ndjson",
        "X-Slice-Size": str(asked.minutes),
        "X-Suggested-Slice-Size": str(_suggested_minutes(asked, lines_bytes)),
        hdrs.VARY: "Accept-Encoding",
    }
    if asked.compression != "none":
        headers[hdrs.CONTENT_ENCODING] = "gzip" if asked.compression == "gzip" else "zstd"
    return headers


def _suggested_minutes(asked: SliceRequest, lines_bytes: int) -> int:
    if not asked.feed.filters:
        return 1
    a_minute = max(lines_bytes // asked.minutes, 1)
    return min(max(SUGGESTED_BYTES // a_minute, 1), MAX_SLICE_MINUTES)


async def _send(request: web.Request, body: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={**headers, hdrs.CONTENT_LENGTH: str(len(body))})
    await response.prepare(request)
    with suppress(ConnectionError):
        await write_pieces(request, response, body)
        await response.write_eof()
    return response
