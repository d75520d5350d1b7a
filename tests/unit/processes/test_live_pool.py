"""Live streams in a process each, or in this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable

import pytest

from tardis_machine.errors import OptionsError, WorkerError
from tardis_machine.pipeline.request import StreamRequest
from tardis_machine.processes.child import ChildProcess
from tardis_machine.processes.jobs.contract import Events, LiveSpec, PublishSpec
from tardis_machine.processes.live_pool import LivePool
from tardis_machine.processes.output_queue import OutputQueue
from tardis_machine.processes.runner import RunningJob
from tardis_machine.realtime.backoff import Timings

REQUEST = StreamRequest(exchange="bitmex", data_types=["trade"], symbols=["XBTUSD"])


async def _publish(publish: PublishSpec, events: AsyncIterable[Events]) -> None:
    raise AssertionError("nothing is to be published")


async def begin(pool: LivePool) -> None:
    """Listens. A request that joined a stream which has ended would wait for ever."""
    async with asyncio.timeout(20):
        async for _ in pool.listen([REQUEST], "frames", lambda: None):
            pass


@pytest.mark.parametrize("in_process", [False, True])
async def test_a_request_that_can_not_begin_says_why_and_takes_no_place(in_process: bool) -> None:
    pool = LivePool(
        publish=_publish, urls={"nowhere": "ws://x"}, credentials={}, timings=Timings(), in_process=in_process, most=1
    )
    for _ in range(3):
        with pytest.raises(OptionsError, match="exchange-urls: expected an exchange that has live data"):
            await begin(pool)
    await pool.stop()
    assert not pool.pids


async def test_a_process_that_can_not_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    pool = LivePool(publish=_publish, urls={}, credentials={}, timings=Timings(), most=1)
    for _ in range(3):
        with pytest.raises(WorkerError, match="a live process can't be started: No such file or directory"):
            await begin(pool)
    await pool.stop()
    assert not pool.pids


async def test_a_process_that_dies_before_it_is_told_anything_fails_its_job() -> None:
    process = ChildProcess("tardis_machine.nowhere")
    await process.open()
    await process.gone.wait()
    spec = LiveSpec(REQUEST, None, {}, Timings(), None, None)
    with pytest.raises(WorkerError, match="died"), RunningJob(process, 1, spec, OutputQueue(process)) as job:
        await asyncio.wait_for(anext(job), 10)
    await process.wait()
