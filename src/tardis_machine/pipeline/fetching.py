"""What a replay reads: its slices, or their lines, in time order.

Invariant: a cached slice that is damaged is fetched anew; one that was fetched just now and is damaged ends the replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import aclosing

from ..errors import SliceError
from ..history.client import HistoryClient
from ..history.reader import read_lines
from ..history.slice import Slice
from .replay import Period
from .request import NormalizedRequest, RawRequest

__all__ = ["fetch_lines", "fetch_slices"]

# Large enough that a batch's costs vanish, small enough that the event loop is not held up.
LINES_IN_BATCH = 1_000


async def fetch_slices(
    client: HistoryClient, request: RawRequest | NormalizedRequest, periods: Sequence[Period], asker: Hashable = None
) -> AsyncGenerator[tuple[Period, Slice], None]:
    """The slices of a request in time order, each with its period. `asker` is as `HistoryClient.slices` has it."""
    for period in periods:
        # In a thread, as sorting and hashing all symbols of an exchange takes a while.
        slices = await asyncio.to_thread(
            client.slices,
            request.exchange,
            period.from_us,
            period.to_us,
            period.filters,
            api_key=request.api_key,
            auto_cleanup=request.auto_cleanup,
            wait_when_data_not_yet_available=request.wait_when_data_not_yet_available,
            asker=asker,
        )
        async with aclosing(slices):
            async for item in slices:
                yield period, item


async def fetch_lines(
    client: HistoryClient, request: RawRequest | NormalizedRequest, periods: Sequence[Period]
) -> AsyncGenerator[tuple[Period, list[bytes]], None]:
    """The recorded lines of a request in time order, in batches, each with its period; what is damaged is fetched anew."""
    slices = fetch_slices(client, request, periods)
    async with aclosing(slices):
        async for period, item in slices:
            try:
                contents = [await asyncio.to_thread(read_lines, item)]
            except SliceError:
                # What lies in the cache may be damaged; what was fetched just now may not.
                contents = [
                    await asyncio.to_thread(read_lines, anew) for anew in await client.refetch(item, api_key=request.api_key)
                ]
            for lines in contents:
                for start in range(0, len(lines), LINES_IN_BATCH):
                    yield period, lines[start : start + LINES_IN_BATCH]
