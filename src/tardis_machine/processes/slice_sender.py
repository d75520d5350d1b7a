"""The slices of one request of a replay on their way to its job: fetched, and handed over a few ahead of the reading.

Invariant: at most `SLICE_WINDOW` slices are with the job and not opened yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import aclosing
from dataclasses import replace

from ..filters import Filter
from ..history.client import HistoryClient
from ..pipeline.fetching import fetch_slices
from ..pipeline.replay import NormalizedReplay, RawReplay
from ..pipeline.request import NormalizedRequest, RawRequest
from ..telemetry import get_logger
from .jobs.contract import Failed, SliceDamaged, SliceOpened, to_failed
from .jobs.slices import SLICE_WINDOW

__all__ = ["SliceSender"]

log = get_logger("processes")


class SliceSender:
    """Sends the slices of the request at `place` in its job; begins at once.

    `command` tells the job something, `fail` ends it where a slice can't be had. `asker` is the same for all requests of a job.
    """

    def __init__(
        self,
        client: HistoryClient,
        request: RawRequest | NormalizedRequest,
        place: int,
        command: Callable[..., None],
        fail: Callable[[Failed], None],
        asker: Hashable,
    ) -> None:
        self._client = client
        self._request = request
        self._place = place
        self._command = command
        self._fail = fail
        self._asker = asker
        self._window = asyncio.Semaphore(SLICE_WINDOW)
        # Of each period: they may name all symbols of an exchange, and the job does not need them.
        self._filters: dict[int, tuple[Filter, ...]] = {}
        self._tasks = {asyncio.create_task(self._guarded(self._send()))}

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._fail(to_failed(error))

    async def _send(self) -> None:
        request = self._request
        replay = RawReplay(request) if isinstance(request, RawRequest) else NormalizedReplay(request)
        # In a thread, as there may be as many symbols as an exchange has.
        periods = await asyncio.to_thread(replay.periods)
        slices = fetch_slices(self._client, request, periods, self._asker)
        async with aclosing(slices):
            await self._window.acquire()
            async for period, item in slices:
                index = periods.index(period)
                self._filters[index] = item.filters
                self._command("add_slice", self._place, index, replace(item, filters=()))
                await self._window.acquire()
        self._command("end_input", self._place)

    def take(self, news: SliceOpened | SliceDamaged) -> None:
        """What the job says of a slice."""
        if isinstance(news, SliceOpened):
            self._window.release()
        else:
            log.warning("a cached slice is damaged and is fetched again", problem=news.problem)
            self._tasks.add(asyncio.create_task(self._guarded(self._refetch(news))))

    async def _refetch(self, damaged: SliceDamaged) -> None:
        item = replace(damaged.item, filters=self._filters[damaged.period])
        items = await self._client.refetch(item, api_key=self._request.api_key, asker=self._asker)
        self._command("replace_slice", self._place, damaged.period, [replace(anew, filters=()) for anew in items])

    def cancel(self) -> set[asyncio.Task[None]]:
        """Ends fetching; when the tasks returned are over, its files and connections are free."""
        for task in self._tasks:
            task.cancel()
        return self._tasks
