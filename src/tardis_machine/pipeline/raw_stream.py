"""Live data in the exchange's own format, for who imports the package.

Invariant: what is heard is passed on as it came, in the order of its arrival; nothing is lost while it waits, as listening pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ..exchanges import exchange_named
from ..realtime.accounts import check_credentials, find_credentials
from ..realtime.backoff import Timings
from ..realtime.connection import Arrivals, Connection, open_session
from ..realtime.endpoints import check_urls
from ..realtime.troubles import Trouble
from .request import parse_raw_stream_request
from .stream import MAX_UNREAD

__all__ = ["stream"]

RawMessage = tuple[str, Any]


class _RawBatches:
    """A Listener: messages that wait for whoever iterates."""

    def __init__(self, with_disconnects: bool) -> None:
        self._with_disconnects = with_disconnects
        self._waiting: list[RawMessage | None] = []
        self.changed = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MAX_UNREAD

    async def ready(self) -> None:
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    def take(self, arrivals: Arrivals) -> None:
        self._waiting += zip((stamp.decode() for stamp in arrivals.stamps), arrivals.messages, strict=True)
        self.changed.set()

    def lost(self, reason: str, close_code: int | None) -> None:
        # As in history, several in a row are one.
        if self._with_disconnects and (not self._waiting or self._waiting[-1] is not None):
            self._waiting.append(None)
            self.changed.set()

    def failed(self, trouble: Trouble) -> None:
        """The log has it."""

    def batch(self) -> list[RawMessage | None]:
        batch, self._waiting = self._waiting, []
        self.changed.clear()
        self._taken.set()
        return batch


async def stream(
    *,
    exchange: str,
    filters: Sequence[dict[str, Any]],
    with_disconnects: bool = False,
    timeout_interval_ms: float | None = None,
    exchange_urls: Mapping[str, str] | None = None,
    exchange_credentials: Mapping[str, str] | None = None,
    _timings: Timings | None = None,
) -> AsyncGenerator[list[RawMessage | None], None]:
    """Live messages in the exchange's own format: batches of (local timestamp, message), None for a lost connection. Never ends.

    async for batch in stream(exchange="bitmex", filters=[{"channel": "trade", "symbols": ["XBTUSD"]}]):
        for local_timestamp, message in batch: ...
    """
    request = parse_raw_stream_request(
        {
            "exchange": exchange,
            "filters": [dict(item) for item in filters],
            "timeoutIntervalMS": timeout_interval_ms,
        }
    )
    found = exchange_named(request.exchange)
    assert found.live is not None
    urls, timings = check_urls(exchange_urls or {}), _timings or Timings()
    credentials = find_credentials(found.name, check_credentials(exchange_credentials or {}))
    batches = _RawBatches(with_disconnects)
    async with open_session(urls, timings) as session:
        connections = [
            Connection(
                found,
                socket,
                batches,
                session,
                timeout_s=request.timeout_interval_ms / 1000,
                urls=urls,
                timings=timings,
                credentials=credentials,
            )
            for socket in found.live.feed.split(found.name, list(request.filters))
        ]
        running = asyncio.gather(*(connection.run() for connection in connections))
        running.add_done_callback(lambda _: batches.changed.set())
        try:
            while True:
                await batches.changed.wait()
                if running.done():
                    await running  # a fault of our own: exchanges' never end it
                if batch := batches.batch():
                    yield batch
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
