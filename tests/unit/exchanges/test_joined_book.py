"""Books joined from a snapshot and updates, by the rules of each venue that has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tardis_machine.exchanges._joined_book import MAX_WAITING, JoinedBookMapper
from tardis_machine.exchanges._mapper import Json
from tardis_machine.exchanges.aster import AsterBookChangeMapper, AsterFuturesBookChangeMapper
from tardis_machine.exchanges.binance import BinanceBookChangeMapper, BinanceFuturesBookChangeMapper
from tardis_machine.exchanges.gate_io import GateIoJoinedBookChangeMapper
from tardis_machine.exchanges.kucoin import KucoinBookChangeMapper, KucoinFuturesBookChangeMapper
from tardis_machine.exchanges.mexc.futures import MexcFuturesBookChangeMapper
from tardis_machine.exchanges.mexc.spot import MexcBookChangeMapper
from tardis_machine.messages import UNSET, BookChange, BookLevel

LOCAL = "2024-01-01T00:00:00.000001Z"
SNAPSHOT_TIME, UPDATE_TIME = "2024-01-01T00:00:01.000Z", "2024-01-01T00:00:02.000Z"

RULES = {
    "binance": BinanceBookChangeMapper.rules,
    "binance-futures": BinanceFuturesBookChangeMapper.rules,
    "gate-io": GateIoJoinedBookChangeMapper.rules,
    "kucoin": KucoinBookChangeMapper.rules,
    "kucoin-futures": KucoinFuturesBookChangeMapper.rules,
    "mexc": MexcBookChangeMapper.rules,
    "mexc-futures": MexcFuturesBookChangeMapper.rules,
    "aster": AsterBookChangeMapper.rules,
    "aster-futures": AsterFuturesBookChangeMapper.rules,
}
BY_NUMBER = ["kucoin-futures", "mexc", "mexc-futures"]
KEEP_ZERO = ["gate-io", "kucoin"]
SKIP_ZERO_PRICE = ["kucoin", "kucoin-futures"]
MOVE_ON = ["mexc", "mexc-futures", "aster", "aster-futures"]
CHAINS = ["aster", "aster-futures"]
SURROUND = ["binance-futures", "aster-futures"]

Side = list[list[str]]
Levels = list[tuple[float, float]]


class Book:
    """The books of a venue, told what its messages would say."""

    def __init__(self, venue: str, realtime: bool = False) -> None:
        class VenueMapper(JoinedBookMapper):
            channels = ("depth",)
            rules = RULES[venue]

            def accepts(self, message: Json) -> bool:
                return False

            def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
                return ()

        self.mapper = VenueMapper(venue, realtime)

    def sent(self, side: Side | None) -> Sequence[Sequence[Any]]:
        """Levels as the venue sends them: JSON numbers where it passes them on as they are, text elsewhere."""
        is_text = not self.mapper.rules.as_sent
        return [level if is_text else [json.loads(number) for number in level] for level in side or ()]

    def snapshot(self, number: Any, bids: Side, asks: Side | None = None, symbol: str = "BTC") -> Sequence[BookChange]:
        return self.mapper.join_snapshot(symbol, number, self.sent(bids), self.sent(asks), SNAPSHOT_TIME, LOCAL)

    def update(
        self, first: Any, last: Any, bids: Side, asks: Side | None = None, previous: Any = UNSET, symbol: str = "BTC"
    ) -> Sequence[BookChange]:
        return self.mapper.join_update(symbol, first, last, previous, self.sent(bids), self.sent(asks), UPDATE_TIME, LOCAL)


def bids_of(changes: Sequence[BookChange]) -> Levels:
    (change,) = changes
    return [(level.price, level.amount) for level in change.bids]  # type: ignore[misc]


def sides(bids: Levels, asks: Levels) -> tuple[list[BookLevel], list[BookLevel]]:
    return [BookLevel(*level) for level in bids], [BookLevel(*level) for level in asks]


@pytest.fixture(params=RULES)
def venue(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_updates_wait_for_the_snapshot_and_come_out_with_it(venue: str) -> None:
    book = Book(venue, realtime=True)
    assert book.update(4, 5, [["10", "7"], ["9", "8"]], previous=3) == ()  # the snapshot knows better, but for its own number
    assert book.update(6, 7, [["9", "3"], ["8", "4"]], [["12", "5"]], previous=5) == ()
    assert book.snapshot(6, [["10", "1"], ["9", "2"]], [["11", "1"]]) == (
        BookChange("BTC", venue, True, *sides([(10, 1), (9, 3), (8, 4)], [(11, 1), (12, 5)]), SNAPSHOT_TIME, LOCAL),
    )
    assert book.update(8, 9, [["10", "0"]], previous=7) == (
        BookChange("BTC", venue, False, *sides([(10, 0)], []), UPDATE_TIME, LOCAL),
    )


def test_a_second_snapshot_is_ignored(venue: str) -> None:
    book = Book(venue)
    assert bids_of(book.snapshot(5, [["10", "1"]])) == [(10, 1)]
    assert book.snapshot(50, [["10", "2"]]) == ()
    assert bids_of(book.update(6, 6, [["10", "3"]], previous=5)) == [(10, 3)]


def test_symbols_are_joined_each_for_itself(venue: str) -> None:
    book = Book(venue)
    book.snapshot(5, [["10", "1"]], symbol="ETH")
    assert book.update(6, 6, [["9", "1"]], previous=5) == ()
    assert bids_of(book.update(6, 6, [["9", "1"]], previous=5, symbol="ETH")) == [(9, 1)]
    assert bids_of(book.snapshot(5, [["10", "1"]])) == [(10, 1), (9, 1)]


def test_numbers_may_be_text(venue: str) -> None:
    book = Book(venue, realtime=True)
    book.snapshot("9", [])
    assert book.update("7", "8", [["9", "1"]], previous="6") == ()
    assert bids_of(book.update("9", "10", [["9", "1"]], previous="8")) == [(9, 1)]


def test_only_so_many_updates_wait(venue: str) -> None:
    book = Book(venue)
    for number in range(1, MAX_WAITING + 3):
        book.update(number, number, [[str(number), "1"]], previous=number - 1)
    assert [price for price, _ in bids_of(book.snapshot(-1, []))] == list(range(3, MAX_WAITING + 3))


def test_prices_that_are_written_otherwise_are_the_same_by_number_only(venue: str) -> None:
    book = Book(venue)
    book.update(6, 6, [["10.0", "5"], ["9", "6"]], previous=5)
    expected = {True: [(10, 5), (9, 6)], False: [(10, 1), (9, 6), (10, 5)]}
    assert bids_of(book.snapshot(5, [["10", "1"], ["9", "2"]])) == expected[venue in BY_NUMBER]


def test_an_amount_of_0_takes_a_level_out_or_stays_in(venue: str) -> None:
    book = Book(venue)
    book.update(6, 6, [["10", "0"], ["8", "0.0"], ["7", "1"]], previous=5)
    expected = {True: [(10, 0), (9, 2), (8, 0), (7, 1)], False: [(9, 2), (7, 1)]}
    assert bids_of(book.snapshot(5, [["10", "1"], ["9", "2"]])) == expected[venue in KEEP_ZERO]


def test_a_snapshot_keeps_an_amount_of_0_that_it_has_itself(venue: str) -> None:
    assert bids_of(Book(venue).snapshot(5, [["10", "0"]])) == [(10, 0)]


def test_what_is_held_is_dropped_and_moves_on_with_updates_or_does_not(venue: str) -> None:
    book = Book(venue)
    book.snapshot(5, [["10", "1"]])
    assert book.update(3, 4, [["10", "2"]], previous=2) == ()
    assert bids_of(book.update(6, 8, [["10", "3"]], previous=5)) == [(10, 3)]
    # It came before, but after the snapshot.
    repeated = book.update(6, 7, [["10", "4"]], previous=8)
    assert (repeated == ()) is (venue in MOVE_ON)


def test_the_number_of_the_snapshot_itself_is_held_or_not(venue: str) -> None:
    book = Book(venue)
    book.snapshot(5, [["10", "1"]])
    own = book.update(4, 5, [["10", "2"]], previous=3)
    assert (own == ()) is (venue not in SURROUND)


@pytest.mark.parametrize(
    ("venue", "first", "last", "previous", "follows"),
    [
        ("binance", 6, 8, UNSET, True),
        ("binance", 4, 6, UNSET, True),
        ("binance", 7, 8, UNSET, False),
        ("binance-futures", 5, 8, 4, True),
        ("binance-futures", 7, 8, 5, True),
        ("binance-futures", 6, 8, 4, False),
        ("gate-io", 7, 8, UNSET, True),
        ("kucoin", 6, 6, UNSET, True),
        ("kucoin", 7, 8, UNSET, False),
        ("kucoin-futures", 6, 6, UNSET, True),
        ("kucoin-futures", 7, 7, UNSET, False),
        ("mexc", 4, 6, UNSET, True),
        ("mexc", 7, 8, UNSET, False),
        ("aster", 6, 8, 5, True),
        ("aster", 6, 8, 4, True),
        ("aster", 7, 8, 6, False),
        ("aster-futures", 7, 8, 5, True),
        ("aster-futures", 5, 8, 4, True),
        ("aster-futures", 6, 8, 4, False),
    ],
)
def test_the_first_update_follows_the_snapshot_or_leaves_a_gap(
    venue: str, first: int, last: int, previous: Any, follows: bool
) -> None:
    for is_waiting in (False, True):
        live, history = Book(venue, realtime=True), Book(venue)
        for book in (live, history):
            if is_waiting:
                book.update(first, last, [["10", "2"]], previous=previous)
            else:
                book.snapshot(5, [["10", "1"]])

        def complete(book: Book, is_waiting: bool = is_waiting) -> Levels:
            if is_waiting:
                return bids_of(book.snapshot(5, [["10", "1"]]))
            return bids_of(book.update(first, last, [["10", "2"]], previous=previous))

        assert complete(history) == [(10, 2)]
        if follows:
            assert complete(live) == [(10, 2)]
        else:
            with pytest.raises(ValueError, match=f"the book snapshot 5 and the first update {first} to {last} leave a gap"):
                complete(live)


@pytest.mark.parametrize(
    ("venue", "number", "is_empty"),
    [
        ("binance", -1, True),
        ("binance", 0, False),
        ("binance-futures", -1, False),
        ("kucoin", -1, True),
        ("kucoin", 0, True),
        ("kucoin-futures", 0, True),
        ("mexc", -1, False),
        ("aster", -1, True),
        ("aster-futures", -1, True),
    ],
)
def test_any_update_follows_an_empty_book(venue: str, number: int, is_empty: bool) -> None:
    book = Book(venue, realtime=True)
    book.snapshot(number, [])
    if is_empty:
        assert bids_of(book.update(100, 101, [["10", "2"]], previous=99)) == [(10, 2)]
    else:
        with pytest.raises(ValueError, match="leave a gap"):
            book.update(100, 101, [["10", "2"]], previous=99)


@pytest.mark.parametrize("realtime", [False, True])
def test_a_later_gap_is_an_error_in_a_chain_alone(venue: str, realtime: bool) -> None:
    book = Book(venue, realtime)
    book.snapshot(5, [["10", "1"]])
    book.update(5 if venue in SURROUND else 6, 8, [], previous=5)
    if venue in CHAINS:
        with pytest.raises(ValueError, match="the book is at 8, and the update that ends with 11 follows 9"):
            book.update(10, 11, [["10", "2"]], previous=9)
    else:
        assert bids_of(book.update(10, 11, [["10", "2"]], previous=9)) == [(10, 2)]


@pytest.mark.parametrize("venue", CHAINS)
def test_a_chain_is_checked_while_updates_wait_too(venue: str) -> None:
    book = Book(venue)
    book.update(6, 8, [["10", "2"]], previous=5)
    book.update(10, 11, [["10", "3"]], previous=9)
    with pytest.raises(ValueError, match="the book is at 8"):
        book.snapshot(5, [["10", "1"]])


def test_a_price_of_0_is_a_placeholder_while_updates_are_merged(venue: str) -> None:
    book = Book(venue)
    book.update(6, 6, [["0", "5"], ["9", "2"]], previous=5)
    expected = {True: [(10, 1), (9, 2)], False: [(10, 1), (0, 5), (9, 2)]}
    assert bids_of(book.snapshot(5, [["10", "1"]])) == expected[venue in SKIP_ZERO_PRICE]
    assert bids_of(book.update(7, 7, [["0", "5"]], previous=6)) == [(0, 5)]


def test_an_update_without_levels_is_emitted(venue: str) -> None:
    book = Book(venue, realtime=True)
    book.snapshot(5, [["10", "1"]])
    assert len(book.update(5 if venue in SURROUND else 6, 6, [], previous=5)) == 1
    # It counted as the one that follows the snapshot.
    assert bids_of(book.update(9, 9, [["10", "2"]], previous=6)) == [(10, 2)]
