"""What a job made and nobody has taken: in order, and bounded where its source can be paused."""

from __future__ import annotations

import asyncio

from tardis_machine.errors import WorkerError
from tardis_machine.processes.jobs.contract import Chunk, Done, Failed, SliceOpened
from tardis_machine.processes.output_queue import MAX_WAITING_BYTES, OutputQueue


class Source:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


async def test_past_a_bound_the_source_pauses_until_most_of_it_is_taken() -> None:
    source = Source()
    queue = OutputQueue(source)
    data = b"x" * (MAX_WAITING_BYTES // 8)
    for _ in range(12):
        queue.put(Chunk(data, 1))
    queue.put(Done())
    assert source.told == ["pause"]
    taken = 0
    while source.told == ["pause"]:
        assert isinstance(await queue.get(), Chunk)
        taken += 1
    assert source.told == ["pause", "resume"]
    assert 8 < taken < 12
    for _ in range(12 - taken):
        await queue.get()
    assert isinstance(await queue.get(), Done)


async def test_it_waits_for_what_is_to_come() -> None:
    queue = OutputQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put(Failed(WorkerError("gone")))
    assert isinstance(await waiting, Failed)


async def test_news_wait_for_nobody() -> None:
    heard: list[object] = []
    queue = OutputQueue(on_news=heard.append)
    queue.put(Chunk(b"x", 1))
    queue.put(SliceOpened(2))
    queue.put(Done())
    assert heard == [SliceOpened(2)]
    assert isinstance(await queue.get(), Chunk)
    assert isinstance(await queue.get(), Done)
