"""Work in threads is over when its call is."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tardis_machine.history.threads import Threads


async def test_runs_off_the_event_loop_thread() -> None:
    threads = Threads(2)
    assert await threads.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    threads.close()
    assert await threads.run(divmod, 7, 2) == (3, 1)
    threads.close()


async def test_a_cancelled_call_waits_for_work_that_has_begun() -> None:
    threads = Threads(1)
    ended: list[bool] = []

    def work() -> None:
        time.sleep(0.1)
        ended.append(True)

    call = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == [True]
    threads.close()


async def test_a_cancelled_call_takes_back_work_that_has_not() -> None:
    threads = Threads(1)
    begun: list[bool] = []
    first = asyncio.create_task(threads.run(time.sleep, 0.1))
    second = asyncio.create_task(threads.run(begun.append, True))
    await asyncio.sleep(0.02)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await first
    assert begun == []
    threads.close()
