"""The order book by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.computed import OrderBook
from tardis_machine.messages import BookChange, BookLevel

from .plain import PlainBook

LEVELS = st.lists(st.builds(BookLevel, st.integers(95, 105), st.sampled_from([0, 0, 1, 2])), max_size=6)
CHANGES = st.builds(BookChange, st.just("S"), st.just("E"), st.booleans(), LEVELS, LEVELS, st.just(""), st.just(""))


def change(bids: list[tuple[float, float]], asks: list[tuple[float, float]], snapshot: bool = False) -> BookChange:
    return BookChange("S", "E", snapshot, [BookLevel(*level) for level in bids], [BookLevel(*level) for level in asks], "", "")


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGES, max_size=20), st.booleans())
def test_the_book_is_that_of_the_plain_way(changes: list[BookChange], remove_crossed: bool) -> None:
    book, plain = OrderBook(remove_crossed), PlainBook(remove_crossed)
    for item in changes:
        book.update(item)
        plain.update(item)
        assert list(book.bids()) == plain.bids()
        assert list(book.asks()) == plain.asks()
        for depth in (0, 1, 3, 100):
            assert book.top_bids(depth) == plain.bids()[:depth]
            assert book.top_asks(depth) == plain.asks()[:depth]
        assert [book.best_bid, book.best_ask] == [side[0] if side else None for side in (plain.bids(), plain.asks())]


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGES, max_size=20), st.integers(95, 100), st.integers(100, 105))
def test_what_is_not_touched_has_not_changed(changes: list[BookChange], lowest_bid: int, highest_ask: int) -> None:
    book = OrderBook()
    for item in changes:
        bids = [level for level in book.bids() if level.price >= lowest_bid]  # type: ignore[operator]
        asks = [level for level in book.asks() if level.price <= highest_ask]  # type: ignore[operator]
        book.watch(lowest_bid, highest_ask)
        book.update(item)
        assert book.bids_touched or bids == [level for level in book.bids() if level.price >= lowest_bid]  # type: ignore[operator]
        assert book.asks_touched or asks == [level for level in book.asks() if level.price <= highest_ask]  # type: ignore[operator]


def test_worse_prices_than_those_watched_do_not_touch() -> None:
    book = OrderBook()
    book.update(change([(99, 1), (98, 1)], [(101, 1), (102, 1)], snapshot=True))
    book.watch(99, 101)
    book.update(change([(98, 0), (97, 5)], [(102, 3)]))
    assert not book.bids_touched
    assert not book.asks_touched
    book.update(change([(99, 2)], []))
    assert (book.bids_touched, book.asks_touched) == (True, False)


def test_changes_before_the_first_snapshot_are_ignored() -> None:
    book = OrderBook()
    book.update(change([(99, 1)], [(101, 1)]))
    assert book.best_bid is book.best_ask is None


def test_crossed_levels_are_those_of_the_side_that_was_not_set() -> None:
    removed: list[tuple[BookLevel | None, ...]] = []
    book = OrderBook(on_removed=lambda *levels: removed.append(levels))
    book.update(change([(99, 1), (98, 1)], [(101, 1), (102, 1)], snapshot=True))
    book.update(change([(102, 3)], []))
    assert [level.price for level in book.bids()] == [102, 99, 98]
    assert book.best_ask is None
    assert removed == [
        (BookLevel(102, 3), BookLevel(102, 3), BookLevel(101, 1), BookLevel(102, 1)),
        (BookLevel(102, 3), BookLevel(102, 3), BookLevel(102, 1), None),
    ]
    book.update(change([], [(99, 4)]))
    assert [level.price for level in book.bids()] == [98]
    assert book.best_ask == BookLevel(99, 4)


def test_crossed_levels_stay_where_asked() -> None:
    book = OrderBook(remove_crossed=False)
    book.update(change([(103, 1)], [(101, 1)], snapshot=True))
    assert (book.best_bid, book.best_ask) == (BookLevel(103, 1), BookLevel(101, 1))
