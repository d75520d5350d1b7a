"""An object store that fails as the real one does: an HTTP proxy in front of an S3 server.

Invariant: a request that is refused never reaches the server; one whose answer is lost was carried out.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import NamedTuple, Self

import aiohttp
from aiohttp import web
from yarl import URL

CALL_TIMEOUT_S = 10.0
LARGEST_REQUEST_BYTES = 64 * 1024**2
OWN_HEADERS = ("content-length", "transfer-encoding", "expect", "connection", "date", "server", "content-type")
OF_CONNECTION = ("content-length", "transfer-encoding", "expect", "connection")
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Request(NamedTuple):
    """What a client asked for."""

    method: str
    path: str


def anything(request: Request) -> bool:
    """Every request."""
    return True


class S3Faults:
    """Listens on a free port of 127.0.0.1 and forwards to an S3 server there.

    It runs in a thread of its own. A fault strikes a share of the requests that it is meant for, by a seed, until `heal`.
    """

    def __init__(self, target_port: int, seed: int = 1) -> None:
        self.target_port = target_port
        self.port = 0
        self.struck: Counter[str] = Counter()
        """How often each fault has struck."""
        self._faults: dict[str, tuple[float, Callable[[Request], bool]]] = {}
        self._random = Random(seed)
        self._ending = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3-faults", daemon=True)

    # --- faults --------------------------------------------------------------------------------------------------------------

    def slow_down(self, share: float = 1.0, only: Callable[[Request], bool] = anything) -> None:
        """Answers 503 SlowDown; the request is not carried out."""
        self._faults["slow_down"] = (share, only)

    def reset(self, share: float = 1.0, only: Callable[[Request], bool] = anything) -> None:
        """Breaks the connection; the request is not carried out."""
        self._faults["reset"] = (share, only)

    def lose_answer(self, share: float = 1.0, only: Callable[[Request], bool] = anything) -> None:
        """Carries the request out and breaks the connection instead of answering."""
        self._faults["lose_answer"] = (share, only)

    def hang(self, share: float = 1.0, only: Callable[[Request], bool] = anything) -> None:
        """Never answers; the request is not carried out."""
        self._faults["hang"] = (share, only)

    def heal(self) -> None:
        self._faults.clear()

    # --- the proxy -----------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(CALL_TIMEOUT_S)
        return self

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(CALL_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def _start(self) -> None:
        app = web.Application(client_max_size=LARGEST_REQUEST_BYTES)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._client = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, auto_decompress=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        self._ending.set()
        await self._runner.cleanup()
        await self._client.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        asked = Request(request.method, request.path)
        body = await request.read()
        fault = next(
            (name for name, (share, only) in self._faults.items() if only(asked) and self._random.random() < share), None
        )
        if fault is not None:
            self.struck[fault] += 1
        if fault == "slow_down":
            return web.Response(status=503, body=SLOW_DOWN, content_type="application/xml")
        if fault == "hang":
            await self._ending.wait()
        if fault in ("hang", "reset"):
            return _broken(request)
        # As it was signed: with the host that the client knows, and a path that is not spelled anew.
        url = URL(f"http://127.0.0.1:{self.target_port}{request.raw_path}", encoded=True)
        signed = [(name, value) for name, value in request.headers.items() if name.lower() not in OF_CONNECTION]
        async with self._client.request(
            request.method, url, headers=signed, data=body or None, skip_auto_headers=("User-Agent", "Content-Type")
        ) as answer:
            text = await answer.read()
            headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in OWN_HEADERS]
        if fault == "lose_answer":
            return _broken(request)
        if request.method == "HEAD":
            headers.append(("Content-Length", answer.headers.get("Content-Length", "0")))
        headers.append(("Content-Type", answer.headers.get("Content-Type", "application/octet-stream")))
        return web.Response(status=answer.status, body=None if request.method == "HEAD" else text, headers=headers)


def _broken(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
