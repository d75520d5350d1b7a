"""The ledger: what it counts, what it keeps on disk, and what is left of it after a death."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.bronze.event import Event, Tally, digest_of
from tardis_machine.eventbus.ledger import Ledger, LedgerSession, to_session_end
from tests.closed_sessions import read_closed_sessions
from tests.unit.eventbus.events import make_events, make_stream
from tests.unit.synced_disk import Disk

TRADES = make_stream("XBTUSD", "trade")


def start(folder: Path) -> Ledger:
    ledger = Ledger(folder)
    ledger.start("s1", "source", "replay", {"request_id": "r"}, 100)
    return ledger


@given(st.lists(st.binary(min_size=16, max_size=16)), st.integers(0, 100))
def test_the_digest_is_the_sum_in_any_order(ids: list[bytes], seed: int) -> None:
    expected = sum(int.from_bytes(event_id, "big") for event_id in ids) % 2**128
    assert digest_of(ids) == expected
    shuffled = list(ids)
    Random(seed).shuffle(shuffled)
    assert digest_of(shuffled) == expected


def test_it_counts_by_exchange_symbol_and_payload_case(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    first, second = make_events(TRADES, 10), make_events(TRADES, 5, first=10)
    ledger.add([Tally(first)], 200)
    ledger.add([Tally(second), Tally(make_events(make_stream("ETHUSD"), 1))], 300)
    session = ledger.end("s1", complete=True, reason="", now_us=400)
    assert session is not None
    assert (session.started_us, session.ended_us) == (100, 400)
    eth, xbt = session.entries
    assert (eth.symbol, eth.count) == ("ETHUSD", 1)
    assert (xbt.count, xbt.first_sequence, xbt.last_sequence) == (15, 0, 14)
    assert (xbt.first_local_us, xbt.last_local_us) == (first[0].local_ts_us, second[-1].local_ts_us)
    assert int(xbt.digest, 16) == digest_of([event.event_id for event in first + second])
    assert ledger.end("s1", complete=True, reason="", now_us=500) is None, "a session ends once"


def test_the_end_is_on_disk_before_anything_that_tells_of_it_is(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    ledger.write_changes(ledger.take_changes(200, only_new=True))
    ledger.add([Tally(make_events(TRADES, 3))], 300)
    assert ledger.take_changes(300, only_new=True) == []
    ledger.end("s1", complete=True, reason="", now_us=400)
    ledger.write_changes(ledger.take_changes(400, only_new=True))
    after_a_death = Ledger(tmp_path)
    after_a_death.read_open()
    assert after_a_death.open_sessions == []
    (session,) = after_a_death.left_behind
    assert (session.ended_us, session.complete, session.entries[0].count) == (400, True, 3)


def test_an_end_outlasts_a_power_cut_when_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sessions"
    ledger = start(folder)
    ledger.write_changes(ledger.take_changes(200, only_new=True))
    disk = Disk(folder, monkeypatch)
    ledger.add([Tally(make_events(TRADES, 3))], 300)
    ledger.end("s1", complete=True, reason="", now_us=400)
    ledger.write_changes(ledger.take_changes(400, only_new=True))
    found = Ledger(disk.after_power_cut(tmp_path / "open"))
    assert found.read_open() == []
    assert [session.ended_us for session in found.left_behind] == [400]

    ledger.settle(["s1"])
    ledger.write_settled(ledger.settled)
    (session,) = read_closed_sessions(disk.after_power_cut(tmp_path / "settled"))
    assert (session.ended_us, session.complete, session.entries[0].count) == (400, True, 3)


def test_streams_of_one_series_may_interleave(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    events = make_events(make_stream("A", "trade_bar"), 6)
    ledger.add([Tally(events[1::2]), Tally(events[0::2])], 0)
    (entry,) = ledger.end("s1", complete=True, reason="", now_us=1).entries  # type: ignore[union-attr]
    assert (entry.count, entry.first_sequence, entry.last_sequence) == (6, 0, 5)
    assert (entry.first_local_us, entry.last_local_us) == (events[0].local_ts_us, events[5].local_ts_us)


def test_a_session_begins_with_its_first_event_where_it_was_not_announced(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add([Tally(make_events(make_stream(session="unknown", request_id="r9"), 1))], 7)
    assert ledger.open_sessions == ["unknown"]
    session = ledger.end("unknown", complete=False, reason="x", now_us=8)
    assert session is not None
    assert (session.started_us, session.meta["request_id"], session.origin) == (7, "r9", "replay")


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    assert [change.file_name.startswith("session-s1-") for change in ledger.take_changes(1)] == [True]
    assert ledger.take_changes(2) == []
    ledger.add([Tally(make_events(TRADES, 1))], 3)
    assert ledger.take_changes(4, only_new=True) == []
    changes = ledger.take_changes(4)
    assert len(changes) == 1
    ledger.put_back(changes)
    assert len(ledger.take_changes(5)) == 1


def test_an_open_session_is_found_again_with_what_the_spool_has_beyond_it(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    events = make_events(TRADES, 10)
    ledger.add([Tally(events[:6])], 0)
    ledger.write_changes(ledger.take_changes(50))
    # The process dies. The spool still has the events from the fourth on, and one of a stream that the ledger has not seen.
    other = make_events(make_stream("ETHUSD"), 1)
    again = Ledger(tmp_path)
    assert again.read_open() == []
    assert again.open_sessions == ["s1"]
    for event in events[3:] + other + make_events(make_stream(session="closed long ago"), 1):
        again.recover(event)
    session = again.end("s1", complete=False, reason="died", now_us=99)
    assert session is not None
    eth, xbt = session.entries
    assert (xbt.count, xbt.last_sequence) == (10, 9)
    assert int(xbt.digest, 16) == digest_of([event.event_id for event in events])
    assert eth.count == 1
    assert again.open_sessions == []
    assert [left.session_id for left in again.left_behind] == ["s1"]


def test_a_settled_session_is_in_the_log_and_nowhere_else(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    ledger.write_changes(ledger.take_changes(1))
    ledger.settle(["s1"])
    assert ledger.settled == [], "it has not ended"
    ledger.end("s1", complete=True, reason="", now_us=2)
    ledger.write_changes(ledger.take_changes(3))
    ledger.settle(["s1", "unknown"])
    ledger.write_settled(ledger.settled)
    ledger.forget(ledger.settled)
    assert ledger.settled == []
    assert [path.name for path in tmp_path.iterdir()] == ["closed-1970-01.jsonl"]
    assert [session.session_id for session in read_closed_sessions(tmp_path)] == ["s1"]
    with (tmp_path / "closed-1970-01.jsonl").open("ab") as log:
        log.write(b'{"torn')
    assert len(read_closed_sessions(tmp_path)) == 1
    assert Ledger(tmp_path).read_open() == []


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """Files may have so many bytes at most, as on a disk that is full then: a write that needs more is done in part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def close_session(ledger: Ledger, session_id: str) -> None:
    ledger.start(session_id, "source", "replay", {}, 100)
    ledger.write_changes(ledger.take_changes(1))
    ledger.end(session_id, complete=True, reason="", now_us=2)
    ledger.write_changes(ledger.take_changes(3))
    ledger.settle([session_id])
    ledger.write_settled(ledger.settled)
    ledger.forget(ledger.settled)


def test_a_full_disk_tears_no_line_of_the_closed_sessions(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    close_session(ledger, "first")
    log = tmp_path / "closed-1970-01.jsonl"
    size_bytes = log.stat().st_size
    with room_for(size_bytes + 40), pytest.raises(OSError, match="File too large"):
        close_session(ledger, "second")
    assert log.stat().st_size == size_bytes, "half a line is left"
    assert [path.name for path in tmp_path.glob("session-*.json")], "it is still to be closed"
    ledger.write_settled(ledger.settled)
    ledger.forget(ledger.settled)
    close_session(ledger, "third")
    assert [session.session_id for session in read_closed_sessions(tmp_path)] == ["first", "second", "third"]


@pytest.mark.parametrize("torn_bytes", [1, 100, 200_000])
def test_a_line_that_a_death_tore_is_cut_before_the_next_one_is_written(tmp_path: Path, torn_bytes: int) -> None:
    close_session(Ledger(tmp_path), "first")
    with (tmp_path / "closed-1970-01.jsonl").open("ab") as log:
        log.write(b"{" * torn_bytes)
    close_session(Ledger(tmp_path), "second")
    assert [session.session_id for session in read_closed_sessions(tmp_path)] == ["first", "second"]


def test_a_session_that_ended_but_was_not_settled_is_sent_again_as_it_was(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    ledger.end("s1", complete=True, reason="", now_us=2)
    ledger.write_changes(ledger.take_changes(3))
    again = Ledger(tmp_path)
    again.read_open()
    again.recover(make_events(TRADES, 1)[0])
    (left,) = again.left_behind
    assert left.complete
    assert left.entries == []


def test_a_file_that_cannot_be_read_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "session-bad.json").write_text("{")
    (problem,) = Ledger(tmp_path).read_open()
    assert "session-bad.json can't be read and was put aside" in problem
    assert (tmp_path / "session-bad.damaged").exists()


def test_session_ids_may_hold_anything(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    names = ["../../é x", "é" * 400, "é" * 401]
    for name in names:
        ledger.start(name, "s", "replay", {}, 1)
    ledger.write_changes(ledger.take_changes(1))
    assert len(list(tmp_path.iterdir())) == 3
    again = Ledger(tmp_path)
    again.read_open()
    assert sorted(again.open_sessions) == sorted(names)


def test_the_session_end_payload_says_absent_where_there_is_nothing() -> None:
    ledger = Ledger(Path("unused"))
    stream = make_stream("", "disconnect")
    ledger.add([Tally([Event(stream, bytes(15) + b"\1", b"", 0, 5)])], 1)
    session = ledger.end("s1", complete=False, reason="gone", now_us=2)
    assert isinstance(session, LedgerSession)
    end = to_session_end(session)
    (entry,) = end.entries
    assert not entry.HasField("symbol")
    assert entry.exchange == "bitmex"
    assert entry.digest == bytes(15) + b"\1"
    assert (end.session_id, end.complete, end.reason) == ("s1", False, "gone")
    assert (end.started_ts.ToMicroseconds(), end.ended_ts.ToMicroseconds()) == (1, 2)
