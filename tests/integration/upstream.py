"""A history API on 127.0.0.1 that answers rightly until a test tells it not to.

Invariant: what it answers is a function of the asked minutes, so that a test knows the right data of any replay.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import zstandard
from aiohttp import web

from tardis_machine.filters import Filter
from tardis_machine.history.client import HistoryClient
from tardis_machine.history.reader import read_slice
from tardis_machine.history.slice import MINUTE_US, Slice
from tardis_machine.recorded_line import to_time

FROM_US = 1_559_347_200_000_000  # 2019-06-01T00:00Z
SECOND_US = 1_000_000


def at(minute: float) -> int:
    """The time that many minutes into the day of the tests."""
    return FROM_US + round(minute * MINUTE_US)


def recorded(start_us: int, minutes: int = 1) -> bytes:
    """The lines of these minutes; the fourth of every five minutes is empty, the second has a lost connection in it."""
    lines = []
    for minute_us in range(start_us, start_us + minutes * MINUTE_US, MINUTE_US):
        minute = (minute_us - FROM_US) // MINUTE_US
        if minute % 5 == 3:
            continue
        for second in (0, 20, 40, 59):
            lines.append(to_time(minute_us + second * SECOND_US) + b' {"minute":%d,"second":%d}\n' % (minute, second))
            if minute % 5 == 1 and second == 20:
                lines.append(b"\n")
    return b"".join(lines)


@dataclass(frozen=True)
class Asked:
    """One request, as it came."""

    exchange: str
    from_us: int
    offset: int
    minutes: int
    query: str
    filters: object
    headers: dict[str, str]
    connection: int

    @property
    def start_us(self) -> int:
        return self.from_us + self.offset * MINUTE_US


Fault = Callable[[Asked, web.Request], Awaitable[web.StreamResponse | None]]


class Upstream:
    """The server. `fault` may answer in its place, or give None to leave the request to it."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.fault: Fault | None = None
        self.suggested: dict[int, int] = {}
        """Suggested slice sizes by first minute of the slice; 1 elsewhere."""
        self.encoding = "zstd"
        self.frames = 1
        self.under_way = 0
        self.most_under_way = 0
        self.delay_s = 0.0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def windows(self) -> list[tuple[int, int]]:
        """(first minute, minutes) of each request."""
        return [((asked.start_us - FROM_US) // MINUTE_US, asked.minutes) for asked in self.asked]

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/data-feeds/{exchange}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def answer(self, start_us: int, minutes: int, headers: dict[str, str | None] | None = None) -> web.Response:
        """The right answer for these minutes; `headers` replace its own, None takes one away."""
        sent: dict[str, str | None] = {
            "X-Slice-Size": str(minutes),
            "X-Suggested-Slice-Size": str(self.suggested.get((start_us - FROM_US) // MINUTE_US, 1)),
            "Content-Encoding": None if self.encoding == "none" else self.encoding,
            **(headers or {}),
        }
        body = self.compress(recorded(start_us, minutes))
        return web.Response(body=body, headers={name: value for name, value in sent.items() if value is not None})

    def compress(self, data: bytes) -> bytes:
        step = -(-len(data) // self.frames) or 1
        parts = [data[start : start + step] for start in range(0, len(data), step)] or [b""]
        compress = zstandard.ZstdCompressor().compress
        return b"".join(compress(part) if self.encoding == "zstd" else gzip.compress(part, mtime=0) for part in parts)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        start = datetime.fromisoformat(query["from"])
        asked = Asked(
            exchange=request.match_info["exchange"],
            from_us=round(start.timestamp() * 1e6),
            offset=int(query["offset"]),
            minutes=int(query.get("sliceSize", "1")),
            query=request.url.raw_query_string,
            filters=json.loads(query["filters"]) if "filters" in query else None,
            headers=dict(request.headers),
            connection=id(request.transport),
        )
        self.asked.append(asked)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.delay_s)
            if self.fault is not None and (response := await self.fault(asked, request)) is not None:
                return response
            return self.answer(asked.start_us, asked.minutes)
        finally:
            self.under_way -= 1


async def collect(client: HistoryClient, start: float, end: float, filters: Sequence[Filter] = (), **options: Any) -> list[Slice]:
    """All slices of a replay, given in minutes of the day."""
    async with aclosing(client.slices("bitmex", at(start), at(end), filters, **options)) as items:
        return [item async for item in items]


def data_of(items: Sequence[Slice]) -> bytes:
    """The lines of slices, which must follow each other."""
    for before, after in pairwise(items):
        assert before.end_us == after.start_us
    return b"".join(read_slice(item) for item in items)


class Sleeper:
    """Sleeps no real time: notes how long it was asked to, and puts its clock forward."""

    def __init__(self, now_us: int = 4_000_000_000_000_000) -> None:
        self.now_s = now_us / 1e6
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)
