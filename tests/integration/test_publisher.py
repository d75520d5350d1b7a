"""The publisher with its spool and ledger on a real disk, in front of buses that do what the test says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tardis_machine.bronze.event import Event, digest_of
from tardis_machine.errors import SettingsError, TerminalDeliveryError, TransientDeliveryError, UndeliveredError
from tardis_machine.eventbus.contract import Failure, Limits, Record
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.eventbus.routing import Routing
from tests.closed_sessions import read_closed_sessions
from tests.integration.published_events import ONE_BATCH, TRADES, assert_in_order, interleaved, start_session
from tests.unit.eventbus.events import make_events, make_stream
from tests.unit.eventbus.scripted_bus import LIMITS, ScriptedBus, eventually, make_plan, make_publisher


async def test_everything_arrives_in_order_and_is_accounted_for(tmp_path: Path) -> None:
    bus = ScriptedBus()
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await start_session(publisher)
    events = interleaved(5000)
    for start in range(0, len(events), 1000):
        await publisher.publish(events[start : start + 1000])
        await asyncio.sleep(0)
    publisher.session_end("s1")
    (receipt,) = await publisher.close(10)
    assert bus.events == events
    assert receipt.published == receipt.confirmed == 10_001
    assert receipt.is_complete
    assert max(bus.batches) == 500
    assert bus.closed == 1
    (end,) = bus.session_ends
    assert bus.stored[-1].route.payload_case == "session_end"
    assert end.complete
    assert not end.HasField("reason")
    trades = [event for event in events if event.stream is TRADES]
    entry = next(entry for entry in end.entries if entry.payload_case == "trade")
    assert (entry.exchange, entry.symbol, entry.count) == ("bitmex", "XBTUSD", 5000)
    assert (entry.first_sequence, entry.last_sequence) == (0, 4999)
    assert entry.first_local_ts.ToMicroseconds() == trades[0].local_ts_us
    assert entry.last_local_ts.ToMicroseconds() == trades[-1].local_ts_us
    assert int.from_bytes(entry.digest, "big") == digest_of([event.event_id for event in trades])
    (session,) = read_closed_sessions(tmp_path / "spool" / "scripted" / "sessions")
    assert session.complete
    assert {entry.payload_case: entry.count for entry in session.entries} == {"trade": 5000, "book_change": 5000}
    assert session.meta == {"request_id": "r1"}


async def test_a_bus_that_is_gone_holds_up_neither_another_nor_those_who_publish(tmp_path: Path) -> None:
    well, gone, hung = ScriptedBus("well"), ScriptedBus("gone"), ScriptedBus("hung")
    gone.is_down = True
    hung.hangs = True
    publisher = make_publisher(tmp_path, well, gone, hung, queue_max_bytes=200_000)
    await publisher.start(connect_timeout_s=1)
    events = interleaved(3000)
    loop = asyncio.get_running_loop()
    slowest = 0.0
    for start in range(0, len(events), 100):
        before = loop.time()
        await publisher.publish(events[start : start + 100])
        slowest = max(slowest, loop.time() - before)
        await asyncio.sleep(0.001)
    await eventually(lambda: well.events == events)
    assert slowest < 0.5
    states = {health.bus: health for health in publisher.health()}
    assert states["well"].state == "connected"
    assert states["gone"].state == "spooling"
    assert states["gone"].last_error == "connection refused"
    assert states["gone"].queue_bytes <= 200_000 + ONE_BATCH
    assert states["gone"].spool_events > 0
    assert states["hung"].queue_bytes <= 200_000 + ONE_BATCH
    assert (states["hung"].oldest_unconfirmed_seconds or 0) > 0
    gone.is_down = False
    hung.hangs = False
    await publisher.flush(10)
    assert gone.events == hung.events == events
    receipts = await publisher.close(10)
    assert all(receipt.is_complete for receipt in receipts)
    assert all(health.state == "closed" for health in publisher.health())


async def test_only_what_failed_is_sent_again_and_its_lane_waits(tmp_path: Path) -> None:
    bus = ScriptedBus()
    failed: list[Event] = []
    order: list[tuple[str, int]] = []

    def fault(batch: Sequence[Record]) -> list[Failure]:
        failures = []
        blocked = False
        for index, record in enumerate(batch):
            is_trade = record.route.payload_case == "trade"
            if is_trade and (blocked or (record.event.sequence == 10 and len(failed) < 3)):
                if not blocked:
                    failed.append(record.event)
                blocked = True
                failures.append(Failure(index, TransientDeliveryError("throttled")))
            else:
                order.append((record.route.payload_case, record.event.sequence))
        return failures

    bus.fault = fault
    publisher = make_publisher(tmp_path, bus, max_batch_size=20, retry_backoff_ms=200, retry_backoff_max_ms=200)
    await publisher.start()
    events = interleaved(200)
    await publisher.publish(events)
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete
    assert sorted(event.event_id for event in bus.events) == sorted(event.event_id for event in events)
    assert len(bus.stored) == len(events) + 1, "nothing but what failed was sent again"
    assert_in_order(bus.events)
    assert receipt.retried >= 3
    # Books went on while trades waited.
    position = order.index(("trade", 10))
    assert [sequence for case, sequence in order[:position] if case == "book_change"][-1] > 100


async def test_a_send_that_hangs_is_given_up_and_repeated(tmp_path: Path) -> None:
    bus = ScriptedBus(limits=msgspec.structs.replace(LIMITS, send_timeout_s=0.1))
    bus.hangs = True
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    events = interleaved(50)
    await publisher.publish(events)
    await eventually(lambda: publisher.health()[0].state == "retrying")
    assert publisher.health()[0].last_error == "scripted did not answer a send within 0.1 s"
    bus.hangs = False
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete
    assert bus.events == events
    assert bus.connects >= 2


async def test_an_unforeseen_error_is_tried_again(tmp_path: Path) -> None:
    bus = ScriptedBus()
    attempts = 0

    def fault(_: Sequence[Record]) -> list[Failure]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise KeyError("client bug")
        return []

    bus.fault = fault
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await publisher.publish(interleaved(50))
    assert (await publisher.close(10))[0].is_complete


async def test_a_bus_that_can_never_work_stops_the_start_and_one_that_is_away_does_not(tmp_path: Path) -> None:
    refused, well = ScriptedBus("refused"), ScriptedBus("well")
    refused.connect_error = TerminalDeliveryError("topic 'base' does not exist")
    publisher = make_publisher(tmp_path, well, refused)
    with pytest.raises(TerminalDeliveryError, match="topic 'base' does not exist"):
        await publisher.start()
    assert well.closed == refused.closed == 1
    with pytest.raises(UndeliveredError, match="not running"):
        await publisher.publish(interleaved(1))

    refused.connect_error = TransientDeliveryError("connection refused")
    publisher = make_publisher(tmp_path, ScriptedBus("well"), refused)
    await publisher.start()
    assert {health.bus: health.state for health in publisher.health()} == {"well": "connected", "refused": "retrying"}
    await publisher.close(0.1)


async def test_the_start_says_what_a_bus_gives_up_by_choice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    buses = ScriptedBus("free", msgspec.structs.replace(LIMITS, gives_up="pace")), ScriptedBus("strict")
    with caplog.at_level(logging.INFO):
        publisher = make_publisher(tmp_path, *buses)
        await publisher.start()
        await publisher.close(10)
    said = [vars(record)["fields"] for record in caplog.records if "given up by choice" in record.getMessage()]
    assert said == [{"bus": "free", "gives_up": "pace"}]


async def test_a_bus_that_was_refused_later_is_still_tried(tmp_path: Path) -> None:
    bus = ScriptedBus()
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    bus.is_down = True
    bus.connect_error = TerminalDeliveryError("not authorised")
    events = interleaved(50)
    await publisher.publish(events)
    await eventually(lambda: bus.connects > 3)
    assert publisher.receipts[0].dead_lettered == 0
    bus.is_down, bus.connect_error = False, None
    assert (await publisher.close(10))[0].is_complete
    assert bus.events == events


async def test_each_bus_gets_what_its_allow_list_has_and_a_ledger_of_that(tmp_path: Path) -> None:
    trades, all_of_it, no_ends = ScriptedBus("trades"), ScriptedBus("all"), ScriptedBus("no-ends")
    plans = [
        make_plan(trades, tmp_path, Routing(destination="t", include_payloads=["trade"])),
        make_plan(all_of_it, tmp_path),
        make_plan(no_ends, tmp_path, Routing(destination="t", include_payloads=["bookChange", "-session_end"])),
    ]
    publisher = Publisher(plans, spool_dir=tmp_path / "spool")
    assert publisher.include is None
    assert Publisher(plans[::2], spool_dir=tmp_path / "spool").include == {"trade", "session_end", "book_change"}
    await publisher.start()
    await publisher.publish(interleaved(100))
    publisher.session_end("s1", complete=False, reason="the client went away")
    await publisher.close(10)
    assert {event.stream.payload_case for event in trades.events} == {"trade"}
    assert {event.stream.payload_case for event in no_ends.events} == {"book_change"}
    (end,) = trades.session_ends
    assert [(entry.payload_case, entry.count) for entry in end.entries] == [("trade", 100)]
    assert not end.complete
    assert end.reason == "the client went away"
    assert [(entry.payload_case, entry.count) for entry in all_of_it.session_ends[0].entries] == [
        ("book_change", 100),
        ("trade", 100),
    ]
    assert no_ends.session_ends == []
    (session,) = read_closed_sessions(tmp_path / "spool" / "no-ends" / "sessions")
    assert [(entry.payload_case, entry.count) for entry in session.entries] == [("book_change", 100)]


async def test_settings_that_are_wrong_are_reported_together(tmp_path: Path) -> None:
    one, two = ScriptedBus("one"), ScriptedBus("two")
    plans = [
        make_plan(one, tmp_path, Routing(destination="t", routing={"trades": "x"}, key_template="{{symbl}}")),
        make_plan(two, tmp_path, Routing(destination="t", static_headers={"eventid": "x"})),
    ]
    with pytest.raises(SettingsError) as caught:
        Publisher(plans, spool_dir=tmp_path / "spool")
    problems = caught.value.problems
    assert len(problems) == 3
    assert "one" in problems[0]
    assert "'trades' is not a payload case" in problems[0]
    assert "{{symbl}}" in problems[1]
    assert "two" in problems[2]
    assert "'eventid'" in problems[2]


async def test_concurrent_sends_keep_a_lane_to_one_of_them(tmp_path: Path) -> None:
    limits = Limits(batch_records=10, batch_bytes=10**6, record_bytes=10**6, concurrent_sends=4, keeps_order_in_batch=False)
    bus = ScriptedBus(limits=limits)
    bus.delay_s = 0.001
    running = most = 0
    send = bus.send

    async def counted(batch: Sequence[Record]) -> Sequence[Failure]:
        nonlocal running, most
        lanes = [record.route.lane for record in batch]
        assert len(lanes) == len(set(lanes))
        running += 1
        most = max(most, running)
        try:
            return await send(batch)
        finally:
            running -= 1

    bus.send = counted  # type: ignore[method-assign]
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    streams = [make_stream(f"S{number}") for number in range(50)]
    events = [event for first in range(20) for stream in streams for event in make_events(stream, 1, first=first)]
    await publisher.publish(events)
    assert (await publisher.close(20))[0].is_complete
    assert len(bus.events) == 1000
    assert_in_order(bus.events)
    assert most == 4


async def test_a_bus_that_hangs_does_not_hold_up_the_start(tmp_path: Path) -> None:
    bus = ScriptedBus()

    async def never() -> None:
        await asyncio.sleep(3600)

    bus.connect = never  # type: ignore[method-assign]
    publisher = make_publisher(tmp_path, bus)
    started = asyncio.get_running_loop().time()
    await publisher.start(connect_timeout_s=0.1)
    assert asyncio.get_running_loop().time() - started < 5
    assert publisher.health()[0].state == "connecting"
    await publisher.abort()


async def test_a_ledger_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = ScriptedBus()
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    sessions = tmp_path / "spool" / "scripted" / "sessions"
    sessions.write_text("in the way")
    await start_session(publisher)
    await publisher.publish(make_events(TRADES, 10))
    await publisher.flush(10)
    assert "the ledger can't be written" in caplog.text
    sessions.unlink()
    publisher.session_end("s1")
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete
    assert [session.session_id for session in read_closed_sessions(sessions)] == ["s1"]


async def test_an_end_while_the_ledger_is_being_written_forgets_nothing(tmp_path: Path) -> None:
    bus = ScriptedBus()
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await start_session(publisher)
    await publisher.publish(make_events(TRADES, 10))
    publisher.session_end("s1")
    courier = publisher._couriers["scripted"]
    await eventually(lambda: courier._delivery.is_idle)

    async def keep_disk_busy() -> None:
        """So that what is to be written waits for its turn."""
        for _ in range(10):
            await courier._disk_thread.run(time.sleep, 0.05)

    busy = [asyncio.create_task(keep_disk_busy()) for _ in range(2)]
    housekeeping, idle = courier._housekeeping, courier._housekeeping._task
    housekeeping.start()
    await eventually(lambda: bool(housekeeping._ledger.settled))
    assert housekeeping._writing.locked(), "the end that is resolved is not about to be written"
    await publisher.close(10)
    await asyncio.gather(*busy, return_exceptions=True)
    assert idle is not None
    idle.cancel()
    assert [session.session_id for session in read_closed_sessions(tmp_path / "spool" / "scripted" / "sessions")] == ["s1"]
