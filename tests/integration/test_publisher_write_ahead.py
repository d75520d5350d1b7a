"""`--spool-mode always`: what `publish` returned for is on disk; where it can't be, `publish` fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tardis_machine.bronze.event import Event
from tardis_machine.errors import UndeliveredError
from tardis_machine.eventbus.dead_letters import read_dead_letters
from tardis_machine.eventbus.publisher import Publisher
from tests.integration.published_events import TRADES, start_session
from tests.unit.eventbus.events import make_events
from tests.unit.eventbus.scripted_bus import LIMITS, ScriptedBus, eventually, make_publisher

SMALL = msgspec.structs.replace(LIMITS, record_bytes=1000)


async def publish_until_it_fails(publisher: Publisher) -> list[Event]:
    """What it returned for."""
    accepted: list[Event] = []

    async def publish_all() -> None:
        for first in range(0, 100_000, 100):
            events = make_events(TRADES, 100, first=first)
            await publisher.publish(events)
            accepted.extend(events)

    with pytest.raises(UndeliveredError, match=r"events to scripted .*--spool-mode always\): the spool .* is full"):
        await publish_all()
    assert accepted
    return accepted


@pytest.mark.parametrize("overflow", ["spool", "block", "drop"])
async def test_a_full_spool_fails_the_request_and_keeps_what_was_accepted(tmp_path: Path, overflow: str) -> None:
    bus = ScriptedBus()
    bus.is_down = True
    sizes = {"queue_max_bytes": 200_000, "spool_max_bytes": 100_000}
    publisher = make_publisher(tmp_path, bus, mode="always", overflow=overflow, block_timeout=0.2, **sizes)
    await publisher.start(connect_timeout_s=0.1)
    accepted = await publish_until_it_fails(publisher)
    # The machine dies here: only what is on disk is left.
    (tmp_path / "copy").mkdir()
    for path in (tmp_path / "spool" / "scripted").glob("*.spool"):
        (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    await publisher.abort()
    found = b"".join(path.read_bytes() for path in sorted((tmp_path / "copy").iterdir()))
    assert [event for event in accepted if event.event_id not in found] == []


async def test_a_spool_that_cannot_be_written_fails_the_request_and_what_it_had_is_written_later(tmp_path: Path) -> None:
    bus = ScriptedBus()
    publisher = make_publisher(tmp_path, bus, mode="always", block_timeout=0.2)
    await publisher.start()
    folder = tmp_path / "spool" / "scripted"
    folder.rename(tmp_path / "away")
    with pytest.raises(
        UndeliveredError, match=r"10 events to scripted are not on disk after 0\.2 s \(--spool-mode always\): .*spool"
    ):
        await publisher.publish(make_events(TRADES, 10))
    assert bus.events == []
    (tmp_path / "away").rename(folder)
    await eventually(lambda: len(bus.events) == 10)
    await publisher.publish(make_events(TRADES, 10, first=10))
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete


async def test_a_record_that_is_too_large_is_a_dead_letter_on_disk_before_it_counts_as_accepted(tmp_path: Path) -> None:
    bus, folder = ScriptedBus(limits=SMALL), tmp_path / "dead-letters" / "scripted"
    publisher = make_publisher(tmp_path, bus, mode="always", block_timeout=0.2)
    await publisher.start()
    await start_session(publisher)
    folder.parent.write_text("in the way")
    large = make_events(TRADES, 2, size=2000)
    with pytest.raises(UndeliveredError, match=r"events to scripted are not on disk .*dead letters can't be written"):
        await publisher.publish(large[:1])
    folder.parent.unlink()
    await publisher.publish([*make_events(TRADES, 5, first=2), large[1]])
    letters = [letter.event for path in folder.glob("*.jsonl") for letter in read_dead_letters(path)]
    assert large[1] in letters
    publisher.session_end("s1")
    (receipt,) = await publisher.close(10)
    assert (receipt.dead_lettered, receipt.unconfirmed) == (2, 0)
    assert sum(entry.count for entry in bus.session_ends[0].entries) == 7, "what is a dead letter is missing, and to be seen"


async def test_a_shutdown_that_cannot_keep_events_fails_those_who_wait_for_the_disk(tmp_path: Path) -> None:
    bus = ScriptedBus()
    publisher = make_publisher(tmp_path, bus, mode="always", block_timeout=60.0)
    await publisher.start()
    (tmp_path / "spool" / "scripted").rename(tmp_path / "away")
    waiting = asyncio.create_task(publisher.publish(make_events(TRADES, 10)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    (tmp_path / "spool" / "scripted").write_text("in the way")
    (receipt,) = await publisher.abort()
    assert (receipt.lost, receipt.is_complete) == (10, False)
    assert bus.closed == 1, "a disk that fails ends nothing else"
    with pytest.raises(UndeliveredError, match="to scripted are lost, as the spool can't take them"):
        await waiting


async def test_a_shutdown_that_keeps_events_lets_those_go_on_who_wait_for_the_disk(tmp_path: Path) -> None:
    bus = ScriptedBus()
    bus.is_down = True
    publisher = make_publisher(tmp_path, bus, mode="always", block_timeout=60.0)
    await publisher.start(connect_timeout_s=0.1)
    folder = tmp_path / "spool" / "scripted"
    folder.rename(tmp_path / "away")
    waiting = asyncio.create_task(publisher.publish(make_events(TRADES, 10)))
    await asyncio.sleep(0.05)
    (tmp_path / "away").rename(folder)
    (receipt,) = await publisher.abort()
    await waiting
    assert (receipt.spooled, receipt.lost) == (10, 0)
