"""Copies of dead letters when the machine ends: sent where that goes in time, and given up where it does not."""

from __future__ import annotations

import asyncio

import pytest

from tardis_machine.eventbus.courier import letter_copies
from tardis_machine.eventbus.courier.letter_copies import LetterCopies
from tardis_machine.eventbus.policy import Policy
from tardis_machine.eventbus.routing import Router, Routing
from tardis_machine.telemetry import get_logger
from tests.unit.eventbus.events import make_record, make_route
from tests.unit.eventbus.scripted_bus import LIMITS, OPTIONS, ScriptedBus
from tests.unit.eventbus.test_monitor import metric

LETTERS = [(make_record(make_route("XBTUSD"), sequence), "refused") for sequence in range(10)]


def make_copies(bus: ScriptedBus) -> LetterCopies:
    policy = Policy.from_options(OPTIONS, LIMITS, write_ahead=False)
    return LetterCopies(bus, Router(bus.name, Routing(destination="letters")), policy, lambda: 0.5, get_logger("copies"))


async def test_what_is_being_sent_at_the_end_arrives() -> None:
    bus = ScriptedBus()
    bus.delay_s = 0.05
    copies = make_copies(bus)
    copies.put(LETTERS)
    await asyncio.sleep(0.01)
    await copies.close()
    assert (len(bus.stored), bus.closed) == (10, 1)
    assert {record.destination for record in bus.stored} == {"letters"}


async def test_a_destination_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_copies, "_CLOSE_S", 0.05)
    bus = ScriptedBus("hanging")
    bus.hangs = True
    copies = make_copies(bus)
    copies.put(LETTERS)
    async with asyncio.timeout(10):
        await copies.close()
    assert (len(bus.stored), bus.closed) == (0, 1)
    assert metric("bus_dead_letter_copies_total", bus="hanging", outcome="failed") == 10, "those on their way count too"
