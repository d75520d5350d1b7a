"""Data that is not there yet, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from aiohttp import web

from tardis_machine.filters import Filter
from tardis_machine.history.client import HistoryClient
from tardis_machine.history.reader import read_slice
from tardis_machine.history.slice import MINUTE_US
from tests.integration.upstream import FROM_US, Asked, Sleeper, Upstream, at, collect, data_of, recorded


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as server:
        yield server


class Recorder:
    """Lets upstream have only what is old enough, and notes when each minute was asked for."""

    def __init__(self, upstream: Upstream, sleeper: Sleeper, delay_minutes: float) -> None:
        self.asked_at: dict[int, float] = {}
        self.sleeper = sleeper
        self.delay_us = delay_minutes * MINUTE_US
        upstream.fault = self.check

    async def check(self, asked: Asked, _: web.Request) -> web.Response | None:
        now_us = self.sleeper.now_s * 1e6
        self.asked_at[(asked.start_us - FROM_US) // MINUTE_US] = (now_us - FROM_US) / MINUTE_US
        if now_us < asked.start_us + self.delay_us:
            return web.Response(status=400, text='{"code":5,"message":"not there yet"}')
        return None


async def replayed(client: HistoryClient, start: int, end: int, wait: bool | float) -> bytes:
    return data_of(await collect(client, start, end, [Filter("trade")], wait_when_data_not_yet_available=wait))


@pytest.mark.parametrize(("wait", "delay"), [(True, 30), (10, 10), (6.5, 6.5), (1, 6), (-3, 6)])
async def test_what_is_old_enough_at_once_then_minute_by_minute(
    upstream: Upstream, tmp_path: Path, wait: bool | float, delay: float
) -> None:
    sleeper = Sleeper(at(15.5 + delay))
    recorder = Recorder(upstream, sleeper, delay)
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep, clock=sleeper.clock) as client:
        assert await replayed(client, 0, 20, wait) == recorded(at(0), 20)
    # What is old enough goes as ever, both ends first.
    assert upstream.windows[:2] == [(14, 1), (0, 1)]
    assert sorted(upstream.windows[2:15]) == [(minute, 1) for minute in range(1, 14)]
    assert upstream.windows[15:] == [(minute, 1) for minute in range(15, 20)]
    assert {recorder.asked_at[minute] for minute in range(16)} == {15.5 + delay}
    for minute in range(16, 20):
        assert minute + delay < recorder.asked_at[minute] < minute + delay + 0.01


async def test_nothing_there_yet(upstream: Upstream, tmp_path: Path) -> None:
    sleeper = Sleeper(at(0))
    Recorder(upstream, sleeper, 6)
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep, clock=sleeper.clock) as client:
        assert await replayed(client, 200, 202, 6) == recorded(at(200), 2)
    assert max(sleeper.slept) <= 3600
    assert sum(sleeper.slept) == pytest.approx(207 * 60, abs=1)


async def test_all_there_already_waits_for_nothing(upstream: Upstream, tmp_path: Path) -> None:
    sleeper = Sleeper(at(100))
    upstream.suggested = {0: 4}
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep, clock=sleeper.clock) as client:
        assert await replayed(client, 0, 10, True) == recorded(at(0), 10)
    assert sleeper.slept == []
    assert upstream.windows[:2] == [(9, 1), (0, 1)]
    assert sorted(upstream.windows[2:]) == [(1, 4), (5, 4)]


async def test_what_is_cached_is_not_waited_for(upstream: Upstream, tmp_path: Path) -> None:
    sleeper = Sleeper(at(0))
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep, clock=sleeper.clock) as client:
        assert await replayed(client, 0, 5, False) == recorded(at(0), 5)
        upstream.asked.clear()
        assert await replayed(client, 0, 5, True) == recorded(at(0), 5)
    assert (upstream.asked, sleeper.slept) == ([], [])


async def test_a_slow_reader_catches_up_many_minutes_at_a_time(upstream: Upstream, tmp_path: Path) -> None:
    sleeper = Sleeper(at(6))
    Recorder(upstream, sleeper, 6)
    upstream.suggested = dict.fromkeys(range(60), 10)
    data = []
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep, clock=sleeper.clock) as client:
        items = client.slices("bitmex", at(0), at(30), [Filter("trade")], wait_when_data_not_yet_available=6)
        async with aclosing(items):
            async for item in items:
                data.append(read_slice(item))
                if len(data) == 1:
                    sleeper.now_s += 15 * 60
    assert b"".join(data) == recorded(at(0), 30)
    assert upstream.windows[1:3] == [(14, 1), (1, 1)]


@pytest.mark.parametrize("wait", [False, 0, 0.0])
async def test_off(upstream: Upstream, tmp_path: Path, wait: bool | float) -> None:
    sleeper = Sleeper(at(0))
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep, clock=sleeper.clock) as client:
        assert await replayed(client, 0, 2, wait) == recorded(at(0), 2)
    assert sleeper.slept == []
