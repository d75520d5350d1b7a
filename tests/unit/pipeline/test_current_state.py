"""What a newcomer is told first: with it, and all that follows, it knows what everyone knows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.computed import OrderBook
from tardis_machine.messages import UNSET, BookChange, BookLevel, BookTicker, Disconnect, Trade
from tardis_machine.pipeline.current_state import CurrentState

T0, T1 = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000000Z"


def change(
    is_snapshot: bool, bids: list[tuple[float, float]], asks: list[tuple[float, float]], symbol: str = "XBTUSD"
) -> BookChange:
    sides = ([BookLevel(price, amount) for price, amount in side] for side in (bids, asks))
    return BookChange(symbol, "bitmex", is_snapshot, *sides, T0, T1)


levels = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=5)
changes = st.builds(change, st.sampled_from([False, False, False, True]), levels, levels, st.sampled_from(["XBTUSD", "ETHUSD"]))


@given(st.lists(changes, max_size=20), st.lists(changes, max_size=10))
def test_a_newcomer_rebuilds_the_same_books(before: list[BookChange], after: list[BookChange]) -> None:
    state = CurrentState()
    state.take(before)
    for symbol in ("XBTUSD", "ETHUSD"):
        first, newcomer = OrderBook(remove_crossed=False), OrderBook(remove_crossed=False)
        for message in (*before, *after):
            if message.symbol == symbol:
                first.update(message)
        for message in (*state.books(), *after):
            if message.symbol == symbol:
                newcomer.update(message)
        assert list(newcomer.bids()) == list(first.bids())
        assert list(newcomer.asks()) == list(first.asks())


def test_books_are_sorted_and_as_old_as_their_last_change() -> None:
    state = CurrentState()
    later = change(False, [(98, 2)], [(100, 0)])
    later.local_timestamp = "2026-01-01T00:00:02.000000Z"
    state.take([change(True, [(97, 1), (99, 1)], [(101, 1), (100, 1)]), later])
    [book] = state.books()
    assert [level.price for level in book.bids] == [99, 98, 97]
    assert [level.price for level in book.asks] == [101]
    assert (book.is_snapshot, book.local_timestamp) == (True, "2026-01-01T00:00:02.000000Z")


def test_the_last_ticker_of_each_symbol_is_told_and_trades_are_not() -> None:
    state = CurrentState()
    tickers = [BookTicker(symbol, "bitmex", 1, 2, 3, 4, T0, T1) for symbol in ("A", "A", "B")]
    state.take([*tickers, Trade("A", "bitmex", "1", 1, 1, "buy", T0, T1)])
    told = state.messages()
    assert [id(message) for message in told] == [id(tickers[1]), id(tickers[2])]


def test_levels_without_a_price_are_left_out() -> None:
    state = CurrentState()
    state.take([BookChange("A", "bitmex", True, [BookLevel(UNSET, 1), BookLevel(2, 1)], [], T0, T1)])
    assert [level.price for level in state.books()[0].bids] == [2]


def test_a_lost_connection_leaves_nothing() -> None:
    state = CurrentState()
    state.take([change(True, [(1, 1)], []), BookTicker("A", "bitmex", 1, 2, 3, 4, T0, T1), Disconnect("bitmex", T1)])
    assert not state.messages()
