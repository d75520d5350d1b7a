"""Bronze, silver and gold take every exchange without a line of their own: the history of all transcripts, brought by one backfill."""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tardis_machine.dates import parse_date_us
from tardis_machine.exchanges import EXCHANGES, switch_dates_us
from tardis_machine.lakehouse import backfill
from tardis_machine.lakehouse.backfill import Backfill
from tardis_machine.lakehouse.gold.bars import BARS
from tardis_machine.lakehouse.ingest import refine
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.silver.book_changes import BOOK_CHANGES
from tardis_machine.lakehouse.silver.book_tickers import BOOK_TICKERS
from tardis_machine.lakehouse.silver.derivative_tickers import DERIVATIVE_TICKERS
from tardis_machine.lakehouse.silver.liquidations import LIQUIDATIONS
from tardis_machine.lakehouse.silver.option_summaries import OPTION_SUMMARIES
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS, QUARANTINE, Table
from tardis_machine.messages import to_timestamp
from tardis_machine.pipeline.request import NormalizedRequest, parse_normalized_request
from tests.exchanges.fuzz import transcript_of
from tests.exchanges.transcript import Section, Step
from tests.servers.http_site import http_site_in_thread

pytestmark = pytest.mark.timeout(900)

MINUTE_US = 60_000_000
SILVER = {
    "trade": TRADES,
    "book_change": BOOK_CHANGES,
    "derivative_ticker": DERIVATIVE_TICKERS,
    "liquidation": LIQUIDATIONS,
    "option_summary": OPTION_SUMMARIES,
    "book_ticker": BOOK_TICKERS,
}


class RecordedMinute(NamedTuple):
    """A history section, at a minute of its own."""

    exchange: str
    start_us: int
    section: Section

    @property
    def steps(self) -> list[Step]:
        """Those before the first message that can't be normalized, which ends a replay."""
        steps = self.section.steps
        refused = next((place for place, step in enumerate(steps) if step.verb == "!"), None)
        if refused is None:
            return steps
        return steps[: max(place for place in range(refused) if steps[place].verb == "<")]

    @property
    def lines(self) -> bytes:
        """What was recorded."""
        raws = [b"" if step.verb == "CUT" else step.text.encode() for step in self.steps if step.verb in ("<", "CUT")]
        clocks = [to_timestamp(self.start_us + number * 1000)[:-1].encode() for number in range(len(raws))]
        return b"".join(clock + b"0Z " + raw + b"\n" if raw else b"\n" for clock, raw in zip(clocks, raws, strict=True))

    def outputs(self) -> Iterator[tuple[str, str]]:
        """Type and symbol of what comes of it."""
        for step in self.steps:
            if step.verb == "=" and isinstance(symbol := step.fields.get("symbol"), str):
                yield step.message_type, symbol

    def symbols(self) -> list[str]:
        """As few as bring all types of data."""
        types_of: dict[str, set[str]] = {}
        for kind, symbol in self.outputs():
            types_of.setdefault(symbol, set()).add(kind)
        missing = set().union(*types_of.values())
        chosen = []
        while missing:
            best = max(types_of, key=lambda symbol: len(types_of[symbol] & missing))
            chosen.append(best)
            missing -= types_of[best]
        return chosen

    def request(self) -> NormalizedRequest:
        return parse_normalized_request(
            {
                "exchange": self.exchange,
                "symbols": self.symbols(),
                "from": to_timestamp(self.start_us),
                "to": to_timestamp(self.start_us + MINUTE_US),
                "dataTypes": list(self.section.data_types),
            }
        )


def recorded_minutes() -> list[RecordedMinute]:
    minutes: dict[tuple[str, int], RecordedMinute] = {}
    for exchange in EXCHANGES:
        for section in transcript_of(exchange).of("history"):
            switches = switch_dates_us(EXCHANGES[exchange], section.data_types)
            at_us = parse_date_us(section.at)
            # The next free minute of the same generation of the exchange's API, or the last one before.
            start_us = next(
                start_us
                for minute in range(1000)
                for start_us in (at_us + minute * MINUTE_US, at_us - minute * MINUTE_US)
                if (exchange, start_us) not in minutes and bisect_right(switches, start_us) == bisect_right(switches, at_us)
            )
            minute = RecordedMinute(exchange, start_us, section)
            if any(minute.outputs()):
                minutes[exchange, start_us] = minute
    return list(minutes.values())


@pytest.fixture(scope="module")
def minutes() -> list[RecordedMinute]:
    return recorded_minutes()


@pytest.fixture(scope="module")
def history_url(minutes: list[RecordedMinute]) -> Iterator[str]:
    """A history API that has these minutes, and nothing else."""
    by_key = {(minute.exchange, minute.start_us): minute for minute in minutes}

    async def answer(request: web.Request) -> web.Response:
        exchange = request.path.rpartition("/")[2]
        start = datetime.fromisoformat(request.query["from"])
        start_us = round(start.timestamp() * 1e6) + int(request.query["offset"]) * MINUTE_US
        minute = by_key.get((exchange, start_us))
        if minute is None:
            return web.Response(status=404)
        return web.Response(body=gzip.compress(minute.lines), headers={"X-Slice-Size": "1", "Content-Encoding": "gzip"})

    with http_site_in_thread(answer) as port:
        yield f"http://127.0.0.1:{port}/v1"


def counted(lake: Lake, table: Table, *columns: str) -> Counter[tuple[str, ...]]:
    """How many rows there are of each of these. Read without Spark, which would take seconds for each table."""
    rows = DeltaTable(lake.path(table)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return Counter(tuple(row[name] for name in columns) for row in rows)


def test_a_backfill_of_every_transcript_fills_the_tables(
    spark: SparkSession, minutes: list[RecordedMinute], history_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "UNITS_PER_CORE", 1000)  # one commit
    lake = Lake.at(tmp_path / "lake")
    requests = [minute.request() for minute in minutes]
    assert {request.exchange for request in requests} == set(EXCHANGES)
    Backfill(spark, lake, requests, history_url, None, str(tmp_path / "cache")).run()
    refine(spark, lake, until="gold", gold=("bars_1m",))

    # A message has a row for each symbol that was asked for, as each is a unit of its own.
    expected: Counter[tuple[str, ...]] = Counter()
    for minute in minutes:
        for symbol in minute.symbols():
            expected.update((minute.exchange, kind) for kind, its in minute.outputs() if its.upper() == symbol.upper())
    types_of = {exchange: EXCHANGES[exchange].data_types for exchange in EXCHANGES}
    assert set(expected) == {(exchange, kind) for exchange, kinds in types_of.items() for kind in kinds}
    events = counted(lake, EVENTS, "exchange", "payload_case")
    assert {key: count for key, count in events.items() if key[1] in SILVER} == expected
    # A number of more digits than a table's column has is kept as it came.
    assert {reason.partition(": ")[2] for (reason,) in counted(lake, QUARANTINE, "reason")} <= {
        "Rescaling Decimal value would cause data loss",
        "a number has more than 20 digits before the point",
    }
    refused = counted(lake, QUARANTINE, "stage")
    for kind, silver in SILVER.items():
        rows = counted(lake, silver.table, "exchange")
        of_kind = {(name,): count for (name, its), count in expected.items() if its == kind}
        assert set(rows) == set(of_kind)
        # A row for each event but for those that were refused.
        assert rows <= Counter(of_kind)
        assert rows.total() + refused[(silver.table.name,)] == sum(of_kind.values())
    assert {name for (name,) in counted(lake, BARS, "exchange")} == set(EXCHANGES)
