"""Records are taken away at each stage, and exactly those are found missing."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event, Tally
from tardis_machine.bronze.splitting import split_event
from tardis_machine.errors import LakeError
from tardis_machine.eventbus.ledger import Ledger, to_session_end
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.lakehouse.verify import Missing, verify, write_outcome
from tardis_machine.messages import BookChange, BookLevel, Message, to_timestamp
from tests.spark.lake_under_test import START_US, LakeUnderTest, trades

pytestmark = pytest.mark.timeout(600)


class Session:
    """A session as a publisher sends it: its events, then its ledger."""

    def __init__(self, name: str, messages: Sequence[Message]) -> None:
        self.name = name
        self._encoder = BronzeEncoder(session_id=name, origin="replay", clock_us=lambda: START_US)
        self.events = self._encoder.encode(messages)

    @property
    def values(self) -> list[bytes]:
        return [event.value for event in self.events]

    def end(self, *, complete: bool = True, reason: str = "", counted: Sequence[Event] | None = None, after_us: int = 1) -> bytes:
        ledger = Ledger(Path("unused"))
        ledger.start(self.name, "test", "replay", {}, START_US)
        for event in self.events if counted is None else counted:
            ledger.add([Tally([event])], START_US)
        session = ledger.end(self.name, complete=complete, reason=reason, now_us=START_US + after_us)
        assert session is not None
        [end] = self._encoder.encode_session_end(to_session_end(session))
        return end.value


def book(count: int) -> list[Message]:
    return [
        BookChange(
            symbol="XBTUSD",
            exchange="bitmex",
            is_snapshot=n == 0,
            bids=[BookLevel(9000 - level - n, 1) for level in range(20)],
            asks=[],
            timestamp=to_timestamp(START_US + n),
            local_timestamp=to_timestamp(START_US + n),
        )
        for n in range(count)
    ]


def without(values: Sequence[bytes], *gone: int) -> list[bytes]:
    return [value for index, value in enumerate(values) if index not in gone]


def delete(lake: LakeUnderTest, table: str, condition: str) -> None:
    lake.spark.sql(f"DELETE FROM delta.`{table}` WHERE {condition}")


def test_what_is_whole_is_said_to_be_and_what_is_taken_away_is_found(lake: LakeUnderTest) -> None:
    first, again = Session("first", [*trades(12), *book(6)]), Session("again", trades(12))
    split = Session("split", book(1))
    parts = split_event(split.events[0], 300)
    assert parts is not None
    cut = Session("cut", trades(5, start=100))
    running = Session("running", trades(6, start=200))
    bad = NormalizedEvent.FromString(running.values[5])
    bad.trade.price_str = "0.0000000000000000001"
    lake.bus.write("a", [*first.values, *first.values[:4], first.end()])
    # The same events: silver has them once, under one of the two sessions.
    lake.bus.write("b", [*again.values, again.end()])
    # Its ledger lacks what a crash took; what it has is there.
    lake.bus.write("c", [*cut.values, cut.end(complete=False, reason="died", counted=cut.events[:3])])
    lake.bus.write("d", running.values[:5])
    lake.bus.write("e", [*(part.value for part in parts), split.end(counted=parts)])
    lake.ingest(until="silver")

    whole = verify(lake.spark, lake.lake)
    assert whole.missing == []
    states = {session.session: (session.state, session.published, session.reason) for session in whole.sessions}
    assert states == {
        "first": ("complete", 18, None),
        "again": ("complete", 12, None),
        "cut": ("incomplete", 3, "died"),
        "running": ("open", None, None),
        "split": ("complete", len(parts), None),
    }

    # On the way to the lake: a hole at either end and one between, a series of which nothing came, a part of a book, what is in
    # quarantine, and what an open session lost.
    gap = Session("gap", [*trades(12, start=300), *book(2)])
    lake.bus.write("f", [*without(gap.values, 0, 4, 5, 6, 11, 12, 13), gap.end()])
    half = Session("half", book(1))
    halves = split_event(half.events[0], 300)
    assert halves is not None
    lake.bus.write("g", [*without([part.value for part in halves], 1), half.end(counted=halves)])
    lake.bus.write("h", [bad.SerializeToString(), *Session("open", trades(4, start=400)).values[2:]])
    lake.ingest(until="silver")
    # In bronze, after silver was made of it; and in silver alone.
    delete(lake, lake.lake.path(EVENTS), "session = 'first' AND payload_case = 'book_change' AND sequence IN (2, 3)")
    delete(lake, lake.lake.path(TRADES.table), "session = 'again' AND sequence BETWEEN 7 AND 8")

    outcome = verify(lake.spark, lake.lake)
    bronze = [item for item in outcome.missing if item.stage == "bronze.events"]
    silver = [item for item in outcome.missing if item.stage != "bronze.events"]

    def lost(item: Missing) -> tuple[object, ...]:
        return item.session, item.payload_case, item.first_sequence, item.last_sequence, item.events

    assert sorted(map(lost, bronze), key=repr) == sorted(
        [
            ("first", "book_change", 2, 3, 2),
            ("gap", "trade", 0, 0, 1),
            ("gap", "trade", 4, 6, 3),
            ("gap", "trade", 11, 11, 1),
            ("gap", "book_change", 0, 1, 2),
            ("half", "book_change", None, None, 1),
            ("open", "trade", 0, 1, 2),
        ],
        key=repr,
    )
    assert sorted(map(lost, silver)) == [
        # Both sessions brought it, and neither has it in silver.
        ("again", "trade", 7, 8, 2),
        ("first", "trade", 7, 8, 2),
        ("running", "trade", 5, 5, 1),
    ]
    [refused] = [item for item in silver if item.session == "running"]
    assert refused.reason.startswith("in quarantine: price")

    out = io.StringIO()
    write_outcome(outcome, "json", out)
    written = json.loads(out.getvalue())
    assert written["whole"] is False
    assert len(written["missing"]) == len(outcome.missing)
    assert written["sessions"][0].keys() >= {"session", "state", "published"}
    out = io.StringIO()
    write_outcome(outcome, "table", out)
    assert "events are missing" in out.getvalue()
    out = io.StringIO()
    write_outcome(whole, "table", out)
    assert "5 sessions: 3 complete, 1 incomplete, 1 open" in out.getvalue()
    assert out.getvalue().endswith("Nothing is missing.\n")


def test_a_second_ledger_that_knows_less_hides_no_loss(lake: LakeUnderTest) -> None:
    """A machine that was killed right after a session's end may have ended it once more, with what it had written down."""
    killed, cut = Session("killed", trades(12)), Session("cut", trades(12, start=100))
    later = killed.end(complete=False, reason="died", counted=[], after_us=1000)
    lake.bus.write("a", [*killed.values[:7], killed.end(), later])
    shut_down = cut.end(complete=False, reason="the machine was shut down")
    lake.bus.write("b", [*cut.values[:7], shut_down, cut.end(complete=False, reason="died", counted=[], after_us=1000)])
    lake.ingest(until="bronze")
    outcome = verify(lake.spark, lake.lake)
    states = {session.session: (session.state, session.published, session.reason) for session in outcome.sessions}
    assert states == {"killed": ("complete", 12, None), "cut": ("incomplete", 12, "the machine was shut down")}
    lost = [(item.session, item.first_sequence, item.last_sequence) for item in outcome.missing]
    assert sorted(lost) == [("cut", 7, 11), ("killed", 7, 11)]


def test_a_lake_without_anything_to_compare_is_named(lake: LakeUnderTest, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"there is no bronze.events in .*nowhere; choose another lake with --lake"):
        verify(lake.spark, Lake.at(tmp_path / "nowhere"))
