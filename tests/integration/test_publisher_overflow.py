"""What the queue can not hold, and what a shutdown leaves: to disk, or as told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tardis_machine.errors import SettingsError, UndeliveredError
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tests.integration.published_events import ONE_BATCH, TRADES, assert_in_order, interleaved, start_session
from tests.unit.eventbus.events import make_events
from tests.unit.eventbus.scripted_bus import ScriptedBus, eventually, make_publisher


async def test_what_the_queue_cannot_hold_goes_to_disk_and_comes_back_in_order(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.is_down = True
    publisher = make_publisher(tmp_path, bus, queue_max_bytes=100_000)
    await publisher.start(connect_timeout_s=1)
    events = interleaved(4000)
    for start in range(0, len(events), 100):
        await publisher.publish(events[start : start + 100])
        await asyncio.sleep(0)
    await eventually(lambda: publisher.health()[0].spool_events > 7000)
    assert publisher.health()[0].queue_bytes <= 100_000 + ONE_BATCH
    bus.is_down = False
    await publisher.flush(20)
    assert bus.events == events
    receipt = (await publisher.close(10))[0]
    assert receipt.is_complete
    assert not list((tmp_path / "spool" / "scripted").glob("*.spool"))


@pytest.mark.parametrize("mode", ["overflow", "always"])
async def test_what_a_shutdown_leaves_is_sent_first_at_the_next_start(tmp_path: Path, mode: str) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus, queue_max_bytes=100_000, mode=mode)
    await publisher.start()
    await start_session(publisher)
    events = interleaved(2000)
    for start in range(0, 2000, 100):
        await publisher.publish(events[start : start + 100])
        await asyncio.sleep(0.001)
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(UndeliveredError, match=r"2001 events to scripted are unconfirmed \(all in the spool\)"):
        await publisher.close(0.3)
    assert loop.time() - before < 3
    (receipt,) = publisher.receipts
    assert (receipt.unconfirmed, receipt.spooled, receipt.lost) == (2001, 2001, 0)

    again = ScriptedBus()
    again.is_down = True
    publisher = make_publisher(tmp_path, again, queue_max_bytes=100_000, mode=mode)
    await publisher.start(connect_timeout_s=0.2)
    assert publisher.receipts[0].carried == 2001
    for start in range(2000, 4000, 100):
        await publisher.publish(events[start : start + 100])
    again.is_down = False
    (receipt,) = await publisher.close(20)
    assert again.events == events
    assert receipt.confirmed == 4002
    ends = {end.session_id: end for end in again.session_ends}
    assert not ends["s1"].complete
    assert "shut down" in ends["s1"].reason


async def test_a_second_signal_ends_the_drain_and_keeps_everything(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    events = interleaved(500)
    await publisher.publish(events)
    closing = asyncio.create_task(publisher.close(60))
    await asyncio.sleep(0.05)
    receipts = await publisher.abort()
    assert receipts[0].spooled == 1001
    with pytest.raises(UndeliveredError):
        await closing
    again = ScriptedBus()
    publisher = make_publisher(tmp_path, again)
    await publisher.start()
    await publisher.close(10)
    assert again.events == events


async def test_block_waits_for_room_and_then_drops_with_notice(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus, overflow="block", block_timeout=0.2, queue_max_bytes=100_000)
    await publisher.start()
    loop = asyncio.get_running_loop()
    events = interleaved(1000)
    waits = []
    for start in range(0, 2000, 100):
        before = loop.time()
        await publisher.publish(events[start : start + 100])
        waits.append(loop.time() - before)
    assert 0.15 < max(waits) < 1.0
    assert sum(waits) < 1.0, "after a wait in vain, the rest is dropped at once"
    dropped = publisher.health()[0].dropped_events
    assert dropped > 1000
    bus.hangs = False
    await eventually(lambda: bool(bus.of_case("error")))
    await publisher.publish(interleaved(10, first=5000))
    (receipt,) = await publisher.close(10)
    assert receipt.dropped == dropped
    assert not receipt.is_complete
    details = NormalizedEvent.FromString(bus.of_case("error")[0].value).error.details
    assert details.startswith(f"{dropped} events to scripted were dropped")
    # The ledger has what was dropped too: the lake sees the hole.
    session = {end.session_id: end for end in bus.session_ends}["s1"]
    assert sum(entry.count for entry in session.entries) == 2020
    assert receipt.published == receipt.confirmed + receipt.dropped


async def test_block_lets_a_slow_bus_set_the_pace(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.delay_s = 0.02
    publisher = make_publisher(tmp_path, bus, overflow="block", queue_max_bytes=100_000)
    await publisher.start()
    events = interleaved(1000)
    for start in range(0, 2000, 100):
        await publisher.publish(events[start : start + 100])
        assert publisher.health()[0].queue_bytes <= 100_000
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete
    assert bus.events == events


async def test_drop_never_waits(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus, overflow="drop", queue_max_bytes=100_000)
    await publisher.start()
    for start in range(0, 10_000, 100):
        await publisher.publish(make_events(TRADES, 100, first=start))
    assert publisher.health()[0].dropped_events > 5000
    assert publisher.health()[0].queue_bytes <= 100_000
    bus.hangs = False
    (receipt,) = await publisher.close(10)
    assert_in_order(bus.events)
    assert receipt.published == receipt.confirmed + receipt.dropped
    assert len(bus.events) + receipt.dropped == 10_000


async def test_a_full_spool_does_as_block(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.is_down = True
    publisher = make_publisher(tmp_path, bus, queue_max_bytes=100_000, block_timeout=0.2, spool_max_bytes=100_000)
    await publisher.start(connect_timeout_s=1)
    for start in range(0, 5000, 100):
        await publisher.publish(make_events(TRADES, 100, first=start))
        await asyncio.sleep(0)
    health = publisher.health()[0]
    assert health.spool_bytes <= 100_000
    assert health.queue_bytes <= 100_000 + ONE_BATCH
    assert health.dropped_events > 0
    bus.is_down = False
    await publisher.flush(20)
    assert_in_order(bus.events)
    assert len(bus.events) + publisher.receipts[0].dropped == 5000
    await publisher.close(10)


async def test_a_client_that_leaves_while_it_waits_is_accounted_for(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus, overflow="block", queue_max_bytes=30_000)
    await publisher.start()
    await publisher.publish(make_events(TRADES, 100))
    waiting = asyncio.create_task(publisher.publish(make_events(TRADES, 100, first=100)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    bus.hangs = False
    (receipt,) = await publisher.close(10)
    assert receipt.dropped == 100
    assert len(bus.events) == 100


async def test_two_publishers_cannot_share_a_spool(tmp_path: Path) -> None:
    publisher = make_publisher(tmp_path, ScriptedBus())
    await publisher.start()
    with pytest.raises(SettingsError, match="is in use by process"):
        await make_publisher(tmp_path, ScriptedBus()).start()
    other = make_publisher(tmp_path, ScriptedBus("other"))
    await other.start()
    await other.close(1)
    await publisher.close(1)


async def test_what_neither_the_bus_nor_the_spool_took_is_called_lost(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus, spool_max_bytes=10_000)
    await publisher.start()
    await publisher.publish(make_events(TRADES, 200))
    with pytest.raises(
        UndeliveredError, match=r"201 events to scripted are unconfirmed \(0 in the spool, 201 lost\): .* is full"
    ):
        await publisher.close(0.1)
    assert publisher.receipts[0].lost == 201
    # Its session was not settled: the next start tells the bus what it should have got.
    again = ScriptedBus()
    publisher = make_publisher(tmp_path, again)
    await publisher.start()
    await publisher.close(10)
    (end,) = again.session_ends
    assert (end.session_id, end.complete, end.entries[0].count) == ("s1", False, 200)


async def test_a_damaged_spool_is_reported_and_the_rest_of_it_is_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    events = make_events(TRADES, 100)
    await publisher.publish(events)
    await publisher.abort()
    (path,) = (tmp_path / "spool" / "scripted").glob("*.spool")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = ScriptedBus()
    publisher = make_publisher(tmp_path, again)
    await publisher.start()
    assert publisher.receipts[0].carried == 99
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete
    assert len(again.events) == 99
    assert_in_order(again.events)
    assert "the spool was damaged" in caplog.text


async def test_those_who_wait_for_room_are_told_when_all_ends(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus, overflow="block", queue_max_bytes=30_000, block_timeout=60.0)
    await publisher.start()
    await publisher.publish(make_events(TRADES, 100))
    waiting = asyncio.create_task(publisher.publish(make_events(TRADES, 100, first=100)))
    await asyncio.sleep(0.05)
    (receipt,) = await publisher.abort()
    await waiting
    assert (publisher.receipts[0].spooled, publisher.receipts[0].dropped) == (100, 100)
    publisher.session_end("s1")
    assert receipt.lost == 0
