"""A stand-in of the history API over real HTTP: the sample market's slices, its errors, and faults on command.

Invariant: a slice's bytes depend on its query alone; counters and faults are the only state.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from multiprocessing.connection import Connection
from random import Random
from types import TracebackType

import msgspec
from aiohttp import web

from ..errors import OptionsError
from ..filters import Filter, optimize_filters, to_compact_json
from .bounded_cache import BoundedCache
from .compression import COMPRESSIONS, Compression, compress, encoding_of
from .faults import Fault
from .listing import describe_exchange, list_exchanges, list_instruments
from .market import MINUTE_US, SampleMarket
from .recording import Recording, venue_of

__all__ = ["Fault", "ReceivedSliceRequest", "SampleHistoryApi"]

_DAY_US = 1_440 * MINUTE_US
_MAX_SLICE_MINUTES = 10
_SUGGESTED_BYTES = 200_000
_PIECE_BYTES = 4_096
_KEEP_BYTES = 128 << 20
_ACCESS = {"exchange": "all", "accessType": "standard", "dataPlan": "sample", "from": "2019-03-30", "to": "2100-01-01"}


@dataclass(frozen=True, slots=True)
class ReceivedSliceRequest:
    """A request for a slice, as a client sent it."""

    exchange: str
    start_us: int
    minutes: int
    filters: tuple[Filter, ...]
    compression: Compression
    authorization: str | None
    user_agent: str | None

    @property
    def slice(self) -> tuple[str, int, int, bytes]:
        """What is asked for, whoever asks: exchange, start, minutes and compact filters."""
        return self.exchange, self.start_us, self.minutes, to_compact_json(self.filters)


class SampleHistoryApi:
    """The history API of the sample market on 127.0.0.1.

    `async with SampleHistoryApi() as api` serves inside the running loop, `with api.serve_in_thread()` in a thread, and
    `with SampleHistoryApi.serve_in_process() as url` in another process. Without `api_key` all days are open; with one, only the
    first day of each month is readable without it, as upstream. `clock_us` says until when there is data.
    """

    def __init__(
        self,
        source: Recording | SampleMarket | None = None,
        *,
        api_key: str | None = None,
        port: int = 0,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self.recording = source if isinstance(source, Recording) else Recording(source)
        self.requests: list[ReceivedSliceRequest] = []
        self.counts: Counter[tuple[str, int, int, bytes]] = Counter()
        """Requests for each slice, whatever the answer was."""
        self.metadata_requests: list[str] = []
        """Paths that were asked for."""
        self._api_key = api_key
        self._port = port
        self._clock_us = clock_us or (lambda: time.time_ns() // 1_000)
        self._faults: deque[tuple[Fault, int, Callable[[ReceivedSliceRequest], bool]]] = deque()
        self._bodies: BoundedCache[tuple[bytes, int]] = BoundedCache(_KEEP_BYTES)
        self._runner: web.AppRunner | None = None
        self._closing: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """The base address, as `--api-url` takes it."""
        return f"http://127.0.0.1:{self._port}/v1"

    def fail(self, fault: Fault, *, times: int = 1, when: Callable[[ReceivedSliceRequest], bool] | None = None) -> None:
        """Answers the next `times` requests that `when` is true for (any) with a fault."""
        self._faults.append((fault, times, when or (lambda request: True)))

    def recover(self) -> None:
        """Forgets the faults that are left."""
        self._faults.clear()

    async def __aenter__(self) -> SampleHistoryApi:
        self._closing = asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/data-feeds/{exchange}", self._answer)
        app.router.add_get("/v1/exchanges", self._answer_metadata)
        app.router.add_get("/v1/exchanges/{exchange}", self._answer_metadata)
        app.router.add_get("/v1/instruments/{exchange}", self._answer_metadata)
        app.router.add_get("/v1/api-key-info", self._answer_metadata)
        app.router.add_route("*", "/{path:.*}", _answer_not_found)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._runner is not None
        assert self._closing is not None
        self._closing.set()
        await self._runner.cleanup()

    @contextmanager
    def serve_in_thread(self) -> Iterator[SampleHistoryApi]:
        """Serves from a thread until the block ends."""
        started = threading.Event()
        loop = asyncio.new_event_loop()
        done = asyncio.Event()
        failure: list[BaseException] = []

        async def serve() -> None:
            try:
                async with self:
                    started.set()
                    await done.wait()
            except OSError as error:
                failure.append(error)
                started.set()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="sample-history-api", daemon=True)
        thread.start()
        started.wait()
        try:
            if failure:
                raise failure[0]
            yield self
        finally:
            if not failure:
                loop.call_soon_threadsafe(done.set)
            thread.join()
            loop.close()

    @staticmethod
    @contextmanager
    def serve_in_process(
        *, seed: int = 1, activity: float = 1.0, disconnects_per_day: float = 24.0, api_key: str | None = None, port: int = 0
    ) -> Iterator[str]:
        """Serves from another process until the block ends, so that making data takes no time of this one; yields the address."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, seed, activity, disconnects_per_day, api_key, port)
        process = context.Process(target=_serve_until_told, args=arguments, daemon=True)
        process.start()
        theirs.close()
        try:
            answer = ours.recv()
            if isinstance(answer, OSError):
                raise answer
            yield answer
        finally:
            ours.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    async def _answer(self, http_request: web.Request) -> web.StreamResponse:
        try:
            request = _parse_request(http_request)
        except OptionsError as error:
            return _error(404 if error.field == "exchange" else 400, str(error))
        self.requests.append(request)
        self.counts[request.slice] += 1
        fault = self._take_fault(request)
        if fault.location is not None:
            return web.Response(status=302, headers={"Location": fault.location})
        if fault.body == "hang":
            assert self._closing is not None
            await self._closing.wait()
            return _error(503, "The sample history API is closed.")
        if fault.status != 200:
            return _error(fault.status, fault.message)
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        body, raw_bytes = await self._fetch_body(request, fault)
        headers = {"Content-Type": "application/x-ndjson"}
        if fault.encoding_header:
            headers["Content-Encoding"] = encoding_of(request.compression)
        if fault.slice_size != "missing":
            headers["X-Slice-Size"] = str(request.minutes if fault.slice_size == "right" else fault.slice_size)
        headers["X-Suggested-Slice-Size"] = str(_suggested_minutes(request, raw_bytes))
        return await _send(http_request, body, headers, fault)

    async def _answer_metadata(self, request: web.Request) -> web.StreamResponse:
        self.metadata_requests.append(request.path)
        if not request.path.startswith("/v1/exchanges") and self._api_key is not None:
            authorization = request.headers.get("Authorization")
            if authorization != f"Bearer {self._api_key}":
                return _error(401, "The API key is not valid.")
        exchange = request.match_info.get("exchange")
        try:
            if exchange is None:
                return web.json_response(list_exchanges() if request.path == "/v1/exchanges" else [_ACCESS])
            describe = describe_exchange if request.path.startswith("/v1/exchanges") else list_instruments
            return web.json_response(describe(exchange))
        except OptionsError as error:
            return _error(404, str(error))

    def _take_fault(self, request: ReceivedSliceRequest) -> Fault:
        for place, (fault, times, when) in enumerate(self._faults):
            if when(request):
                if times == 1:
                    del self._faults[place]
                else:
                    self._faults[place] = (fault, times - 1, when)
                return fault
        return Fault()

    def _refusal(self, request: ReceivedSliceRequest) -> web.Response | None:
        """What upstream answers instead of data: no access, or nothing there yet."""
        if self._api_key is not None and request.authorization != f"Bearer {self._api_key}":
            if request.authorization is not None:
                return _error(401, "The API key is not valid.")
            last_us = request.start_us + (request.minutes - 1) * MINUTE_US
            if not all(_is_first_of_month(instant_us // _DAY_US) for instant_us in (request.start_us, last_us)):
                return _error(401, "Without an API key only the first day of each month is available.")
        if request.start_us + request.minutes * MINUTE_US > self._clock_us():
            return _error(400, "Data for the requested minute is not available yet.")
        return None

    async def _fetch_body(self, request: ReceivedSliceRequest, fault: Fault) -> tuple[bytes, int]:
        """The compressed slice and its raw size."""
        key = (*request.slice, request.compression, fault.trailing_newline)
        body = self._bodies.get(key)
        if body is None:
            body = await asyncio.to_thread(self._make_body, request, fault.trailing_newline)
            self._bodies.put(key, body, len(body[0]))
        return body

    def _make_body(self, request: ReceivedSliceRequest, trailing_newline: bool) -> tuple[bytes, int]:
        data = self.recording.slice(request.exchange, request.start_us, request.minutes, request.filters)
        if not trailing_newline:
            data = data.removesuffix(b"\n")
        return compress(data, request.compression), len(data)


def _parse_request(request: web.Request) -> ReceivedSliceRequest:
    query = request.query
    exchange = request.match_info["exchange"]
    venue_of(exchange)
    start_us = _parse_from(query.get("from", "")) + _parse_whole(query.get("offset", "0"), "offset", 0) * MINUTE_US
    return ReceivedSliceRequest(
        exchange,
        start_us,
        _parse_whole(query.get("sliceSize", "1"), "sliceSize", 1, _MAX_SLICE_MINUTES),
        _parse_filters(query.get("filters", "[]")),
        _parse_compression(query.get("compression", "gzip")),
        request.headers.get("Authorization"),
        request.headers.get("User-Agent"),
    )


def _parse_from(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionsError(f"from: expected a date in ISO 8601 format, got '{text}'", "from") from None
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    return int(moment.timestamp()) // 60 * MINUTE_US


def _parse_whole(text: str, field: str, least: int, most: int = 1 << 31) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise OptionsError(f"{field}: expected a whole number from {least}, got '{text}'", field)
    return int(text)


def _parse_filters(text: str) -> tuple[Filter, ...]:
    try:
        return tuple(optimize_filters(msgspec.json.decode(text, type=list[Filter])))
    except msgspec.MsgspecError as error:
        raise OptionsError(f"filters: expected a JSON array of {{channel, symbols?}}: {error}", "filters") from None


def _parse_compression(text: str) -> Compression:
    for compression in COMPRESSIONS:
        if text == compression:
            return compression
    raise OptionsError(f"compression: expected one of {', '.join(COMPRESSIONS)}, got '{text}'", "compression")


def _is_first_of_month(day: int) -> bool:
    return (date(1970, 1, 1) + timedelta(days=day)).day == 1


def _suggested_minutes(request: ReceivedSliceRequest, raw_bytes: int) -> int:
    """Sparse filters are worth longer slices."""
    if not request.filters:
        return 1
    a_minute = max(raw_bytes // request.minutes, 1)
    return max(1, min(_MAX_SLICE_MINUTES, _SUGGESTED_BYTES // a_minute))


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"code": status, "message": message}, status=status)


async def _answer_not_found(request: web.Request) -> web.StreamResponse:
    return _error(404, f"There is nothing at {request.path}.")


async def _send(request: web.Request, body: bytes, headers: dict[str, str], fault: Fault) -> web.StreamResponse:
    if fault.body == "half":
        body = body[: len(body) // 2]
    elif fault.body == "garbage":
        body = Random(len(body)).randbytes(max(len(body), 64))
    elif fault.body == "empty":
        body = b""
    if fault.body != "cut" and not fault.chunk_pause_s:
        return web.Response(body=body, headers=headers)
    response = web.StreamResponse(headers={**headers, "Content-Length": str(len(body))})
    await response.prepare(request)
    end = len(body) // 2 if fault.body == "cut" else len(body)
    for start in range(0, end, _PIECE_BYTES):
        await response.write(body[start : min(start + _PIECE_BYTES, end)])
        await asyncio.sleep(fault.chunk_pause_s)
    if fault.body == "cut":
        assert request.transport is not None
        request.transport.abort()
    return response


def _serve_until_told(
    pipe: Connection, seed: int, activity: float, disconnects_per_day: float, api_key: str | None, port: int
) -> None:
    """The other process: serves until its pipe is closed."""

    async def serve() -> None:
        recording = Recording(SampleMarket(seed, activity), disconnects_per_day=disconnects_per_day)
        async with SampleHistoryApi(recording, api_key=api_key, port=port) as api:
            pipe.send(api.url)
            await asyncio.to_thread(_wait_for_end, pipe)

    try:
        asyncio.run(serve())
    except OSError as error:
        pipe.send(error)


def _wait_for_end(pipe: Connection) -> None:
    with suppress(EOFError, OSError):
        pipe.recv()
