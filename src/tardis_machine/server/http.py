"""The HTTP routes: `/replay`, `/replay-normalized`, `/health-check`, `/metrics`.

Invariant: a complete-looking answer is complete. An error before the first byte has its status; one after it cuts the transfer.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from resource import getpagesize
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import to_builtins
from multidict import CIMultiDict

from .._version import __version__
from ..engine import Machine
from ..errors import BusyError, FaultError, NormalizeError, OptionsError, TardisMachineError, UpstreamError
from ..pipeline.compression import negotiate
from ..pipeline.frames import Form
from ..pipeline.request import NormalizedRequest, RawRequest, SinceRequest, parse_raw_request, parse_replay_requests
from ..processes.jobs.contract import Chunk
from ..telemetry import REQUEST_SECONDS, REQUESTS, get_logger, redact, render_metrics
from .request_options import OptionsReader

log = get_logger("http")

_JSON_STREAM = "application/x-json-stream"
_ARROW_STREAM = "application/vnd.apache.arrow.stream"
_TYPES: dict[Form, str] = {"lines": _JSON_STREAM, "arrow": _ARROW_STREAM}
# Who is answered so is not allowed here, and keeps no connection.
_STRANGER = (web.HTTPUnauthorized.status_code, web.HTTPForbidden.status_code)
_PIECE_BYTES = 64 * 1024
# When one who was refused for too many replays may come back.
RETRY_AFTER_S = 5
# What is served as the history API serves it.
API_PREFIX = "/v1/"

CLOSE_CODE = web.RequestKey("CLOSE_CODE", int)
"""How a WebSocket was closed by us, on its request; not there where the client left before."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpRoutes:
    """The handlers, for one machine."""

    def __init__(self, machine: Machine, reader: OptionsReader) -> None:
        self._machine = machine
        self._reader = reader
        self._started = time.monotonic()

    def add_to(self, app: web.Application) -> None:
        """Puts the routes into an application."""
        for path, handler in (("/replay", self.replay), ("/replay-normalized", self.replay_normalized)):
            app.router.add_get(path, handler, allow_head=False)
            app.router.add_post(path, handler)
        app.router.add_get("/health-check", self.health_check)
        app.router.add_get("/metrics", self.metrics)

    async def replay(self, request: web.Request) -> web.StreamResponse:
        """Raw history."""
        return await self._stream(request, [await self._reader.read(request, parse_raw_request)], "lines")

    async def replay_normalized(self, request: web.Request) -> web.StreamResponse:
        """Normalized history, of one request or several merged, which may go on live."""
        asked = await self._reader.read(request, parse_replay_requests)
        since = [each for each in asked if isinstance(each, SinceRequest)]
        form: Form = "arrow" if _ARROW_STREAM in request.headers.get(hdrs.ACCEPT, "").lower() else "lines"
        if since:
            return await self._stream_since(request, since, form)
        return await self._stream(request, [each for each in asked if isinstance(each, NormalizedRequest)], form)

    async def _stream_since(self, request: web.Request, since: Sequence[SinceRequest], form: Form) -> web.StreamResponse:
        request_id = request_id_of(request)
        chunks = self._machine.replay_since(
            request.path, since, form=form, transport="http", request_id=request_id, parent=request.headers.get("traceparent")
        )
        return await self._answer(request, chunks, CIMultiDict({"Content-Type": _TYPES[form], "X-Request-Id": request_id}))

    async def _stream(
        self, request: web.Request, replays: Sequence[RawRequest] | Sequence[NormalizedRequest], form: Form
    ) -> web.StreamResponse:
        request_id = request_id_of(request)
        player = self._machine.players.make(request.path, replays)
        # What is played at a speed comes in small pieces, each of which is to be read at once.
        compression = None if player.playback.is_paced else negotiate(request.headers.get("Accept-Encoding", ""))
        publish = None
        if isinstance(replays[0], NormalizedRequest):
            publish = self._machine.publishing(request.path, "http", request_id, parent=request.headers.get("traceparent"))
        chunks = self._machine.replay(request.path, replays, form=form, compression=compression, publish=publish, player=player)
        headers = CIMultiDict({"Content-Type": _TYPES[form], "X-Request-Id": request_id, "X-Replay-Id": player.id})
        if compression is not None:
            headers["Content-Encoding"] = compression
            headers["Vary"] = "Accept-Encoding"
        return await self._answer(request, chunks, headers)

    async def _answer(
        self, request: web.Request, chunks: AsyncGenerator[Chunk, None], headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        async with aclosing(chunks):
            # Until there is a first chunk nothing is sent, so that what fails early has a status of its own.
            first = await anext(chunks, None)
            response = web.StreamResponse(headers=headers)
            response.enable_chunked_encoding()
            await response.prepare(request)
            # Who reads slowly keeps the chunk that is being written in memory, and not the first one beside it.
            writing = self._write_all(request, response, first, chunks)
            del first
            if await writing:
                await response.write_eof()
        return response

    async def _write_all(
        self, request: web.Request, response: web.StreamResponse, chunk: Chunk | None, chunks: AsyncIterator[Chunk]
    ) -> bool:
        """Whether all was written; if not, the connection is closed without the last chunk, so that any client sees the cut."""
        try:
            while chunk is not None:
                # What is handed to the transport is there a second time.
                for start in range(0, len(chunk.data), _PIECE_BYTES):
                    await response.write(memoryview(chunk.data)[start : start + _PIECE_BYTES])
                chunk = None
                chunk = await anext(chunks, None)
            return True
        except ConnectionError:
            return False  # the client went away
        except Exception as error:
            cut_off(request, error)
            return False

    async def health_check(self, _request: web.Request) -> web.Response:
        """Whether the server is up, and how each bus is."""
        publisher = self._machine.publisher
        body: dict[str, Any] = {
            "status": "Healthy",
            "version": __version__,
            "uptimeHours": round((time.monotonic() - self._started) / 3600, 2),
            "timestampMs": time.time_ns() // 1_000_000,
            "memoryInfo": {"rssMB": _resident_mb()},
            "workers": len(self._machine.workers.pids),
            "live": len(self._machine.live.pids) + len(self._machine.since.pids),
            "replays": {"running": self._machine.workers.running, "unreadBytes": self._machine.workers.unread_bytes},
            "buses": {} if publisher is None else {health.bus: to_builtins(health) for health in publisher.health()},
        }
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus metrics."""
        return web.Response(body=render_metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _resident_mb() -> float:
    """Memory in use by this process."""
    with suppress(OSError):
        return round(int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize() / 2**20, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1)  # macOS counts bytes


def cut_off(request: web.Request, error: Exception) -> None:
    """An answer that had begun can't be finished: its client is to see that."""
    if isinstance(error, FaultError):
        log.info("a connection was cut on purpose", path=request.path, reason=str(error))
    elif isinstance(error, TardisMachineError):
        log.error("a replay failed after its answer had begun, so the connection was cut", path=request.path, error=str(error))
    else:
        log.exception(
            "a replay met an internal error after its answer had begun, so the connection was cut", path=request.path, cause=error
        )
    if request.transport is not None:
        request.transport.close()


def request_id_of(request: web.Request) -> str:
    """The client's own id for the request, where it can stand in a header and in a record; else a new one."""
    given = request.headers.get("X-Request-Id", "")
    return given if 0 < len(given) <= 128 and given.isascii() and given.isprintable() else uuid4().hex


def error_response(error: TardisMachineError, *, with_code: bool = False) -> web.Response:
    """The answer for an error before the first byte; `with_code` as the history API gives it."""
    body: dict[str, Any] = {"message": redact(str(error))}
    headers: dict[str, str] = {}
    status = 500
    if isinstance(error, OptionsError):
        status = 400
        if error.field is not None:
            body["field"] = error.field
    elif isinstance(error, UpstreamError):
        # A status that means success, or a redirect, would hide the error.
        status = error.status if 400 <= error.status <= 599 else 502
        if error.code is not None:
            body["code"] = error.code
    elif isinstance(error, NormalizeError):
        status = 502
    elif isinstance(error, BusyError):
        status = 503
        headers[hdrs.RETRY_AFTER] = str(RETRY_AFTER_S)
    if with_code:
        body.setdefault("code", status)
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json", headers=headers)


@web.middleware
async def errors_as_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error becomes an answer, as long as there is none."""
    with_code = request.path.startswith(API_PREFIX)
    try:
        return await handler(request)
    except TardisMachineError as error:
        if not isinstance(error, (OptionsError, BusyError)):
            log.error("a request failed", path=request.path, error=str(error))
        return error_response(error, with_code=with_code)
    except web.HTTPException as refusal:
        kept = {name: refusal.headers[name] for name in (hdrs.ALLOW, hdrs.WWW_AUTHENTICATE) if name in refusal.headers}
        body = orjson.dumps({"message": refusal.reason} | ({"code": refusal.status} if with_code else {}))
        response = web.Response(status=refusal.status, body=body, content_type="application/json", headers=kept)
        if refusal.status in _STRANGER:
            response.force_close()
        return response
    except ConnectionError:
        raise
    except Exception as error:
        if request.writer.output_size:
            raise
        log.exception("a request met an internal error", path=request.path, cause=error)
        return error_response(TardisMachineError("an internal error ended this request"), with_code=with_code)


@web.middleware
async def measured(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Counts requests by route and how they ended."""
    resource_ = request.match_info.route.resource
    route = "unknown" if resource_ is None else resource_.canonical
    status, began = "cut", time.monotonic()
    try:
        response = await handler(request)
        if not isinstance(response, web.WebSocketResponse):
            status = str(response.status)
        return response
    finally:
        # Never the code of a client's answer, which may be any.
        status = str(request.get(CLOSE_CODE, status))
        REQUESTS.labels(route, status).inc()
        REQUEST_SECONDS.labels(route).observe(time.monotonic() - began)


def aiohttp_logger() -> logging.Logger:
    """For aiohttp, which logs a traceback for what clients do: one that leaves is worth no line, bytes that are no HTTP are worth one."""
    logger = logging.getLogger("tardis_machine.server.aiohttp")
    if not logger.filters:
        logger.addFilter(_is_our_fault)
    return logger


def _is_our_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        log.info("refused bytes that are not HTTP", error=" ".join(str(error).split())[:200])
        return False
    return not isinstance(error, ConnectionError)
