"""What a bus refuses, can not take, or fails on: dead letters, and only those."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError, UndeliveredError
from tardis_machine.eventbus.contract import Failure, Record
from tardis_machine.eventbus.dead_letters import dead_letter_files, read_dead_letters
from tests.integration.published_events import TRADES, assert_in_order, interleaved
from tests.unit.eventbus.events import make_events
from tests.unit.eventbus.scripted_bus import LIMITS, ScriptedBus, eventually, make_publisher
from tests.unit.eventbus.test_monitor import metric


async def test_terminal_errors_go_to_the_dead_letters_and_can_be_replayed(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.fault = lambda batch: [
        Failure(index, TerminalDeliveryError("unknown topic 'base'"))
        for index, record in enumerate(batch)
        if record.route.payload_case == "trade"
    ]
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    events = interleaved(100)
    await publisher.publish(events)
    (receipt,) = await publisher.close(10)
    assert (receipt.dead_lettered, receipt.confirmed, receipt.unconfirmed) == (100, 101, 0)
    assert not receipt.is_complete
    folder = tmp_path / "dead-letters" / "scripted"
    letters = [letter for path in dead_letter_files(folder) for letter in read_dead_letters(path)]
    assert [letter.event for letter in letters] == [event for event in events if event.stream is TRADES]
    assert {letter.reason for letter in letters} == {"unknown topic 'base'"}
    assert {(letter.bus, letter.destination, letter.key) for letter in letters} == {("scripted", "base", "bitmex|XBTUSD|trade")}

    again = ScriptedBus()
    publisher = make_publisher(tmp_path, again)
    await publisher.start()
    assert await publisher.replay_dead_letters("scripted", 10) == 100
    assert again.events == [event for event in events if event.stream is TRADES]
    assert dead_letter_files(folder) == []
    await publisher.close(10)
    assert again.session_ends == [], "the session's ledger counted them before"


async def test_a_batch_that_is_refused_as_a_whole_is_dead_lettered(tmp_path: Path) -> None:
    bus = ScriptedBus()

    def refuse(_: Sequence[Record]) -> list[Failure]:
        raise TerminalDeliveryError("not authorised")

    bus.fault = refuse
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await publisher.publish(interleaved(50))
    (receipt,) = await publisher.close(10)
    assert receipt.dead_lettered == receipt.published == 101
    assert receipt.last_error == "not authorised"


async def test_a_bus_that_refuses_everything_pauses_and_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Permissions are revoked, and given back: a few dead letters, the rest waits, and the operator is told."""
    bus = ScriptedBus("revoked")

    def refuse(_: Sequence[Record]) -> list[Failure]:
        raise TerminalDeliveryError("not authorised")

    bus.fault = refuse
    publisher = make_publisher(tmp_path, bus, max_refusals=200, max_batch_size=50)
    await publisher.start()
    events = make_events(TRADES, 5000)
    for first in range(0, 5000, 100):
        await publisher.publish(events[first : first + 100])
        await asyncio.sleep(0)
    await eventually(lambda: publisher.health()[0].state == "paused")
    await eventually(lambda: publisher.receipts[0].dead_lettered == 200)
    await eventually(lambda: metric("bus_paused", bus="revoked") == 1)
    await eventually(lambda: metric("bus_dead_letter_bytes", bus="revoked") > 0)
    assert "paused" in [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert "refused 200 times in a row" in (publisher.health()[0].last_error or "")
    bus.fault = lambda _: []
    (receipt,) = await publisher.close(20)
    assert (receipt.dead_lettered, receipt.confirmed, receipt.unconfirmed) == (200, 4801, 0)
    assert bus.events == events[200:]


async def test_dead_letters_past_their_bound_wait_and_are_not_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = ScriptedBus()
    bus.fault = lambda batch: [
        Failure(index, TerminalDeliveryError("no")) for index, record in enumerate(batch) if record.route.payload_case == "trade"
    ]
    publisher = make_publisher(tmp_path, bus, dead_letter_max_bytes=20_000, max_batch_size=20)
    await publisher.start()
    await publisher.publish(interleaved(200))
    folder = tmp_path / "dead-letters" / "scripted"
    await eventually(lambda: "dead-letter-max-bytes" in (publisher.health()[0].last_error or ""))
    await eventually(lambda: len(bus.events) == 200)
    assert 0 < sum(path.stat().st_size for path in folder.iterdir()) <= 20_000
    assert "dead letters wait, as they can't be written" in caplog.text
    with pytest.raises(UndeliveredError, match=r"are unconfirmed \(all in the spool\)"):
        await publisher.close(0.3)
    (receipt,) = publisher.receipts
    assert receipt.dead_lettered + receipt.spooled == 201
    assert receipt.lost == 0


async def test_one_record_that_makes_the_bus_fail_is_given_up_and_the_others_pass(tmp_path: Path) -> None:
    bus = ScriptedBus()
    poison = 17

    def fault(batch: Sequence[Record]) -> list[Failure]:
        if any(record.event.sequence == poison and record.route.payload_case == "trade" for record in batch):
            raise TransientDeliveryError("connection reset")
        return []

    bus.fault = fault
    publisher = make_publisher(tmp_path, bus, max_retries=3)
    await publisher.start()
    events = interleaved(100)
    await publisher.publish(events)
    (receipt,) = await publisher.close(20)
    assert receipt.dead_lettered == 1
    assert receipt.unconfirmed == 0
    assert_in_order(bus.events)
    assert len(bus.events) == 199
    (path,) = dead_letter_files(tmp_path / "dead-letters" / "scripted")
    (letter,) = read_dead_letters(path)
    assert letter.sequence == poison
    assert re.fullmatch(r"gave up after [45] tries: connection reset", letter.reason)


async def test_nothing_is_given_up_while_the_bus_is_down(tmp_path: Path) -> None:
    bus = ScriptedBus()

    def fault(_: Sequence[Record]) -> list[Failure]:
        raise TransientDeliveryError("connection reset")

    bus.fault = fault  # it connects, but every send fails
    publisher = make_publisher(tmp_path, bus, max_retries=1, retry_backoff_max_ms=10)
    await publisher.start()
    events = interleaved(20)
    await publisher.publish(events)
    await eventually(lambda: publisher.receipts[0].retried > 100)
    bus.fault = lambda _: []
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete
    assert_in_order(bus.events)


async def test_oversize_records_as_told(tmp_path: Path) -> None:
    small = msgspec.structs.replace(LIMITS, record_bytes=1000)
    keep, fail = ScriptedBus("keep", small), ScriptedBus("fail", small)
    publisher = make_publisher(tmp_path, keep)
    await publisher.start()
    large = make_events(TRADES, 1, first=50, size=2000)
    await publisher.publish(make_events(TRADES, 50) + large + make_events(TRADES, 49, first=51))
    (receipt,) = await publisher.close(10)
    assert (receipt.dead_lettered, receipt.confirmed) == (1, 100)
    (path,) = dead_letter_files(tmp_path / "dead-letters" / "keep")
    (letter,) = read_dead_letters(path)
    assert letter.event == large[0]
    assert letter.reason.startswith("a trade of bitmex XBTUSD takes 20")
    assert letter.reason.endswith("bytes, and keep takes 1000 a record")

    publisher = make_publisher(tmp_path, fail, oversize="fail")
    await publisher.start()
    with pytest.raises(TerminalDeliveryError, match="and fail takes 1000 a record"):
        await publisher.publish(make_events(TRADES, 5) + large)
    assert publisher.receipts[0].published == 0
    await publisher.close(10)


async def test_dead_letters_that_cannot_be_written_wait(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.fault = lambda batch: [Failure(0, TerminalDeliveryError("no"))] if batch[0].route.payload_case == "trade" else []
    (tmp_path / "dead-letters").write_text("in the way")
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await publisher.publish(make_events(TRADES, 10))
    await eventually(lambda: "dead letters can't be written" in (publisher.health()[0].last_error or ""))
    assert publisher.health()[0].queue_events == 1
    (tmp_path / "dead-letters").unlink()
    (receipt,) = await publisher.close(10)
    assert (receipt.dead_lettered, receipt.unconfirmed) == (1, 0)
