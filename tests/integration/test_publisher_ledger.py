"""The ledger while its disk fails: the end of a session waits for it, and is never contradicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.closed_sessions import read_closed_sessions
from tests.integration.published_events import TRADES, start_session
from tests.unit.eventbus.events import make_events
from tests.unit.eventbus.scripted_bus import ScriptedBus, eventually, make_publisher


class SessionsFolder:
    """The folder of a bus's ledger, which can be made to fail."""

    def __init__(self, folder: Path, bus: str = "scripted") -> None:
        self.path = folder / "spool" / bus / "sessions"
        self._away = folder / "away"

    def fail(self) -> None:
        self.path.rename(self._away)
        self.path.write_text("in the way")

    def heal(self) -> None:
        self.path.unlink()
        self._away.rename(self.path)


async def test_the_end_of_a_session_is_sent_when_its_ledger_is_on_disk_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus, folder = ScriptedBus(), SessionsFolder(tmp_path)
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await start_session(publisher)
    folder.fail()
    await publisher.publish(make_events(TRADES, 10))
    publisher.session_end("s1")
    await eventually(lambda: len(bus.events) == 10)
    await eventually(lambda: "the ledger can't be written" in (publisher.health()[0].last_error or ""))
    # However often it is tried.
    await eventually(lambda: caplog.text.count("the ledger can't be written") >= 3)
    assert bus.session_ends == []
    folder.heal()
    await eventually(lambda: bool(bus.session_ends))
    (receipt,) = await publisher.close(10)
    assert receipt.is_complete
    (end,) = bus.session_ends
    assert (end.complete, end.entries[0].count) == (True, 10)


async def test_one_failed_write_does_not_make_a_complete_session_incomplete(tmp_path: Path) -> None:
    """Sent, resolved, and then the log of closed sessions can't be written, until the machine is no more."""
    bus, folder = ScriptedBus(), SessionsFolder(tmp_path)
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await start_session(publisher)
    await publisher.publish(make_events(TRADES, 10))
    publisher.session_end("s1")
    await eventually(lambda: bool(bus.session_ends))
    folder.fail()
    await publisher.abort()
    folder.heal()
    again = ScriptedBus()
    publisher = make_publisher(tmp_path, again)
    await publisher.start()
    await publisher.close(10)
    assert all(end.complete and end.entries[0].count == 10 for end in bus.session_ends + again.session_ends)
    (closed,) = read_closed_sessions(folder.path)
    assert (closed.complete, closed.entries[0].count) == (True, 10)


async def test_sessions_that_could_not_be_closed_are_closed_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus, folder = ScriptedBus(), SessionsFolder(tmp_path)
    publisher = make_publisher(tmp_path, bus)
    await publisher.start()
    await start_session(publisher)
    await publisher.publish(make_events(TRADES, 10))
    publisher.session_end("s1")
    await eventually(lambda: bool(bus.session_ends))
    folder.fail()
    await eventually(lambda: "the ledger can't be written" in caplog.text)
    folder.heal()
    await eventually(lambda: bool(read_closed_sessions(folder.path)))
    await eventually(lambda: not list(folder.path.glob("session-*.json")))
    await publisher.close(10)
    (closed,) = read_closed_sessions(folder.path)
    assert (closed.session_id, closed.complete) == ("s1", True)
