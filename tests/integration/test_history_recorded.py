"""Own recordings beside upstream: what each of them is asked for, and what comes of minutes that were heard in part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from tardis_machine.filters import Filter
from tardis_machine.history.client import HistoryClient
from tardis_machine.history.slice import MINUTE_US
from tests.integration.upstream import FROM_US, Asked, Sleeper, Upstream, at, collect, data_of, recorded

FILTERS = [Filter("trade")]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as server:
        yield server


async def answer_nothing(_: Asked, __: web.Request) -> web.Response:
    return web.Response(status=503, text='{"code":503,"message":"closed"}')


class Recordings:
    """Lines by minute of the day."""

    def __init__(self, minutes: dict[int, bytes]) -> None:
        self.minutes = minutes

    def find(self, exchange: str, start_us: int, filters: Sequence[Filter]) -> bytes | None:
        assert (exchange, list(filters)) == ("bitmex", FILTERS)
        return self.minutes.get((start_us - FROM_US) // MINUTE_US)


def heard(minute: int) -> bytes:
    """A minute as upstream has it, but for what it says."""
    return recorded(at(minute)).replace(b"minute", b"heard!")


def heard_in_part(minute: int) -> bytes:
    """The recorder began within it."""
    return b"\n" + b"".join(heard(minute).splitlines(keepends=True)[2:])


async def test_upstream_is_asked_for_what_was_heard_in_part(upstream: Upstream, tmp_path: Path) -> None:
    own = Recordings({4: heard_in_part(4), 5: heard(5), 7: heard(7), 8: b""})
    async with HistoryClient(upstream.url, cache_dir=tmp_path, find_recorded=own.find) as client:
        for _ in range(2):
            lines = data_of(await collect(client, 4, 9, FILTERS))
            assert lines == recorded(at(4)) + heard(5) + recorded(at(6)) + heard(7)
    # The second time it is in the cache.
    assert sorted(upstream.windows) == [(4, 1), (6, 1)]


@pytest.mark.parametrize("broken", [heard_in_part(5), heard(5) + b"\n", heard(6)])
async def test_where_upstream_can_not_give_it_what_was_heard_is_used(upstream: Upstream, tmp_path: Path, broken: bytes) -> None:
    assert b"\n\n" in broken or broken.startswith(b"\n")
    upstream.fault = answer_nothing
    sleeper = Sleeper()
    async with HistoryClient(
        upstream.url, cache_dir=tmp_path, find_recorded=Recordings({5: broken}).find, sleep=sleeper.sleep, clock=sleeper.clock
    ) as client:
        assert data_of(await collect(client, 5, 6, FILTERS)) == broken
    # Whoever is offline does not wait for long.
    assert upstream.windows == [(5, 1), (5, 1)]


async def test_what_was_published_is_what_was_heard(upstream: Upstream, tmp_path: Path) -> None:
    own = Recordings({4: heard_in_part(4)})
    async with HistoryClient(upstream.url, cache_dir=tmp_path, find_recorded=own.find, recorded_first=True) as client:
        assert data_of(await collect(client, 4, 5, FILTERS)) == heard_in_part(4)
    assert upstream.asked == []


async def test_a_minute_that_was_heard_in_part_is_waited_for(upstream: Upstream, tmp_path: Path) -> None:
    sleeper = Sleeper(at(3))
    own = Recordings({2: heard(2), 4: heard_in_part(4)})
    async with HistoryClient(
        upstream.url, cache_dir=tmp_path, find_recorded=own.find, sleep=sleeper.sleep, clock=sleeper.clock
    ) as client:
        assert await client.is_at_hand("bitmex", at(2), FILTERS)
        assert not await client.is_at_hand("bitmex", at(4), FILTERS)
        lines = data_of(await collect(client, 2, 5, FILTERS, wait_when_data_not_yet_available=10))
    assert lines == heard(2) + recorded(at(3), 2)
    assert sleeper.now_s == pytest.approx(at(14) / 1e6, abs=2)
