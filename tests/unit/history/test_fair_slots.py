"""Slots that askers share."""

from __future__ import annotations

import asyncio

import pytest

from tardis_machine.history.fair_slots import FairSlots


class Holder:
    """Holds a slot for an asker until it is told to let go."""

    def __init__(self, slots: FairSlots, asker: str) -> None:
        self.has_it = False
        self.asker = asker
        self.let_go = asyncio.Event()
        self.task = asyncio.create_task(self._hold(slots))

    async def _hold(self, slots: FairSlots) -> None:
        async with slots.held_by(self.asker):
            self.has_it = True
            await self.let_go.wait()
        self.has_it = False


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def count(holders: list[Holder], asker: str) -> int:
    return sum(holder.has_it for holder in holders if holder.asker == asker)


async def test_one_asker_never_has_all_and_the_next_one_need_not_wait() -> None:
    slots = FairSlots(60)
    greedy = [Holder(slots, "greedy") for _ in range(1000)]
    await settle()
    assert count(greedy, "greedy") == 50
    modest = [Holder(slots, "modest") for _ in range(10)]
    await settle()
    assert count(modest, "modest") == 10
    for holder in (*greedy, *modest):
        holder.let_go.set()
    await asyncio.gather(*(holder.task for holder in (*greedy, *modest)))
    assert (slots._free, dict(slots._held), slots._waiting) == (60, {}, {})


async def test_what_is_free_goes_to_who_has_the_fewest() -> None:
    slots = FairSlots(6)
    first = [Holder(slots, "first") for _ in range(20)]
    await settle()
    second = [Holder(slots, "second") for _ in range(20)]
    await settle()
    for _ in range(2):
        next(holder for holder in first if holder.has_it).let_go.set()
        await settle()
    assert (count(first, "first"), count(second, "second")) == (3, 3)
    for holder in (*first, *second):
        holder.let_go.set()
    await asyncio.gather(*(holder.task for holder in (*first, *second)))


@pytest.mark.parametrize("granted", [False, True])
async def test_who_is_cancelled_while_waiting_leaves_nothing(granted: bool) -> None:
    slots = FairSlots(2)
    holders = [Holder(slots, "a"), Holder(slots, "b")]
    await settle()
    waiting = Holder(slots, "c")
    await settle()
    if granted:
        holders[0].let_go.set()
        await asyncio.sleep(0)
        # It has its slot, but has not run since.
        assert (slots._held["c"], waiting.has_it) == (1, False)
    waiting.task.cancel()
    await settle()
    assert waiting.task.cancelled()
    for holder in holders:
        holder.let_go.set()
    await asyncio.gather(*(holder.task for holder in holders))
    assert (slots._free, dict(slots._held), slots._waiting) == (2, {}, {})


async def test_a_single_slot_is_used() -> None:
    slots = FairSlots(1)
    async with slots.held_by("a"):
        assert slots._free == 0
    assert slots._free == 1
