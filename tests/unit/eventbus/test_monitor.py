"""What is seen from outside: metrics, log lines and health."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tardis_machine.eventbus.courier import monitor
from tardis_machine.telemetry import render_metrics
from tests.unit.eventbus.events import make_events, make_stream
from tests.unit.eventbus.scripted_bus import ScriptedBus, eventually, make_publisher


def metric(name: str, **labels: str) -> float:
    """The value that a scrape would see."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    for line in render_metrics().decode().splitlines():
        if line.startswith(f"tardis_machine_{name}{{") and all(label in line for label in wanted):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


async def test_metrics_by_bus_and_payload_case(tmp_path: Path) -> None:
    bus = ScriptedBus("watched")
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await publisher.publish(make_events(make_stream("A", "trade"), 30) + make_events(make_stream("A", "quote"), 20))
    await publisher.close(10)
    assert metric("bus_events_published_total", bus="watched", payload_case="trade") == 30
    assert metric("bus_events_confirmed_total", bus="watched", payload_case="quote") == 20
    assert metric("bus_events_confirmed_total", bus="watched", payload_case="session_end") == 1
    assert metric("bus_batch_records_sum", bus="watched") == 51
    assert metric("bus_confirm_seconds_count", bus="watched", payload_case="trade") >= 1
    assert metric("bus_queue_bytes", bus="watched") == 0
    assert metric("bus_oldest_unconfirmed_seconds", bus="watched") == 0


async def test_a_bus_that_came_late_and_has_nothing_to_do_is_connected(tmp_path: Path) -> None:
    bus = ScriptedBus("late")
    bus.is_down = True
    publisher = make_publisher(tmp_path, bus)
    await publisher.start(connect_timeout_s=0.1)
    await eventually(lambda: publisher.health()[0].state == "retrying")
    bus.is_down = False
    await eventually(lambda: publisher.health()[0].state == "connected")
    await publisher.close(10)


async def test_a_line_for_each_change_of_state_and_none_for_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tardis_machine")
    bus = ScriptedBus("logged")
    publisher = make_publisher(tmp_path, bus, queue_max_bytes=100_000)
    await publisher.start()
    for start in range(0, 1000, 10):
        await publisher.publish(make_events(make_stream(), 10, first=start))
        await asyncio.sleep(0)
    await publisher.flush(10)
    bus.is_down = True
    await publisher.publish(make_events(make_stream(), 10, first=1000))
    await eventually(lambda: publisher.health()[0].state == "retrying")
    bus.is_down = False
    await eventually(lambda: publisher.health()[0].state == "connected")
    bus.is_down = True
    for start in range(2000, 4000, 100):
        await publisher.publish(make_events(make_stream(), 100, first=start))
        await asyncio.sleep(0)
    await eventually(lambda: publisher.health()[0].state == "spooling")
    bus.is_down = False
    await publisher.flush(10)
    await publisher.close(10)
    lines = [record.getMessage() for record in caplog.records if record.name == "tardis_machine.eventbus.logged"]
    collapsed = [line for index, line in enumerate(lines) if index == 0 or line != lines[index - 1]]
    assert collapsed[:3] == ["connected", "retrying", "recovered"]
    assert "spooling" in collapsed
    assert "drained" in collapsed
    assert collapsed[-1] == "closed"
    assert len(lines) < 15


async def test_a_summary_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "tardis_machine")
    monkeypatch.setattr(monitor, "_SUMMARY_S", 0.0)
    publisher = make_publisher(tmp_path, ScriptedBus("summed"))
    await publisher.start()
    await publisher.publish(make_events(make_stream(), 10))
    await publisher.close(10)
    summary = [record for record in caplog.records if record.getMessage() == "summary"][-1]
    assert summary.fields["published"] == summary.fields["confirmed"] == 11  # type: ignore[attr-defined]


async def test_health_of_a_bus_that_is_away(tmp_path: Path) -> None:
    bus = ScriptedBus("away")
    bus.is_down = True
    publisher = make_publisher(tmp_path, bus)
    await publisher.start(connect_timeout_s=1)
    await publisher.publish(make_events(make_stream(), 10))
    await asyncio.sleep(0.05)
    (health,) = publisher.health()
    assert (health.bus, health.state, health.queue_events) == ("away", "retrying", 10)
    assert health.queue_bytes > 0
    assert health.oldest_unconfirmed_seconds is not None
    assert health.oldest_unconfirmed_seconds >= 0.05
    assert health.last_error == "connection refused"
    receipts = await publisher.abort()
    assert str(receipts[0]) == (
        "away: 10 published, 0 confirmed, 0 retried, 10 spooled, 0 dead-lettered, 0 dropped, 10 unconfirmed; "
        "last error: connection refused"
    )
    assert publisher.health()[0].state == "closed"
    # What a last scrape would say of it.
    assert metric("bus_spool_events", bus="away") == 10
    assert 100 < metric("bus_spool_bytes", bus="away") < metric("bus_spool_max_bytes", bus="away")
