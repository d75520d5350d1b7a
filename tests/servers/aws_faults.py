"""A service of Amazon's that fails as the emulators can't: an HTTP proxy in front of one that answers in its place.

Invariant: what it refuses never reaches the service; what it lets through is answered by the service alone.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
from aiohttp import web

CALL_TIMEOUT_S = 10.0
CALLS_KEPT = 2000
LARGEST_REQUEST_BYTES = 16 * 1024**2
# Where the calls that write have their entries.
ENTRIES = {"PutRecords": "Records", "SendMessageBatch": "Entries"}
NOTHING_STORED = b'{"Records": [], "Successful": []}'
OWN_HEADERS = ("host", "content-length", "transfer-encoding", "expect")

Body = dict[str, Any]


class Asked(NamedTuple):
    """A request of the bus."""

    operation: str
    body: Body
    access_key: str


class AwsFaults:
    """Listens on a free port of 127.0.0.1 and forwards to another port there, with TLS if a context is given.

    It runs in a thread of its own. A fault lasts until `heal`.
    """

    def __init__(self, target_port: int, tls: ssl.SSLContext | None = None) -> None:
        self.target_port = target_port
        self.port = 0
        self.calls: deque[Asked] = deque(maxlen=CALLS_KEPT)
        """What was asked for last, refused or not."""
        self._tls = tls
        self._fail: Callable[[Asked], tuple[int, str, str] | None] = lambda asked: None
        self._refuse: Callable[[Body], str | None] = lambda entry: None
        self._alter: dict[str, Callable[[Body], Body]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aws-faults", daemon=True)

    # --- faults --------------------------------------------------------------------------------------------------------------

    def fail(self, code: str, status: int = 400, message: str = "", *, only: Callable[[Asked], bool] | None = None) -> None:
        """Calls fail as a whole: all of them, or some."""
        self._fail = lambda asked: (status, code, message) if only is None or only(asked) else None

    def refuse(self, code: str, only: Callable[[Body], bool]) -> None:
        """Of the calls that write, some entries fail."""
        self._refuse = lambda entry: code if only(entry) else None

    def alter(self, operation: str, change: Callable[[Body], Body]) -> None:
        """The service says something else of itself."""
        self._alter[operation] = change

    def heal(self) -> None:
        self._fail = lambda asked: None
        self._refuse = lambda entry: None
        self._alter.clear()

    # --- the proxy -----------------------------------------------------------------------------------------------------------

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
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def _serve(self, request: web.Request) -> web.Response:
        operation = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        body: Body = json.loads(await request.read())
        asked = Asked(operation, body, request.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0])
        self.calls.append(asked)
        failed = self._fail(asked)
        if failed is not None:
            return web.json_response({"__type": failed[1], "message": failed[2]}, status=failed[0])
        entries = body.get(ENTRIES.get(operation, ""), [])
        refused = {place: code for place, entry in enumerate(entries) if (code := self._refuse(entry)) is not None}
        if refused:
            body = {**body, ENTRIES[operation]: [entry for place, entry in enumerate(entries) if place not in refused]}
        status, text = (200, NOTHING_STORED) if len(refused) == len(entries) > 0 else await self._forward(request, body)
        if status == 200 and (refused or operation in self._alter):
            answer = _merge(operation, entries, refused, json.loads(text))
            text = json.dumps(self._alter[operation](answer) if operation in self._alter else answer).encode()
        return web.Response(body=text, status=status, content_type=request.content_type)

    async def _forward(self, request: web.Request, body: Body) -> tuple[int, bytes]:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN_HEADERS}
        url = f"http://127.0.0.1:{self.target_port}{request.rel_url}"
        async with self._client.request(request.method, url, headers=headers, data=json.dumps(body)) as answer:
            return answer.status, await answer.read()


def _merge(operation: str, entries: list[Body], refused: dict[int, str], answer: Body) -> Body:
    """The service's answer about what it got, and ours about what it did not."""
    if not refused:
        return answer
    if operation == "SendMessageBatch":
        failed = [{"Id": entries[place]["Id"], "Code": code, "SenderFault": False} for place, code in refused.items()]
        return {**answer, "Failed": [*answer.get("Failed", []), *failed]}
    stored = iter(answer["Records"])
    results = [
        {"ErrorCode": refused[place], "ErrorMessage": "injected"} if place in refused else next(stored)
        for place in range(len(entries))
    ]
    return {"FailedRecordCount": len(refused), "Records": results}
