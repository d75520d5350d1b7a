"""One piece of work for many askers."""

from __future__ import annotations

import asyncio

import pytest

from tardis_machine.errors import UpstreamError
from tardis_machine.history.flights import Flights


class Work:
    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.go_on = asyncio.Event()

    async def __call__(self) -> str:
        self.started += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.cancelled += 1
            raise
        return "result"


async def test_many_askers_share_one_flight() -> None:
    flights, work = Flights[str, str](), Work()
    askers = [asyncio.create_task(flights.join("key", work)) for _ in range(5)]
    other = asyncio.create_task(flights.join("other", work))
    await asyncio.sleep(0)
    work.go_on.set()
    assert await asyncio.gather(*askers, other) == ["result"] * 6
    assert work.started == 2
    assert await flights.join("key", work) == "result"
    assert work.started == 3


async def test_one_asker_that_leaves_does_not_disturb_the_others() -> None:
    flights, work = Flights[str, str](), Work()
    first, second = (asyncio.create_task(flights.join("key", work)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.go_on.set()
    assert await second == "result"
    assert (work.started, work.cancelled) == (1, 0)


async def test_the_last_asker_that_leaves_ends_the_work_and_waits_for_its_end() -> None:
    flights, work = Flights[str, str](), Work()
    askers = [asyncio.create_task(flights.join("key", work)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for asker in askers:
        asker.cancel()
    await asyncio.gather(*askers, return_exceptions=True)
    assert (work.started, work.cancelled) == (1, 1)
    assert len(asyncio.all_tasks()) == 1


async def test_a_new_asker_does_not_join_work_that_was_given_up() -> None:
    flights, work = Flights[str, str](), Work()
    first = asyncio.create_task(flights.join("key", work))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)
    second = asyncio.create_task(flights.join("key", work))
    await asyncio.sleep(0.01)
    work.go_on.set()
    assert await second == "result"
    assert (work.started, work.cancelled) == (2, 1)


async def test_all_askers_see_an_error_and_the_next_one_starts_anew() -> None:
    flights = Flights[str, str]()
    starts = 0

    async def fail() -> str:
        nonlocal starts
        starts += 1
        await asyncio.sleep(0)
        raise UpstreamError("no", 401)

    for _ in range(2):
        results = await asyncio.gather(*(flights.join("key", fail) for _ in range(3)), return_exceptions=True)
        assert [str(result) for result in results] == ["no"] * 3
    assert starts == 2


async def test_closing_ends_all_and_askers_get_an_error_not_a_cancellation() -> None:
    flights, work = Flights[str, str](), Work()
    askers = [asyncio.create_task(flights.join(key, work)) for key in ("a", "a", "b")]
    await asyncio.sleep(0.01)
    await flights.close()
    for result in await asyncio.gather(*askers, return_exceptions=True):
        assert isinstance(result, UpstreamError)
    assert work.cancelled == 2
