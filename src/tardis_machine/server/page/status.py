"""What the page's first view shows: feeds, buses, replays, lake jobs and what the server itself does, as one object.

Invariant: made once a second for all browsers together, and only while there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import orjson
from msgspec import to_builtins

from ..._version import __version__
from ...engine import Machine
from ...errors import BusyError
from ...telemetry import CONNECTIONS, MESSAGES_SENT
from .lake import LakeJobs
from .latency import ConfirmLatency

__all__ = ["StatusFeed"]

INTERVAL_S = 1.0
MOST_SUBSCRIBERS = 100
"""Each keeps a connection for as long as it likes, which others can't have."""


class _Rates:
    """How much counters grew in a second, since they were last looked at."""

    def __init__(self) -> None:
        self._last: dict[Any, float] = {}
        self._last_s = 0.0
        self._seconds = 0.0

    def begin(self, now_s: float) -> None:
        self._seconds = now_s - self._last_s if self._last_s else 0.0
        self._last_s = now_s

    def of(self, key: Any, count: float) -> float:
        before = self._last.get(key)
        self._last[key] = count
        return 0.0 if before is None or self._seconds <= 0 else max(0.0, count - before) / self._seconds


class StatusFeed:
    """Gives every subscriber the state of the machine, each second."""

    def __init__(self, machine: Machine, lake_metrics: Sequence[str] = ()) -> None:
        self._machine = machine
        self._lake_jobs = LakeJobs(lake_metrics)
        self._began_s = time.monotonic()
        self._rates = _Rates()
        self._latency = ConfirmLatency()
        self._subscribers = 0
        self._ticking: asyncio.Task[None] | None = None
        self._next: asyncio.Future[bytes] | None = None

    async def __aenter__(self) -> StatusFeed:
        """One more browser looks; BusyError where too many do."""
        if self._subscribers == MOST_SUBSCRIBERS:
            raise BusyError(f"{MOST_SUBSCRIBERS} browsers look at this machine, and no more are allowed; try again later")
        self._subscribers += 1
        if self._ticking is None:
            self._next = asyncio.get_running_loop().create_future()
            self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._subscribers -= 1
        if self._subscribers == 0 and self._ticking is not None:
            ticking, self._ticking = self._ticking, None
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking

    async def next(self) -> bytes:
        """The next state, as JSON."""
        assert self._next is not None
        return await asyncio.shield(self._next)

    async def _tick(self) -> None:
        async with self._lake_jobs.watched():
            while True:
                assert self._next is not None
                told, self._next = self._next, asyncio.get_running_loop().create_future()
                told.set_result(orjson.dumps(self.look()))
                await asyncio.sleep(INTERVAL_S)

    def look(self) -> dict[str, Any]:
        """The state now."""
        self._rates.begin(time.monotonic())
        machine = self._machine
        return {
            "timestampMs": time.time_ns() // 1_000_000,
            "version": __version__,
            "uptimeSeconds": round(time.monotonic() - self._began_s),
            "workers": len(machine.workers.pids),
            "webSockets": round(_total(CONNECTIONS)),
            "messagesPerSecond": round(self._rates.of("sent", _total(MESSAGES_SENT))),
            "feeds": self._feeds(),
            "buses": self._buses(),
            "replays": [player.status() for player in machine.players],
            "lakeJobs": self._lake_jobs.states,
        }

    def _feeds(self) -> list[dict[str, Any]]:
        feeds = []
        for key, stream in self._machine.live.feeds:
            health = stream.health
            feeds.append(
                {
                    "exchange": key.exchange,
                    "symbols": stream.symbols,
                    "dataTypes": key.data_types,
                    "isPublished": key.is_published,
                    "clients": stream.clients,
                    "isHearing": health.is_hearing,
                    "messages": health.messages,
                    "messagesPerSecond": round(self._rates.of(stream, health.messages)),
                    "lastMessageMs": _milliseconds(health.last_message_s),
                    "losses": health.losses,
                    "outagesMs": [[_milliseconds(o.began_s), _milliseconds(o.ended_s)] for o in health.outages],
                }
            )
        return feeds

    def _buses(self) -> list[dict[str, Any]]:
        publisher = self._machine.publisher
        if publisher is None:
            return []
        latency = self._latency.look()
        buses = []
        for health, receipt in zip(publisher.health(), publisher.receipts, strict=True):
            bus = {**to_builtins(health), **to_builtins(receipt)}
            bus["confirmed_per_second"] = round(self._rates.of(health.bus, receipt.confirmed))
            bus["confirm_ms"] = latency.get(health.bus)
            buses.append(bus)
        return buses


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _total(metric: Any) -> float:
    """Of all labels."""
    collected: Iterable[Any] = metric.instrument.collect()
    return float(sum(sample.value for item in collected for sample in item.samples if not sample.name.endswith("_created")))
