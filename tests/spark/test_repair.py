"""Records are taken away on their way and from the tables; a repair brings exactly those, and says what it can't bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import EventStream, Tally
from tardis_machine.bronze.splitting import split_event
from tardis_machine.eventbus.dead_letters import DeadLetter
from tardis_machine.eventbus.ledger import Ledger, to_session_end
from tardis_machine.filters import Filter
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.history.recordings import RecordedFeed
from tardis_machine.lakehouse.gold.bars import BARS
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.repair import repair
from tardis_machine.lakehouse.silver.book_changes import BOOK_CHANGES
from tardis_machine.lakehouse.silver.derivative_tickers import DERIVATIVE_TICKERS
from tardis_machine.lakehouse.silver.trade_bars import TRADE_BARS
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS, QUARANTINE
from tardis_machine.lakehouse.verify import Verification, run, verify
from tardis_machine.pipeline.replay import NormalizedReplay
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.history_api import Fault, SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.settings import Settings, resolve
from tests.integration.machine import options, running_machine
from tests.spark.lake_under_test import START_US, LakeUnderTest, trades
from tests.spark.test_verify import Session, book

pytestmark = pytest.mark.timeout(900)

GOLD = ["bars_1m"]
TABLES = (TRADES.table, BOOK_CHANGES.table, DERIVATIVE_TICKERS.table, TRADE_BARS.table)
MINUTE_US = 60_000_000
REPLAYED = {
    "exchange": "bitmex",
    "symbols": ["XBTUSD", "ETHUSD"],
    "from": "2020-02-01T00:00:00Z",
    "to": "2020-02-01T00:03:00Z",
    "dataTypes": ["trade", "book_change", "derivative_ticker", "trade_bar_10s"],
}
LOST = {
    # At the beginning, in the midst, over a minute, and at the end (-1).
    ("XBTUSD", "trade"): {0, 1, 5, 7, 8},
    ("ETHUSD", "trade"): {-1},
    ("XBTUSD", "book_change"): {*range(40, 200)},
    # These depend on what was said before.
    ("XBTUSD", "derivative_ticker"): {3, 4, 9},
    ("ETHUSD", "trade_bar"): {2},
}
"""Numbers that never reach the bus."""
ALL_LOST = ("ETHUSD", "derivative_ticker")
DEAD = ("XBTUSD", "trade", 11)
"""What the bus refused."""


@pytest.fixture(scope="module")
def api() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=0)).serve_in_thread() as api:
        yield api


def publish(api: SampleHistoryApi, folder: Path) -> list[bytes]:
    """The values that a replay brings to the file bus."""

    async def replay() -> None:
        bus = {"dir": folder}
        async with running_machine(api, folder.parent / "cache", file=bus, spool_dir=folder.parent / "spool") as client:
            await client.lines(options(**REPLAYED))

    asyncio.run(replay())
    return [value for path in sorted(folder.rglob("*.parquet")) for value in pq.read_table(path).column("value").to_pylist()]


def place_of(value: bytes) -> tuple[str, str, int]:
    event = NormalizedEvent.FromString(value)
    return event.symbol, event.WhichOneof("payload") or "", event.sequence


def settings_of(lake: Lake, api: SampleHistoryApi, folder: Path, *further: str) -> Settings:
    flags = ["--repair", "--lake", lake.root, "--api-url", api.url, "--cache-dir", str(folder / "cache")]
    flags += ["--dead-letters", str(folder / "letters"), "--gold", ",".join(GOLD)]
    return resolve([*flags, *further], {}, command="lake verify")


def assert_same(lake: LakeUnderTest, other: LakeUnderTest) -> None:
    def ids(where: LakeUnderTest) -> list[Any]:
        columns = ("exchange", "symbol", "payload_case", "session", "sequence", "event_id", "local_ts", "origin", "date", "bus")
        return sorted(where.lake.read(where.spark, EVENTS).select(*columns).collect(), key=repr)

    assert ids(lake) == ids(other)
    for table in (*TABLES, BARS):
        assert lake.rows(table) == other.rows(table), table.name
        assert lake.rows(table)


def test_what_was_lost_anywhere_is_brought_once(
    lake: LakeUnderTest,
    api: SampleHistoryApi,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = publish(api, tmp_path / "published")
    last = max(place_of(value)[2] for value in values if place_of(value)[:2] == ("ETHUSD", "trade"))

    def is_lost(value: bytes) -> bool:
        symbol, case, sequence = place_of(value)
        numbers = LOST.get((symbol, case), set())
        at_end = (symbol, case, sequence) == ("ETHUSD", "trade", last) and -1 in numbers
        return at_end or sequence in numbers or (symbol, case) == ALL_LOST or (symbol, case, sequence) == DEAD

    undisturbed = LakeUnderTest(lake.spark, tmp_path / "undisturbed")
    undisturbed.bus.write("a", values)
    undisturbed.ingest(until="gold", gold=GOLD)
    lake.bus.write("a", [value for value in values if not is_lost(value)])
    lake.ingest(until="gold", gold=GOLD)
    # And what bronze and silver had.
    lake.spark.sql(
        f"DELETE FROM delta.`{lake.lake.path(EVENTS)}` WHERE payload_case = 'book_change' AND sequence BETWEEN 300 AND 310"
    )
    lake.spark.sql(f"DELETE FROM delta.`{lake.lake.path(TRADES.table)}` WHERE symbol = 'ETHUSD' AND sequence IN (3, 4)")
    write_letters(tmp_path / "letters" / "file", [value for value in values if place_of(value) == DEAD])

    outcome = verify(lake.spark, lake.lake)
    assert not outcome.is_whole
    monkeypatch.setattr("tardis_machine.lakehouse.jobs.open_session", lambda *_: lake.spark)
    assert run(settings_of(lake.lake, api, tmp_path)) == 0
    out, said = capsys.readouterr()
    assert out.endswith("Nothing is missing.\n")
    lost = sum(map(is_lost, values)) + lost_in_bronze(outcome, 300, 310)
    assert f"{lost:,} events were brought to bronze, 1 of them dead letters; 2 were taken through silver again" in said
    assert "not repaired" not in said
    assert_same(lake, undisturbed)

    # There is nothing left to do, and nothing is done.
    before = lake.count(EVENTS)
    assert run(settings_of(lake.lake, api, tmp_path)) == 0
    assert lake.count(EVENTS) == before


def lost_in_bronze(outcome: Verification, first: int, last: int) -> int:
    return sum(
        item.events
        for item in outcome.missing
        if item.stage == EVENTS.name and (item.first_sequence, item.last_sequence) == (first, last)
    )


def write_letters(folder: Path, values: list[bytes]) -> None:
    folder.mkdir(parents=True)
    written = []
    for value in values:
        said = NormalizedEvent.FromString(value)
        symbol, case, sequence = place_of(value)
        stream = EventStream(said.meta["session_id"], said.exchange, symbol, case, case, said.source, "replay", dict(said.meta))
        at = said.local_ts.ToMicroseconds()
        written.append(
            DeadLetter("too large", "file", "2020-02-01", "events", "key", stream, sequence, at, said.event_id.hex(), value)
        )
    (folder / "letters.jsonl").write_bytes(b"".join(msgspec.json.encode(letter) + b"\n" for letter in written))


class Live:
    """A live session that heard three minutes of the sample market, of which a recorder kept the lines."""

    def __init__(self, name: str, api: SampleHistoryApi) -> None:
        self.name = name
        asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"]}
        request = parse_normalized_request({**asked, "from": "2020-02-03T00:00:00Z", "to": "2020-02-03T00:03:00Z"})
        replay = NormalizedReplay(request)
        [period] = replay.periods()
        self.filters = tuple(period.filters)
        self.start_us = request.from_us
        self.minutes = [api.recording.slice("bitmex", self.start_us + n * MINUTE_US, 1, period.filters) for n in range(3)]
        messages = [message for lines in self.minutes for message in replay.feed(period, lines.splitlines())]
        self._encoder = BronzeEncoder(session_id=name, origin="realtime", clock_us=lambda: START_US)
        self.events = [*self._encoder.encode(messages)]

    def values(self, lost: Callable[[int], bool]) -> list[bytes]:
        ledger = Ledger(Path("unused"))
        ledger.start(self.name, "test", "realtime", {}, START_US)
        for event in self.events:
            ledger.add([Tally([event])], START_US)
        session = ledger.end(self.name, complete=True, reason="", now_us=START_US + 1)
        assert session is not None
        [end] = self._encoder.encode_session_end(to_session_end(session))
        return [*(event.value for event in self.events if not lost(event.sequence)), end.value]

    def record(self, folder: Path) -> None:
        feed = RecordedFeed(folder, "bitmex", tuple(Filter(each.channel, each.symbols) for each in self.filters))
        assert feed.claim()
        for number, lines in enumerate(self.minutes):
            feed.append(self.start_us + number * MINUTE_US, lines)
            feed.seal(self.start_us + number * MINUTE_US)
        feed.release()


def test_what_can_not_be_brought_is_refused_with_a_sentence(
    lake: LakeUnderTest, api: SampleHistoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = Live("heard", api)
    lake.bus.write("live", live.values(lambda sequence: sequence in (2, 3)))
    lake.ingest(until="silver")

    def repaired(*flags: str) -> tuple[Verification, str]:
        outcome = repair(lake.spark, lake.lake, verify(lake.spark, lake.lake), settings_of(lake.lake, api, tmp_path, *flags))
        return outcome, capsys.readouterr().err

    outcome, said = repaired("--until", "silver")
    assert [(item.first_sequence, item.last_sequence) for item in outcome.missing] == [(2, 3)]
    assert (
        "not repaired: bitmex XBTUSD trade of session heard, files, 2 to 3: the session was heard live, and only recordings have what "
        "it heard: name their folder with --record-dir"
    ) in said
    # Recordings of something else, and nobody who may be asked for the rest.
    api.fail(Fault(status=401, message="The API key is not valid."), times=100)
    outcome, said = repaired("--until", "silver", "--record-dir", str(tmp_path / "empty"))
    api.recover()
    assert "2 to 3: The API key is not valid." in said
    assert not outcome.is_whole

    live.record(tmp_path / "recordings")
    outcome, said = repaired("--until", "silver", "--record-dir", str(tmp_path / "recordings"))
    assert "2 events were brought to bronze" in said
    assert outcome.is_whole
    assert lake.count(TRADES.table) == len(live.events)


def test_what_the_quarantine_has_is_not_refused_a_second_time(lake: LakeUnderTest, api: SampleHistoryApi, tmp_path: Path) -> None:
    session = Session("refused", trades(6))
    bad = NormalizedEvent.FromString(session.values[2])
    bad.trade.price_str = "0.0000000000000000001"
    lake.bus.write("a", [bad.SerializeToString() if number == 2 else value for number, value in enumerate(session.values)])
    lake.bus.write("b", [session.end()])
    lake.ingest(until="silver")
    lake.spark.sql(f"DELETE FROM delta.`{lake.lake.path(TRADES.table)}` WHERE sequence = 4")
    outcome = repair(
        lake.spark, lake.lake, verify(lake.spark, lake.lake), settings_of(lake.lake, api, tmp_path, "--until", "silver")
    )
    assert [(item.first_sequence, item.reason.partition(":")[0]) for item in outcome.missing] == [(2, "in quarantine")]
    assert (lake.count(TRADES.table), lake.count(QUARANTINE)) == (5, 1)


def test_dead_letters_bring_parts_of_books_and_the_end_of_a_session(
    lake: LakeUnderTest, api: SampleHistoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session("split", book(2))
    parts = [part for event in session.events for part in split_event(event, 300) or ()]
    assert len(parts) > 3
    end = session.end(counted=parts)
    lake.bus.write("a", [parts[0].value, *(part.value for part in parts[3:])])
    lake.bus.write("b", [end])
    other = Session("without an end", trades(3))
    lake.bus.write("c", other.values)
    lake.ingest(until="silver")

    def repaired() -> tuple[Verification, str]:
        found = repair(
            lake.spark, lake.lake, verify(lake.spark, lake.lake), settings_of(lake.lake, api, tmp_path, "--until", "silver")
        )
        return found, capsys.readouterr().err

    # One that is there, and one of two that are not.
    write_letters(tmp_path / "letters" / "first", [parts[0].value, parts[1].value, other.end()])
    outcome, said = repaired()
    assert "the parts of a book are cut to the limits of its bus, and its dead letters have no more of them" in said
    assert [item.events for item in outcome.missing] == [1]
    assert {state.session: state.state for state in outcome.sessions} == {"split": "complete", "without an end": "complete"}
    write_letters(tmp_path / "letters" / "second", [parts[2].value])
    outcome, said = repaired()
    assert "not repaired" not in said
    assert outcome.is_whole
    assert lake.count(BOOK_CHANGES.table) == 2


def test_the_end_of_a_session_tells_what_else_of_it_is_missing_and_that_is_brought_too(
    lake: LakeUnderTest,
    api: SampleHistoryApi,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session("cut off", trades(8))
    lake.bus.write("a", session.values[:5])
    lake.ingest(until="silver")
    monkeypatch.setattr("tardis_machine.lakehouse.jobs.open_session", lambda *_: lake.spark)
    assert verify(lake.spark, lake.lake).is_whole
    # Without its end nobody knows of the last three.
    write_letters(tmp_path / "letters", [*session.values[5:], session.end()])
    assert run(settings_of(lake.lake, api, tmp_path, "--until", "silver")) == 0
    out, said = capsys.readouterr()
    assert out == "1 session: 1 complete\nNothing is missing.\n"
    assert "4 events were brought to bronze, 4 of them dead letters" in said
    assert lake.count(TRADES.table) == 8
    # A whole lake is left as it is.
    assert run(settings_of(lake.lake, api, tmp_path, "--until", "silver")) == 0
    assert capsys.readouterr().err == ""
