"""Gold against computations in plain Python over the same messages, with late rows, and against the sample market's true book."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace
from pyspark.sql import SparkSession

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.splitting import split_event
from tardis_machine.computed import compute
from tardis_machine.lakehouse import rewriting
from tardis_machine.lakehouse.gold import settled
from tardis_machine.lakehouse.gold.bars import BARS
from tardis_machine.lakehouse.gold.book_state import BOOK_STATE
from tardis_machine.lakehouse.gold.data_quality import DATA_QUALITY
from tardis_machine.lakehouse.gold.funding import FUNDING
from tardis_machine.lakehouse.gold.gaps import GAPS
from tardis_machine.lakehouse.gold.liquidations import LIQUIDATIONS
from tardis_machine.lakehouse.gold.markouts import MARKOUTS
from tardis_machine.lakehouse.gold.order_flow import ORDER_FLOW
from tardis_machine.lakehouse.gold.top_of_book import TOP_OF_BOOK
from tardis_machine.lakehouse.gold.trades_with_quotes import TRADES_WITH_QUOTES
from tardis_machine.lakehouse.gold.volatility import VOLATILITY
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.lakehouse.streams import Counts
from tardis_machine.lakehouse.tables import Table
from tardis_machine.messages import (
    BookChange,
    BookLevel,
    BookSnapshot,
    DerivativeTicker,
    Disconnect,
    Liquidation,
    Message,
    Trade,
    TradeBar,
    parse_timestamp_us,
    to_timestamp,
)
from tardis_machine.pipeline.replay import NormalizedReplay
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.market import MOSTLY_UPDATES, SampleMarket
from tardis_machine.sample.recording import Recording
from tests.lake_crash.comparing import compare_lakes
from tests.spark.lake_under_test import START_US, LakeUnderTest, encode
from tests.spark.lake_under_test import trades as some_trades

pytestmark = pytest.mark.timeout(1800)

SECOND_US, MINUTE_US, DAY_US = 1_000_000, 60_000_000, 86_400_000_000
PRODUCTS = (
    *("bars_1s", "bars_1m", "book_state_5_1s", "trades_with_quotes", "markouts", "order_flow_1m", "volatility_1m"),
    *("funding_1m", "liquidations_1m", "gaps", "data_quality"),
)
RESENT = 200
# A market of many takers, so that the seconds that come late have trades although little happens.
RECORDING = Recording(SampleMarket(1, 0.1, MOSTLY_UPDATES), disconnects_per_day=0)


def sample_messages() -> list[Message]:
    """Two minutes of a market, then a lost connection, and after a pause one trade of another symbol."""
    request = parse_normalized_request(
        {
            "exchange": "bitmex",
            "symbols": ["XBTUSD"],
            "from": "2020-02-01",
            "to": "2020-02-01T00:02:00Z",
            "dataTypes": ["trade", "book_change", "derivative_ticker"],
        }
    )
    replay = NormalizedReplay(request)
    [period] = replay.periods()
    messages = replay.feed(period, RECORDING.slice("bitmex", START_US, 2, period.filters).splitlines())
    [forced] = [message for message in messages if isinstance(message, Trade)][10:11]
    at = forced.local_timestamp
    messages += [
        Liquidation("XBTUSD", "bitmex", "l1", forced.price, 5, "sell", forced.timestamp, at),
        Liquidation("XBTUSD", "bitmex", "l2", forced.price + 1, 7, "sell", forced.timestamp, at),
        Liquidation("XBTUSD", "bitmex", "l3", forced.price, 1, "buy", forced.timestamp, at),
        Disconnect("bitmex", to_timestamp(START_US + 2 * MINUTE_US - 1)),
        replace(
            forced,
            symbol="ETHUSD",
            timestamp=to_timestamp(START_US + 6 * MINUTE_US),
            local_timestamp=to_timestamp(START_US + 6 * MINUTE_US),
        ),
    ]
    return sorted(messages, key=lambda message: message.local_timestamp_us)


MESSAGES = sample_messages()
TRADES = [message for message in MESSAGES if isinstance(message, Trade) and message.symbol == "XBTUSD"]
CHANGES = [message for message in MESSAGES if isinstance(message, BookChange)]


def is_late(message: Message) -> bool:
    """What comes with the second batch: trades of half a second, book changes of two."""
    at_us = message.local_timestamp_us - START_US
    if isinstance(message, Trade):
        return 30_000_000 <= at_us < 31_500_000
    return isinstance(message, BookChange) and 60_000_000 <= at_us < 62_000_000


class Gold:
    """The tables after all rows came, and what happened when the late ones did."""

    def __init__(self, lake: LakeUnderTest) -> None:
        encoder = BronzeEncoder(session_id="s1", origin="replay", clock_us=lambda: START_US)
        values = [(message, encoder.encode([message])[0].value) for message in MESSAGES]
        self._lake = lake
        lake.bus.write("a", [value for message, value in values if not is_late(message)])
        lake.ingest(until="gold", gold=PRODUCTS)
        self.gaps_before = self.rows(GAPS)
        self.tops_before = self.rows(TOP_OF_BOOK)
        # With the late ones come some again, as a publisher resends them.
        lake.bus.write("b", [value for message, value in values if is_late(message)] + [value for _, value in values[:RESENT]])
        self.late_counts = lake.ingest(until="gold", gold=PRODUCTS)

    def rows(self, table: Table, **equal: str) -> list[Any]:
        """The rows in the order of symbol and time, read without Spark, which takes longer to plan than to read."""
        time = "start" if "start" in table.columns else "local_ts"
        found = DeltaTable(self._lake.lake.path(table)).to_pyarrow_table().to_pylist()
        chosen = [row for row in found if all(row[name] == value for name, value in equal.items())]
        return [SimpleNamespace(**row) for row in sorted(chosen, key=lambda row: (row["symbol"] or "", row[time]))]


@pytest.fixture(scope="module")
def gold(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Gold:
    return Gold(LakeUnderTest(spark, tmp_path_factory.mktemp("gold")))


def us(instant: datetime | None) -> int | None:
    if instant is None:
        return None
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def near(value: Decimal | float | None, expected: float | Fraction | None) -> bool:
    if value is None or expected is None:
        return value is None and expected is None
    return math.isclose(float(value), float(expected), rel_tol=1e-9, abs_tol=1e-12)


def by_window(messages: Sequence[Any], length_us: int) -> dict[int, list[Any]]:
    windows: dict[int, list[Any]] = defaultdict(list)
    for message in messages:
        windows[message.timestamp_us // length_us * length_us].append(message)
    return windows


@pytest.mark.parametrize(("interval", "length_us"), [("1s", SECOND_US), ("1m", MINUTE_US)])
def test_bars(gold: Gold, interval: str, length_us: int) -> None:
    rows = {us(row.start): row for row in gold.rows(BARS, interval=interval, symbol="XBTUSD")}
    windows = by_window(TRADES, length_us)
    assert rows.keys() == windows.keys()
    for start, trades in windows.items():
        row, prices = rows[start], [trade.price for trade in trades]
        volume = sum(Fraction(trade.amount) for trade in trades)
        assert (row.open, row.high, row.low, row.close) == (prices[0], max(prices), min(prices), prices[-1])
        assert (row.volume, row.trades) == (volume, len(trades))
        assert row.buy_volume == sum(trade.amount for trade in trades if trade.side == "buy")
        assert row.sell_volume == sum(trade.amount for trade in trades if trade.side == "sell")
        assert near(row.vwap, sum(Fraction(trade.price) * Fraction(trade.amount) for trade in trades) / volume)
        times = [trade.timestamp_us for trade in trades] + [start + length_us]
        held = [after - before for before, after in pairwise(times)]
        assert near(row.twap, sum(Fraction(price) * us for price, us in zip(prices, held, strict=True)) / sum(held))
        # The exchange's trades go on, but the connection was lost in the second minute's last microsecond.
        assert row.is_complete == (start + length_us != START_US + 2 * MINUTE_US)
    [other] = gold.rows(BARS, interval=interval, symbol="ETHUSD")
    assert not other.is_complete


def test_bars_are_those_of_compute(gold: Gold) -> None:
    rows = {us(row.end): row for row in gold.rows(BARS, interval="1s", symbol="XBTUSD")}
    computed = [bar for bar in compute(TRADES, ["trade_bar_1s"]) if isinstance(bar, TradeBar)]
    assert len(computed) > 50
    for bar in computed:
        row = rows[bar.timestamp_us]
        assert (row.open, row.high, row.low, row.close) == (bar.open, bar.high, bar.low, bar.close)
        assert (row.volume, row.buy_volume, row.sell_volume) == (bar.volume, bar.buy_volume, bar.sell_volume)
        assert row.trades == bar.trades
        assert near(row.vwap, bar.vwap)


def plain_books() -> list[tuple[int, dict[float, float], dict[float, float]]]:
    """The book after each instant, rebuilt with nothing but dicts."""
    bids: dict[float, float] = {}
    asks: dict[float, float] = {}
    books: list[tuple[int, dict[float, float], dict[float, float]]] = []
    for change in CHANGES:
        if change.is_snapshot:
            bids.clear()
            asks.clear()
        for side, levels in ((bids, change.bids), (asks, change.asks)):
            for level in levels:
                assert isinstance(level.price, int | float)
                assert isinstance(level.amount, int | float)
                if level.amount:
                    side[level.price] = level.amount
                else:
                    side.pop(level.price, None)
        if books and books[-1][0] == change.local_timestamp_us:
            books.pop()
        books.append((change.local_timestamp_us, dict(bids), dict(asks)))
    return books


BOOKS = plain_books()


def plain_tops() -> list[tuple[Any, ...]]:
    """Time, best bid, its amount, best ask, its amount: whenever they change."""
    tops: list[tuple[Any, ...]] = []
    for at_us, bids, asks in BOOKS:
        bid, ask = max(bids), min(asks)
        top = (bid, bids[bid], ask, asks[ask])
        if not tops or tops[-1][1:] != top:
            tops.append((at_us, *top))
    return [*tops, (START_US + 2 * MINUTE_US - 1, None, None, None, None)]


TOPS = plain_tops()


def test_top_of_book(gold: Gold) -> None:
    rows = gold.rows(TOP_OF_BOOK)
    found = [(us(row.local_ts), row.bid_price, row.bid_amount, row.ask_price, row.ask_amount) for row in rows]
    assert found == TOPS
    # Without the late changes it was another book, and some rows of that one had to go.
    assert {row.local_ts for row in gold.tops_before} - {row.local_ts for row in rows}
    for row, (_, bid, bid_amount, ask, ask_amount) in zip(rows[:-1], TOPS, strict=False):
        total = bid_amount + ask_amount
        assert row.spread == ask - bid
        assert near(row.mid, (bid + ask) / 2)
        assert near(row.microprice, Fraction(bid * ask_amount + ask * bid_amount) / Fraction(total))
        assert near(row.imbalance, (bid_amount - ask_amount) / total)


def test_book_state_is_the_true_book(gold: Gold) -> None:
    rows = gold.rows(BOOK_STATE)
    last = {at_us // SECOND_US * SECOND_US: at_us for at_us, _, _ in BOOKS}
    # In the last second the connection was lost, and with it the book.
    last.pop(START_US + 119 * SECOND_US, None)
    assert {us(row.start): us(row.local_ts) for row in rows} == last
    instrument = RECORDING.instrument("bitmex", "XBTUSD", START_US)
    for row in rows:
        at_us = last[us(row.start)]  # type: ignore[index]
        minute = RECORDING.market.minute(instrument, at_us // MINUTE_US)
        sides = minute.book_at(at_us * 10 + 9).levels(instrument)
        for levels, true in zip((row.bids, row.asks), sides, strict=True):
            assert [(float(level["price"]), float(level["amount"])) for level in levels] == list(true.items())[:5]


def test_book_state_is_that_of_compute(gold: Gold) -> None:
    rows = {us(row.end): row for row in gold.rows(BOOK_STATE)}
    # By the recorder's clock, as gold has it.
    changes = [replace(change, timestamp=change.local_timestamp) for change in CHANGES]
    snapshots = [item for item in compute(changes, ["book_snapshot_5_1s"]) if isinstance(item, BookSnapshot)]
    compared = 0
    for snapshot in snapshots:
        row = rows.get(snapshot.timestamp_us)
        if row is not None:
            assert [(float(level["price"]), float(level["amount"])) for level in row.bids] == [
                (level.price, level.amount) for level in snapshot.bids
            ]
            compared += 1
    assert compared > 100


def top_before(at_us: int) -> tuple[Any, ...] | None:
    place = bisect_left(TOPS, at_us, key=lambda top: top[0]) - 1
    return TOPS[place] if place >= 0 and at_us - TOPS[place][0] <= MINUTE_US else None


def test_trades_with_quotes_and_markouts(gold: Gold) -> None:
    by_id = {trade.id: trade for trade in TRADES}
    rows = gold.rows(TRADES_WITH_QUOTES, symbol="XBTUSD")
    assert {row.trade_id for row in rows} == by_id.keys()
    for row in rows:
        top = top_before(by_id[row.trade_id].local_timestamp_us) or (None,) * 5
        assert (us(row.quote_ts), row.bid_price, row.bid_amount, row.ask_price, row.ask_amount) == top
        expected = None if top[1] is None else 2 * abs(Fraction(row.price) - Fraction(top[1] + top[3]) / 2)
        assert near(row.effective_spread, expected)
    horizons = {"1s": SECOND_US, "10s": 10 * SECOND_US, "1m": MINUTE_US}
    markouts = gold.rows(MARKOUTS, symbol="XBTUSD")
    assert len(markouts) == 3 * len(TRADES)
    for row in markouts:
        later = top_before((us(row.local_ts) or 0) + horizons[row.horizon])
        mid = None if later is None or later[1] is None else (later[1] + later[3]) / 2
        assert near(row.mid, mid)
        gain = None if mid is None else (mid - float(row.price)) * (1 if row.side == "buy" else -1)
        assert near(row.markout, gain)


def test_order_flow_and_volatility(gold: Gold) -> None:
    flows: dict[int, float] = defaultdict(float)
    for (_, bid0, bid0_amount, ask0, ask0_amount), (at_us, bid, bid_amount, ask, ask_amount) in pairwise(TOPS[:-1]):
        flow = (bid >= bid0) * bid_amount - (bid <= bid0) * bid0_amount - (ask <= ask0) * ask_amount + (ask >= ask0) * ask0_amount
        flows[at_us // MINUTE_US] += flow
    rows = gold.rows(ORDER_FLOW, symbol="XBTUSD")
    assert [row.order_flow for row in rows] == [flows[minute] for minute in sorted(flows)]
    for row in rows:
        minute = (us(row.start) or 0) // MINUTE_US
        own = [trade for trade in TRADES if trade.local_timestamp_us // MINUTE_US == minute]
        bought = sum(trade.amount for trade in own if trade.side == "buy")
        sold = sum(trade.amount for trade in own if trade.side == "sell")
        assert (row.buy_volume, row.sell_volume) == (bought, sold)
        assert near(row.trade_imbalance, (bought - sold) / (bought + sold))
        assert row.updates == sum(top[0] // MINUTE_US == minute for top in TOPS)

    for row, (_, trades) in zip(
        gold.rows(VOLATILITY, symbol="XBTUSD"), sorted(by_window(TRADES, MINUTE_US).items()), strict=True
    ):
        closes = [own[-1].price for _, own in sorted(by_window(trades, SECOND_US).items())]
        squares = [math.log(after / before) ** 2 for before, after in pairwise(closes)]
        assert row.returns == len(squares)
        assert near(row.realized_volatility, math.sqrt(sum(squares)))
        assert near(row.annualized_volatility, math.sqrt(sum(squares) * 365 * 24 * 60))


def test_funding_and_liquidations(gold: Gold) -> None:
    tickers = [message for message in MESSAGES if isinstance(message, DerivativeTicker)]
    rows = gold.rows(FUNDING)
    windows = sorted(by_window(tickers, MINUTE_US).items())
    assert [us(row.start) for row in rows] == [start for start, _ in windows]
    for row, (_, own) in zip(rows, windows, strict=True):
        last = own[-1]
        assert (row.funding_rate, row.predicted_funding_rate) == (last.funding_rate, last.predicted_funding_rate)
        assert (float(row.mark_price), float(row.index_price)) == (last.mark_price, last.index_price)
        assert near(row.basis, last.mark_price - last.index_price) or abs(float(row.basis)) < 1e-6
        assert row.open_interest == last.open_interest
        assert row.open_interest_change == last.open_interest - own[0].open_interest
        assert us(row.funding_ts) == parse_timestamp_us(last.funding_timestamp)
    forced = {row.side: row for row in gold.rows(LIQUIDATIONS)}
    assert {side: (row.liquidations, row.amount) for side, row in forced.items()} == {"sell": (2, 12), "buy": (1, 1)}
    assert forced["sell"].high - forced["sell"].low == 1


def test_gaps_come_and_go(gold: Gold) -> None:
    late = [message for message in MESSAGES if is_late(message)]
    holes = [row for row in gold.gaps_before if row.kind == "sequence"]
    assert {row.payload_case for row in holes} == {"trade", "book_change"}
    assert sum(row.last_sequence - row.first_sequence + 1 for row in holes) == len(late)
    rows = {row.kind: row for row in gold.rows(GAPS)}
    assert rows.keys() == {"disconnect", "silence"}
    assert (us(rows["disconnect"].start), us(rows["disconnect"].end)) == (
        START_US + 2 * MINUTE_US - 1,
        START_US + 6 * MINUTE_US,
    )
    assert (us(rows["silence"].start), us(rows["silence"].end)) == (START_US + 2 * MINUTE_US, START_US + 6 * MINUTE_US)


def test_data_quality(gold: Gold) -> None:
    rows = {(row.symbol, row.kind): row for row in gold.rows(DATA_QUALITY)}
    trades = rows["XBTUSD", "trades"]
    late = [trade.local_timestamp_us - trade.timestamp_us for trade in TRADES]
    again = sum(message in TRADES for message in MESSAGES[:RESENT])
    assert again
    assert (trades.events, trades.records) == (len(TRADES), len(TRADES) + again)
    assert (trades.quarantined, trades.out_of_order) == (0, 0)
    assert near(trades.mean_lateness_ms, sum(late) / len(late) / 1000)
    assert near(trades.max_lateness_ms, max(late) / 1000)
    assert rows["XBTUSD", "book_changes"].events == len(CHANGES)
    assert rows["XBTUSD", "book_changes"].crossed_levels == 0


def test_late_rows_touch_no_window_but_their_own(gold: Gold) -> None:
    late = [message for message in MESSAGES if is_late(message)]
    late_trades = [message for message in late if isinstance(message, Trade)]
    # Bars of a second and of a minute; those that were not complete are looked at again: the last one of each interval and symbol,
    # and the one that was cut.
    windows = len(by_window(late_trades, SECOND_US)) + len(by_window(late_trades, MINUTE_US))
    assert windows < gold.late_counts["gold.bars"] <= windows + 4
    assert not {"gold.liquidations", "gold.funding"} & gold.late_counts.keys()
    # From the first late change on, not before it.
    first_us = min(message.local_timestamp_us for message in late if isinstance(message, BookChange))
    after = sum(top[0] >= first_us // SECOND_US * SECOND_US for top in TOPS)
    assert after <= gold.late_counts["gold.top_of_book"] < len(TOPS)


def test_days_that_are_far_apart_have_the_same_rows_together_as_one_after_the_other(
    spark: SparkSession, lake: LakeUnderTest, tmp_path: Path
) -> None:
    days = []
    for number, day in enumerate((0, 1, 5)):
        at = to_timestamp(START_US + day * DAY_US)
        sold = [replace(trade, timestamp=at, local_timestamp=at) for trade in some_trades(3, start=3 * number)]
        days.append((f"s{number}", [*sold, Disconnect("bitmex", to_timestamp(START_US + day * DAY_US + 3 * MINUTE_US))]))
    in_turn, together = lake.lake, Lake.at(tmp_path / "together")
    for session, messages in days:
        lake.bus.write(session, encode(messages, session=session))
        lake.ingest(until="gold", gold=("bars_1m", "gaps"))
    lake.lake = together
    lake.ingest(until="gold", gold=("bars_1m", "gaps"))
    assert [item for item in compare_lakes(in_turn.storage, together.storage) if not item.is_equal] == []
    assert [row.is_complete for row in together.read(spark, BARS).orderBy("start").collect()] == [True, False, False]
    assert [row.end for row in together.read(spark, GAPS).where("kind = 'disconnect'").collect()] == [None] * 3


def test_a_running_job_puts_the_parts_of_a_book_together_whichever_comes_first(lake: LakeUnderTest) -> None:
    book = BookChange(
        symbol="XBTUSD",
        exchange="bitmex",
        is_snapshot=True,
        bids=[BookLevel(9000 - n, 1) for n in range(12)],
        asks=[BookLevel(9001 + n, 2) for n in range(12)],
        timestamp=to_timestamp(START_US),
        local_timestamp=to_timestamp(START_US),
    )
    [whole] = BronzeEncoder(session_id="s1", origin="replay", clock_us=lambda: START_US).encode([book])
    parts = split_event(whole, 400)
    assert parts is not None
    lake.bus.write("b", [part.value for part in parts[1:]])
    stop, pending = threading.Event(), [parts[0].value]

    def report(counts: list[Counts]) -> None:
        rows = {table: count for stream in counts for table, count in stream.rows.items()}
        if rows.get("silver.book_parts") == len(parts) - 1 and pending:
            lake.bus.write("a", [pending.pop()])
        if rows.get("gold.books", 0) and not pending and rows.get("gold.top_of_book"):
            stop.set()

    deadline = threading.Timer(300, stop.set)
    deadline.start()
    job = Ingest(
        *(lake.spark, lake.lake, FilesSource(lake.bus.folder)),
        until="gold",
        gold=("top_of_book", "book_state_50_1s"),
    )
    job.run(0.5, stop, report)
    deadline.cancel()
    [top] = DeltaTable(lake.lake.path(TOP_OF_BOOK)).to_pyarrow_table().to_pylist()
    assert (us(top["local_ts"]), top["bid_price"], top["ask_price"]) == (START_US, 9000, 9001)
    [state] = DeltaTable(lake.lake.path(BOOK_STATE)).to_pyarrow_table().to_pylist()
    assert [level["price"] for level in state["bids"]] == [9000 - n for n in range(12)]
    assert [level["price"] for level in state["asks"]] == [9001 + n for n in range(12)]


def change(
    symbol: str, after_s: float, bids: dict[float, float], asks: dict[float, float], *, is_snapshot: bool = False
) -> BookChange:
    at = to_timestamp(START_US + round(after_s * SECOND_US))
    sides = ([BookLevel(price, amount) for price, amount in side.items()] for side in (bids, asks))
    return BookChange(symbol, "bitmex", is_snapshot, *sides, at, at)


def trade(after_s: float) -> Trade:
    at = to_timestamp(START_US + round(after_s * SECOND_US))
    return Trade("D", "bitmex", f"t{after_s}", 100, 1, "buy", at, at)


@pytest.mark.parametrize("writer", ["driver", "workers"])
def test_what_late_rows_undo_is_gone_and_what_they_change_is_changed_in_later_hours_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    lake = LakeUnderTest(spark, tmp_path)
    if writer != "driver":
        # However few rows there are, they stay where they are.
        monkeypatch.setattr(settled, "MAX_ROWS", 0)
        monkeypatch.setattr(settled, "MAX_ROWS_OF_LEVELS", 0)
        monkeypatch.setattr(rewriting, "_ON_DRIVER_BYTES", 0)
    messages: list[Message] = [
        *(change(symbol, 0, {100: 1}, {101: 1}, is_snapshot=True) for symbol in "ABC"),
        change("A", 3605, {100: 2}, {}),
        change("B", 20, {100: 2}, {}),
        change("C", 5, {101.5: 1}, {}),
        *map(trade, (0.05, 0.15, 0.95)),
    ]
    late: list[Message] = [change("A", 10, {}, {101: 0, 102: 3}), change("B", 19, {100: 2}, {})]
    encoder = BronzeEncoder(session_id="s1", origin="replay", clock_us=lambda: START_US)
    products = ("bars_100ms", "top_of_book", "order_flow_1s")

    def found(table: Table, symbol: str, *columns: str) -> dict[float, tuple[Any, ...]]:
        rows = DeltaTable(lake.lake.path(table)).to_pyarrow_table().to_pylist()
        time = "start" if "start" in table.columns else "local_ts"
        own = [row for row in rows if row["symbol"] == symbol]
        return {((us(row[time]) or 0) - START_US) / SECOND_US: tuple(row[name] for name in columns) for row in own}

    for name, batch in (("a", messages), ("b", late)):
        lake.bus.write(name, [event.value for event in encoder.encode(batch)])
        counts = lake.ingest(until="gold", gold=products)
        if name == "a":
            assert found(TOP_OF_BOOK, "A", "bid_amount", "ask_price") == {0: (1, 101), 3605: (2, 101)}
            assert found(ORDER_FLOW, "B", "order_flow").keys() == {0, 20}

    # Three that are new or different, and one that is gone.
    assert counts["gold.top_of_book"] == 4
    # In the hour after it, too: the book of that hour goes on from what was mended.
    assert found(TOP_OF_BOOK, "A", "bid_amount", "ask_price") == {0: (1, 101), 10: (1, 102), 3605: (2, 102)}
    # The change of second 20 changes nothing any more.
    assert found(TOP_OF_BOOK, "B", "bid_amount", "ask_price") == {0: (1, 101), 19: (2, 101)}
    assert found(ORDER_FLOW, "B", "order_flow", "updates") == {0: (0, 1), 19: (1, 1)}
    # A bid above an ask removes it.
    assert found(TOP_OF_BOOK, "C", "bid_price", "ask_price", "crossed_levels") == {
        0: (100, 101, 0),
        5: (Decimal("101.5"), None, 1),
    }
    # Intervals shorter than a second are complete one by one.
    assert found(BARS, "D", "is_complete") == {0: (True,), 0.1: (True,), 0.9: (False,)}
