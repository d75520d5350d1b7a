"""Several recorders of one market, each with holes of its own: the lake has every execution once, and the book of one that is whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.lakehouse.gold.bars import BARS
from tardis_machine.lakehouse.gold.book_state import BOOK_STATE
from tardis_machine.lakehouse.gold.books import BOOKS_TABLE
from tardis_machine.lakehouse.gold.top_of_book import TOP_OF_BOOK
from tardis_machine.lakehouse.silver.liquidations import LIQUIDATIONS
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.lakehouse.verify import verify
from tardis_machine.messages import (
    UNSET,
    BookChange,
    BookLevel,
    Disconnect,
    Liquidation,
    Message,
    Trade,
    parse_timestamp_us,
    to_timestamp,
)
from tests.spark.lake_under_test import START_US, LakeUnderTest

pytestmark = pytest.mark.timeout(900)

MIDNIGHT_US = START_US + 86_400_000_000


def market(count: int, start_us: int, *, has_ids: bool = True, seed: int = 1) -> list[Trade]:
    """Trades as their venue has them: some of them equal in all but their ids."""
    chance = random.Random(seed)
    return [
        Trade(
            symbol=chance.choice(("XBTUSD", "ETHUSD")),
            exchange="bitmex",
            id=f"{start_us}-{n}" if has_ids else UNSET,
            price=9000 + chance.randrange(3) / 2,
            amount=chance.randrange(1, 3),
            side=chance.choice(("buy", "sell")),  # type: ignore[arg-type]
            timestamp=to_timestamp(start_us + n // 4 * 1000, milliseconds=True),
            local_timestamp=to_timestamp(start_us + n // 4 * 1000),
        )
        for n in range(count)
    ]


def received(messages: Sequence[Any], late_us: int) -> list[Any]:
    """As a recorder so far away hears them."""
    return [
        replace(message, local_timestamp=to_timestamp(message.local_timestamp_us + late_us + place % 3))
        for place, message in enumerate(messages)
    ]


def publish(session: str, messages: Sequence[Message], origin: str = "realtime") -> list[bytes]:
    return [event.value for event in BronzeEncoder(session_id=session, origin=origin, clock_us=lambda: START_US).encode(messages)]


def executions(lake: LakeUnderTest, table: Any) -> list[tuple[Any, ...]]:
    name = "trade_id" if table is TRADES else "liquidation_id"
    rows = lake.lake.read(lake.spark, table.table).select("symbol", "event_ts", name, "price", "amount", "side").collect()
    return sorted((row[0], row[1].timestamp(), row[2], row[3], row[4], row[5]) for row in rows)


def as_heard(messages: Sequence[Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            message.symbol,
            parse_timestamp_us(message.timestamp) / 1e6,
            None if message.id is UNSET else message.id,
            Decimal(str(message.price)),
            Decimal(str(message.amount)),
            message.side,
        )
        for message in messages
    )


def with_holes(events: Sequence[bytes], kept: Sequence[bool]) -> list[bytes]:
    return [event for event, is_kept in zip(events, kept, strict=True) if is_kept]


def test_recorders_fill_each_others_holes(lake: LakeUnderTest) -> None:
    """Around midnight, in batches that are cut anywhere; then the same minutes from history."""
    chance = random.Random(7)
    trades = market(400, MIDNIGHT_US - 60_000)
    forced = [
        Liquidation(
            trade.symbol, trade.exchange, trade.id, trade.price, trade.amount, trade.side, trade.timestamp, trade.local_timestamp
        )
        for trade in trades[::10]
    ]
    heard: list[Message] = sorted([*trades, *forced], key=lambda message: message.local_timestamp_us)
    one, other = publish("one", received(heard, 100)), publish("other", received(heard, 40_000))
    # Each event is cut out of one of the two at most.
    cut = [chance.choice(("one", "other", "", "")) for _ in heard]
    one, other = with_holes(one, [name != "one" for name in cut]), with_holes(other, [name != "other" for name in cut])
    half = len(one) // 2
    lake.bus.write("a", [*one[:half], *other[:100]])
    lake.ingest()
    lake.bus.write("b", one[half:])
    lake.bus.write("c", other[100:])
    lake.ingest(until="gold", gold=("bars_1m",))
    assert executions(lake, TRADES) == as_heard(trades)
    assert executions(lake, LIQUIDATIONS) == as_heard(forced)

    assert lake.count(EVENTS) == len(one) + len(other)

    # A backfill, received by a third recorder.
    lake.bus.write("d", publish("backfill", received(heard, -25_000), "replay"))
    again = lake.ingest(until="gold", gold=("bars_1m",))
    assert {table for table in again if table.startswith("silver.")} == set()
    assert executions(lake, TRADES) == as_heard(trades)
    bars = lake.lake.read(lake.spark, BARS).selectExpr("sum(volume)", "sum(trades)").collect()[0]
    assert tuple(bars) == (sum(trade.amount for trade in trades), len(trades))


def test_what_silver_has_of_another_recorder_is_not_missing_and_what_it_lost_is(lake: LakeUnderTest) -> None:
    trades = market(40, START_US)
    lake.bus.write("a", publish("one", received(trades, 100)))
    lake.bus.write("b", [event for place, event in enumerate(publish("backfill", received(trades, 50), "replay")) if place != 7])
    lake.ingest()
    # What bronze lacks is missing, what silver did not take a second time is not; but what it lost is found all the same.
    assert {item.stage for item in verify(lake.spark, lake.lake).missing} == {"bronze.events"}
    lake.spark.sql(f"DELETE FROM delta.`{lake.lake.path(TRADES.table)}` WHERE trade_id = '{trades[5].id}'")
    lost = [item for item in verify(lake.spark, lake.lake).missing if item.stage == "silver.trades"]
    assert sorted((item.session, item.events) for item in lost) == [("backfill", 1), ("one", 1)]


def test_equal_trades_without_ids_are_as_many_as_the_recorder_has_that_has_most(lake: LakeUnderTest) -> None:
    trades = market(300, START_US, has_ids=False)
    lost = {7, 8, 9, 100, 250}
    one = publish("one", received([trade for place, trade in enumerate(trades) if place not in lost], 500))
    lake.bus.write("a", one)
    assert lake.ingest()["silver.trades"] == len(trades) - len(lost)
    lake.bus.write("b", publish("other", received(trades, 900)))
    assert lake.ingest()["silver.trades"] == len(lost)
    assert executions(lake, TRADES) == as_heard(trades)


def book_changes(late_us: int, first: int = 0) -> list[BookChange]:
    """A hundred changes of the best bid a second, the first a snapshot; as a recorder hears them that joins at some point."""
    chance = random.Random(3)
    prices = [chance.randrange(9000, 9005) for _ in range(6000)]
    changes = []
    for place in range(first, len(prices)):
        levels = [BookLevel(prices[place], place + 1)]
        if place > first and prices[place] != prices[place - 1]:
            levels.append(BookLevel(prices[place - 1], 0))
        asks = [BookLevel(9010, 1)] if place == first else []
        at = to_timestamp(START_US + place * 10_000 + late_us)
        changes.append(BookChange("XBTUSD", "bitmex", place == first, levels, asks, to_timestamp(START_US + place * 10_000), at))
    return changes


def test_the_book_is_that_of_a_recorder_who_is_whole(lake: LakeUnderTest, tmp_path: Path) -> None:
    """One loses its connection for ten seconds, and a second time some changes on their way; the other began later, and has all."""
    lost, back = 2000, 3000
    one = [*book_changes(100)[:lost], Disconnect("bitmex", to_timestamp(START_US + lost * 10_000)), *book_changes(100, back)]
    other = publish("other", book_changes(4_000, 150))
    heard = publish("one", one)
    files = [
        [*heard[:1000], *other[:700]],
        [*heard[1000:2500], *other[700:1500]],
        [*heard[2500:3500], *heard[3520:]],
        other[1500:],
    ]
    for place, values in enumerate(files):
        lake.bus.write(str(place), values)
        lake.ingest(until="gold", gold=("top_of_book", "book_state_1_1s"))
    at_once = LakeUnderTest(lake.spark, tmp_path / "at once")
    at_once.bus.write("all", [value for values in files for value in values])
    at_once.ingest(until="gold", gold=("top_of_book", "book_state_1_1s"))
    for table in (TOP_OF_BOOK, BOOK_STATE):
        assert lake.rows(table) == at_once.rows(table)

    tops = lake.lake.read(lake.spark, TOP_OF_BOOK).orderBy("local_ts").collect()
    truth = {change.timestamp: change.bids[0] for change in book_changes(0)}
    assert len(tops) > 5900
    for top in tops:
        level = truth[to_timestamp(round(top.event_ts.timestamp() * 1_000_000))]
        assert (top.bid_price, top.bid_amount, top.ask_price) == (Decimal(level.price), Decimal(level.amount), 9010)
    late_us = [round((top.local_ts - top.event_ts).total_seconds() * 1_000_000) for top in tops]
    # First the one, whose book is older; from its first loss on the other.
    assert {late for late, top in zip(late_us, tops, strict=True) if top.local_ts.timestamp() < START_US / 1e6 + 20} == {100}
    assert {late for late, top in zip(late_us, tops, strict=True) if top.local_ts.timestamp() > START_US / 1e6 + 20.01} == {4000}


def test_a_symbol_that_several_sessions_of_a_batch_have_is_compared_by_one_task(
    lake: LakeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tardis_machine.lakehouse.silver import writer

    monkeypatch.setattr(writer, "_TASK_BYTES", 1)
    trades = market(200, START_US)
    for session, late_us in (("one", 0), ("other", 700), ("third", 20_000)):
        lake.bus.write(session, publish(session, received(trades, late_us)))
    alone = replace(trades[0], symbol="SOLUSD")
    lake.bus.write("alone", publish("one", [alone]))
    assert lake.ingest()["silver.trades"] == len(trades) + 1
    assert executions(lake, TRADES) == as_heard([*trades, alone])


def test_a_book_that_was_silent_for_long_is_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    def change(symbol: str, at_us: int, price: int, *, is_snapshot: bool = False) -> BookChange:
        at = to_timestamp(at_us)
        bids = [BookLevel(price, 1), *([BookLevel(90, 1)] if is_snapshot else [])]
        return BookChange(
            symbol=symbol, exchange="bitmex", is_snapshot=is_snapshot, bids=bids, asks=[], timestamp=at, local_timestamp=at
        )

    # One symbol is silent for five days, the other one never is.
    days = range(6)
    messages = [
        [change("SILENT", START_US, 100, is_snapshot=True)],
        *([change("BUSY", START_US + day * 86_400_000_000, 50 + day, is_snapshot=not day)] for day in days),
        [change("SILENT", START_US + 5 * 86_400_000_000, 95)],
    ]
    bit_by_bit, at_once = LakeUnderTest(spark, tmp_path / "a"), LakeUnderTest(spark, tmp_path / "b")
    for number, some in enumerate((messages[:-1], messages[-1:])):
        bit_by_bit.bus.write(f"{number}", [value for part in some for value in publish(f"s{number}", part, "replay")])
        bit_by_bit.ingest(until="gold", gold=("top_of_book",))
    at_once.bus.write("0", [value for part in messages[:-1] for value in publish("s0", part, "replay")])
    at_once.bus.write("1", [value for part in messages[-1:] for value in publish("s1", part, "replay")])
    at_once.ingest(until="gold", gold=("top_of_book",))
    tops = [row for row in bit_by_bit.rows(TOP_OF_BOOK) if "SILENT" in row]
    # A level that is lower than the best one changes no top.
    assert len(tops) == 1
    assert bit_by_bit.rows(TOP_OF_BOOK) == at_once.rows(TOP_OF_BOOK)
    books = [row for row in bit_by_bit.rows(BOOKS_TABLE) if "SILENT" in row]
    assert len(books) == 2
    assert bit_by_bit.rows(BOOKS_TABLE) == at_once.rows(BOOKS_TABLE)
