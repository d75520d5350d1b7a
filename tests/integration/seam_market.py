"""A market whose past a history API has and whose present simulated exchanges send: one market, so that a test knows what is right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tardis_machine.messages import Message
from tardis_machine.pipeline.normalizer import Normalizer
from tardis_machine.realtime.backoff import Timings
from tardis_machine.recorded_line import MESSAGE_START, TIME_LENGTH
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.live import SimulatedExchanges
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording

MINUTE_US = 60_000_000
DAY_US = 1_790_812_800_000_000
"""When its history begins, with whole books; live data is heard two minutes later at the earliest."""
SPEED = 60.0
"""So many times as fast as ours its time goes."""
TIMINGS = Timings(first_s=0.02, most_s=0.05, limited_s=0.05, close_timeout_s=0.2, connect_timeout_s=2.0, linger_s=0.5)


@dataclass
class SeamMarket:
    """Both, and what a replay needs to ask them."""

    exchanges: SimulatedExchanges
    api: SampleHistoryApi
    cache_dir: Path

    @property
    def now_us(self) -> int:
        return self.exchanges.clock.now_us

    @property
    def history(self) -> dict[str, Any]:
        """For HistoryClient: the market's clock."""
        return {
            "clock": lambda: self.now_us / 1e6,
            "sleep": lambda seconds: asyncio.sleep(seconds / SPEED),
            "backoff_scale": 0.001,
        }

    @property
    def options(self) -> dict[str, Any]:
        """For `replay_normalized`."""
        urls = {"exchange_urls": self.exchanges.urls, "api_url": self.api.url, "cache_dir": self.cache_dir}
        return urls | {"_timings": TIMINGS, "_history": self.history}

    def recorded(self, exchange: str, symbol: str, data_types: list[str]) -> Iterator[tuple[dict[str, Any], list[Message]]]:
        """What history says of all time until now, when that is past: each raw message, and what comes of it."""
        normalizer = Normalizer(exchange, data_types, DAY_US)
        filters = normalizer.filters([symbol])
        for index in range(DAY_US // MINUTE_US, self.now_us // MINUTE_US + 1):
            for line in self.api.recording.minute(exchange, index, filters).splitlines():
                yield (
                    json.loads(line[MESSAGE_START:]),
                    [
                        message
                        for message in normalizer.feed(line[:TIME_LENGTH], line[MESSAGE_START:])
                        if getattr(message, "symbol", None) == symbol
                    ],
                )


@asynccontextmanager
async def seam_market(cache_dir: Path, *exchanges: str, activity: float = 0.2) -> AsyncIterator[SeamMarket]:
    market = SampleMarket(7, activity)
    async with SimulatedExchanges(7, exchanges, speed=SPEED, activity=activity, start_us=DAY_US + 2 * MINUTE_US) as simulated:
        clock = simulated.clock
        recording = Recording(market, disconnects_per_day=0)
        # Upstream has a minute five minutes after its end.
        api = SampleHistoryApi(recording, clock_us=lambda: clock.now_us - 5 * MINUTE_US)
        async with api:
            yield SeamMarket(simulated, api, cache_dir)
