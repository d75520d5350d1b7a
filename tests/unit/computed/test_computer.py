"""The fast computed types against plain ones, batch by batch and through pickling."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.computed import BookSnapshots, Computable, Computer, TradeBars, compute
from tardis_machine.errors import OptionsError
from tardis_machine.messages import (
    BookChange,
    BookLevel,
    BookSnapshot,
    Disconnect,
    Message,
    Trade,
    TradeBar,
    js_number,
    to_json,
    to_timestamp,
)

from .plain import compute_plainly

EXCHANGES = st.sampled_from(["bitmex", "deribit"])
SYMBOLS = st.sampled_from(["A", "B"])
# Few prices and amounts, so that levels come back, cancel out and cross.
LEVELS = st.lists(
    st.builds(
        lambda price, amount: BookLevel(js_number(price / 4), js_number(amount / 10)),
        st.integers(36, 46),
        st.sampled_from([0, 0, 0, 1, 2, 3, 10]),
    ),
    max_size=4,
)
LONG = st.lists(
    st.builds(
        lambda price, amount: BookLevel(js_number(price / 4), js_number(amount / 10)), st.integers(30, 52), st.integers(0, 9)
    ),
    max_size=20,
)
# Mostly forwards, in microseconds or milliseconds; now and then no date, before 1970, or beyond the year 9999.
TIMES = st.one_of(
    st.builds(lambda us, ms: to_timestamp(1_600_000_000_000_000 + us, milliseconds=ms), st.integers(0, 400_000), st.booleans()),
    st.builds(lambda us, ms: to_timestamp(1_600_000_000_000_000 + us, milliseconds=ms), st.integers(0, 400_000), st.booleans()),
    st.sampled_from(
        [
            "1969-12-31T23:59:59.500Z",
            "+020000-01-01T00:00:00.050Z",
            "+020000-01-01T00:00:00.950Z",
            None,
        ]
    ),
)
LOCAL = "2020-09-13T12:26:40.000001Z"


@st.composite
def book_changes(draw: st.DrawFn) -> Message:
    snapshot = draw(st.integers(0, 7)) == 0
    levels = LONG if snapshot else LEVELS
    return BookChange(draw(SYMBOLS), draw(EXCHANGES), snapshot, draw(levels), draw(levels), draw(TIMES), LOCAL)


TRADES = st.builds(
    Trade,
    SYMBOLS,
    EXCHANGES,
    st.just("id"),
    st.integers(1, 40).map(lambda n: js_number(n / 4)),
    st.integers(0, 30).map(lambda n: js_number(n / 10)),
    st.sampled_from(["buy", "sell", "unknown"]),
    TIMES,
    st.just(LOCAL),
)
DISCONNECTS = st.builds(Disconnect, EXCHANGES, st.just(LOCAL))
SNAPSHOTS = st.builds(
    BookSnapshots,
    depth=st.integers(0, 4),
    interval=st.sampled_from([0, 0, 1, 10, 100, 1000]),
    grouping=st.sampled_from([None, None, 0.1, 0.5, 0.75, 1, 3]),
    remove_crossed=st.booleans(),
)
BARS = st.one_of(
    st.builds(TradeBars, st.just("time"), st.sampled_from([0, 1, 10, 2.5, 100, 1000, -50, 0.001, 1e300])),
    st.builds(TradeBars, st.just("tick"), st.sampled_from([0, 1, 2, 5])),
    st.builds(TradeBars, st.just("volume"), st.sampled_from([0, 0.1, 2, 12.5])),
)


def lines(messages: list[Message]) -> list[bytes]:
    return [to_json(message) for message in messages]


def check(messages: list[Message], computables: list[Computable], cut: int) -> None:
    expected = lines(compute_plainly(messages, computables))
    computer = Computer(computables, keep_sources=True)
    first = computer.feed(messages[:cut])
    assert lines(first + computer.feed(messages[cut:])) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(book_changes(), book_changes(), DISCONNECTS), max_size=40),
    st.lists(SNAPSHOTS, min_size=1, max_size=3),
    st.data(),
)
def test_book_snapshots_are_those_of_the_plain_way(
    messages: list[Message], computables: list[Computable], data: st.DataObject
) -> None:
    check(messages, computables, data.draw(st.integers(0, len(messages))))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(TRADES, TRADES, TRADES, DISCONNECTS), max_size=40), st.lists(BARS, min_size=1, max_size=3), st.data())
def test_trade_bars_are_those_of_the_plain_way(
    messages: list[Message], computables: list[Computable], data: st.DataObject
) -> None:
    check(messages, computables, data.draw(st.integers(0, len(messages))))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(TRADES, book_changes(), DISCONNECTS), max_size=40),
    st.lists(st.one_of(BARS, SNAPSHOTS), min_size=2, max_size=4),
)
def test_bars_and_snapshots_together(messages: list[Message], computables: list[Computable]) -> None:
    check(messages, computables, len(messages) // 2)


def change(
    bids: dict[float, float], asks: dict[float, float], ms: int = 0, snapshot: bool = False, symbol: str = "XBTUSD"
) -> BookChange:
    time = to_timestamp(1_600_000_000_000_000 + ms * 1000, milliseconds=True)
    sides = ([BookLevel(price, amount) for price, amount in side.items()] for side in (bids, asks))
    return BookChange(symbol, "bitmex", snapshot, *sides, time, LOCAL)


START = change({99: 5, 98: 6}, {101: 7, 102: 8}, snapshot=True)


def test_a_level_that_changed_and_changed_back_within_an_interval_counts() -> None:
    computer = Computer(["quote_100ms"])
    assert len(computer.feed([START])) == 1
    assert computer.feed([change({99: 1}, {}, 10), change({99: 5}, {}, 20)]) == []
    (snapshot,) = computer.feed([change({}, {}, 150)])
    assert isinstance(snapshot, BookSnapshot)
    assert snapshot.bids == [BookLevel(99, 5)]
    assert snapshot.timestamp == "2020-09-13T12:26:40.100Z"
    assert computer.feed([change({98: 1, 97: 2}, {102: 0}, 250), change({}, {}, 400)]) == []


def test_changes_below_the_depth_are_no_news() -> None:
    computer = Computer(["quote", "book_snapshot_2_0ms"])
    assert len(computer.feed([START])) == 2
    assert [message.name for message in computer.feed([change({98: 1}, {})])] == ["book_snapshot_2_0ms"]  # type: ignore[union-attr]
    assert computer.feed([change({97: 1}, {103: 1})]) == []
    assert computer.feed([change({97: 1, 99: 5}, {101: 7})]) == []


def test_a_disconnect_forgets_the_books_of_its_exchange_only() -> None:
    other = BookChange("XBTUSD", "deribit", True, START.bids, START.asks, START.timestamp, LOCAL)
    computer = Computer(["quote"])
    computer.feed([START, other, Disconnect("bitmex", LOCAL)])
    (snapshot,) = computer.feed(
        [change({99: 1}, {}), BookChange("XBTUSD", "deribit", False, [BookLevel(99, 1)], [], START.timestamp, LOCAL)]
    )
    assert snapshot.exchange == "deribit"


def test_levels_without_a_price_are_passed_over() -> None:
    odd = BookChange(
        "XBTUSD",
        "bitmex",
        False,
        [BookLevel(99, 1), BookLevel(None, 5), BookLevel(float("nan"), 5), BookLevel(98, 0)],  # type: ignore[arg-type]
        [BookLevel(None, 0)],  # type: ignore[arg-type]
        START.timestamp,
        LOCAL,
    )
    _, snapshot = Computer(["book_snapshot_3_0ms"]).feed([START, odd])
    assert isinstance(snapshot, BookSnapshot)
    assert to_json(snapshot.bids) == b'[{"price":99,"amount":1},{},{}]'
    assert to_json(snapshot.asks) == b'[{"price":101,"amount":7},{"price":102,"amount":8},{}]'
    whole = BookChange("XBTUSD", "bitmex", True, odd.bids, [*odd.asks, BookLevel(float("nan"), 1)], START.timestamp, LOCAL)
    (snapshot,) = Computer(["book_snapshot_2_0ms"]).feed([whole])
    assert isinstance(snapshot, BookSnapshot)
    assert to_json([snapshot.bids, snapshot.asks]) == b'[[{"price":99,"amount":1},{}],[{},{}]]'


def test_a_trade_without_a_price_counts_as_one_at_0() -> None:
    odd = Trade("XBTUSD", "bitmex", "1", None, None, "buy", START.timestamp, LOCAL)  # type: ignore[arg-type]
    bar = Computer(["trade_bar_2ticks"]).feed([odd, Trade("XBTUSD", "bitmex", "2", 10, 2, "buy", START.timestamp, LOCAL)])[-1]
    assert isinstance(bar, TradeBar)
    assert (bar.open, bar.high, bar.low, bar.close, bar.volume, bar.trades) == (0, 10, 0, 10, 2, 2)
    assert b'"vwap":null' in to_json(bar)  # 0 / 0 stays no number


def test_a_time_that_only_looks_like_one_ends_no_interval() -> None:
    odd = change({99: 1}, {})
    odd.timestamp = "2020-99-99T00:00:00.000Z"
    computer = Computer(["quote_100ms"])
    computer.feed([START])
    assert computer.feed([odd, change({}, {}, 500)]) == []
    assert len(computer.feed([change({}, {}, 700)])) == 1


def test_only_what_was_asked_for_is_shown() -> None:
    trade = Trade("XBTUSD", "bitmex", "1", 100, 1, "buy", START.timestamp, LOCAL)
    lost = Disconnect("bitmex", LOCAL)
    messages: list[Message] = [START, trade, lost]
    kinds = lambda *data_types: [type(message) for message in Computer(data_types).feed(messages)]  # noqa: E731
    assert kinds("quote") == [BookSnapshot, Trade, Disconnect]
    assert kinds("quote", "book_change") == [BookChange, BookSnapshot, Trade, Disconnect]
    assert kinds("trade_bar_1ticks") == [BookChange, TradeBar, Disconnect]
    assert kinds("trade") == [BookChange, Trade, Disconnect]
    assert [type(message) for message in compute(messages, ["quote"])] == [BookChange, BookSnapshot, Trade, Disconnect]


async def test_batches_keep_their_bounds() -> None:
    async def batches() -> AsyncIterator[list[Message]]:
        yield [START]
        yield []
        yield [change({99: 1}, {}), change({98: 0}, {})]

    got = [[type(message) for message in batch] async for batch in compute(batches(), ["quote"])]
    assert got == [[BookChange, BookSnapshot], [], [BookChange, BookSnapshot, BookChange]]


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"^dataTypes: unknown data type 'quotes'; expected quote$"):
        compute([], ["quotes"])


def test_an_infinite_price_has_no_group() -> None:
    at = "2024-01-01T00:00:00.000Z"
    book = BookChange("A", "x", True, [BookLevel(99, 1)], [BookLevel(math.inf, 1)], at, at)
    snapshot = compute([book], ["book_snapshot_1_grouped10_0ms"])[-1]
    assert b'"bids":[{"price":90,"amount":1}],"asks":[{"price":null,"amount":1}]' in to_json(snapshot)
