"""The compiled book against the one in Python, message by message: the same snapshots, the same levels, the same bytes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.computed import BookSnapshots
from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.messages import UNSET, BookChange, BookLevel, BookSnapshot, Message, js_number, to_json, to_timestamp
from tardis_machine.pipeline.normalizer import Normalizer
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.sample.venues import VENUES
from tests import strategies
from tests.compiled_or_not import import_as_python, import_compiled
from tests.exchanges.transcript import FOLDER, SUFFIX, Section, Transcript, read_transcript

NAMES = ("tardis_machine.computed.order_book", "tardis_machine.computed.book_snapshot")
COMPILED, PYTHON = import_compiled(*NAMES), import_as_python(*NAMES)
START_US = 1_711_929_600_000_000  # 2024-04-01
ASKED = [
    BookSnapshots(1, 0, name="quote"),
    BookSnapshots(25, 100),
    BookSnapshots(50, 0),
    BookSnapshots(10, 1000, 0.5),
    BookSnapshots(3, 0, 10, remove_crossed=False),
]


def test_these_are_the_two() -> None:
    assert [module.__file__.endswith(".py") for module in PYTHON] == [True, True]
    assert COMPILED[0].OrderBook.__module__ == "tardis_machine.computed.order_book_compiled"
    assert type(COMPILED[1].begin_snapshots(ASKED[0])).__module__ == "tardis_machine.computed.book_snapshot_compiled"
    assert type(PYTHON[1].begin_snapshots(ASKED[0])).__module__ == "tardis_machine.computed.book_snapshot"


def check_snapshots(changes: Iterable[Message], asked: Sequence[BookSnapshots]) -> int:
    """How many snapshots both gave."""
    pairs: dict[str, list[tuple[Any, Any]]] = {}
    told = 0
    for change in changes:
        if not isinstance(change, BookChange):
            continue
        if change.symbol not in pairs:
            pairs[change.symbol] = [(COMPILED[1].begin_snapshots(item), PYTHON[1].begin_snapshots(item)) for item in asked]
        for compiled, plain in pairs[change.symbol]:
            got: list[Message] = []
            expected: list[Message] = []
            compiled.update(change, got)
            plain.update(change, expected)
            assert [to_json(item) for item in got] == [to_json(item) for item in expected], change
            told += len(got)
    return told


# Prices near each other, so that levels change, go and cross; amounts of all that numbers can be, and none.
PRICES = st.one_of(
    st.integers(95, 105),
    st.integers(-300, 300).map(lambda price: js_number(price / 7)),
    st.sampled_from([None, UNSET, "7", float("nan")]),
)
NUMBERS = strategies.numbers().map(lambda number: js_number(float(number)))
AMOUNTS = st.one_of(
    st.just(0),
    st.integers(1, 9),
    st.integers(1, 99).map(lambda n: js_number(n / 1000)),
    NUMBERS,
    st.sampled_from([None, UNSET, "", "1"]),
)
ODD_LEVELS = st.lists(
    st.builds(BookLevel, st.one_of(PRICES, PRICES, PRICES, NUMBERS.filter(lambda number: abs(number) < 1e200)), AMOUNTS),
    max_size=12,
)
INSTANTS = st.builds(lambda us, ms: to_timestamp(START_US + us, milliseconds=ms), st.integers(0, 3_000_000), st.booleans())


@given(
    st.lists(
        st.builds(BookChange, st.just("S"), st.just("E"), st.booleans(), ODD_LEVELS, ODD_LEVELS, INSTANTS, INSTANTS), max_size=20
    ),
    st.lists(
        st.builds(
            BookSnapshots,
            depth=st.integers(0, 6),
            interval=st.sampled_from([0, 0, 1, 100, 250, 1000, 1500]),
            grouping=st.sampled_from([None, None, 0.1, 3]),
            remove_crossed=st.booleans(),
        ),
        min_size=1,
        max_size=2,
    ),
)
def test_random_streams(changes: list[Message], asked: list[BookSnapshots]) -> None:
    check_snapshots(changes, asked)


@given(NUMBERS.filter(bool))
def test_every_number_is_printed_as_it_is_elsewhere(number: float) -> None:
    compiled = COMPILED[1].begin_snapshots(BookSnapshots(1, 0))
    out: list[Any] = []
    compiled.update(BookChange("S", "E", True, [BookLevel(number, number)], [], None, to_timestamp(START_US)), out)
    assert bytes(out[0].bids.printed) == to_json([BookLevel(number, number)])
    assert to_json(out[0].bids[0]) == to_json(BookLevel(number, number))


@pytest.mark.parametrize("exchange", sorted(VENUES))
def test_recordings_of_the_sample_market(exchange: str) -> None:
    normalizer = Normalizer(exchange, ["book_change"], START_US)
    lines = Recording(SampleMarket(3, 0.2)).slice(exchange, START_US, 1, normalizer.filters()).splitlines()
    assert check_snapshots(normalizer.feed_lines(lines), ASKED) > 100


TRANSCRIPTS = [read_transcript(path) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))]


def book_changes_of(transcript: Transcript, section: Section) -> list[Message]:
    at_us = parse_date_us(section.at)
    normalizer = Normalizer(transcript.exchange, section.data_types, at_us)
    came: list[Message] = []
    for step in section.steps:
        if step.verb == "<":
            try:
                came += normalizer.feed(to_timestamp(at_us)[:-1].encode() + b"0Z", step.text.encode())
            except NormalizeError as error:
                came += error.emitted  # type: ignore[arg-type]
    return came


def test_transcripts_of_all_exchanges() -> None:
    told = {
        transcript.exchange: sum(
            check_snapshots(book_changes_of(transcript, section), ASKED) for section in transcript.of("history")
        )
        for transcript in TRANSCRIPTS
    }
    # Two have books that never begin: their transcripts hold no snapshot.
    with_books = {name for name in told if "book_change" in EXCHANGES[name].data_types}
    assert with_books - {name for name, count in told.items() if count} == {"star-atlas", "huobi-dm-options"}


@given(
    st.lists(st.builds(BookChange, st.just("S"), st.just("E"), st.booleans(), ODD_LEVELS, ODD_LEVELS, st.just(""), st.just("")))
)
def test_books_are_the_same_level_by_level(changes: list[BookChange]) -> None:
    removed: tuple[list[Any], list[Any]] = ([], [])
    compiled, plain = (
        module.OrderBook(on_removed=lambda *levels, told=told: told.append(levels))
        for module, told in zip((COMPILED[0], PYTHON[0]), removed, strict=True)
    )
    for change in changes:
        for book in (compiled, plain):
            book.update(change)
        assert [to_json([*side]) for side in (compiled.bids(), compiled.asks())] == [
            to_json([*side]) for side in (plain.bids(), plain.asks())
        ]
        assert to_json([compiled.best_bid, compiled.best_ask]) == to_json([plain.best_bid, plain.best_ask])
    assert to_json(removed[0]) == to_json(removed[1])


def change(*bids: tuple[float, float], snapshot: bool = False) -> BookChange:
    return BookChange(
        "S", "E", snapshot, [BookLevel(*level) for level in bids], [], to_timestamp(START_US), to_timestamp(START_US)
    )


def test_levels_of_a_snapshot_are_a_sequence() -> None:
    out: list[BookSnapshot] = []
    COMPILED[1].begin_snapshots(BookSnapshots(3, 0)).update(change((2, 1.5), (1, 7), snapshot=True), out)
    levels = out[0].bids
    expected = [BookLevel(2, 1.5), BookLevel(1, 7), BookLevel(UNSET, UNSET)]
    assert isinstance(levels, Sequence)
    assert (len(levels), [*levels], levels[0], levels[-1], levels[:2]) == (3, expected, expected[0], expected[2], expected[:2])
    assert levels == expected
    assert levels != expected[:2]
    assert (levels.index(expected[1]), levels.count(expected[2]), expected[1] in levels) == (1, 1, True)
    assert [*reversed(levels)] == expected[::-1]
    assert repr(levels) == repr(expected)
    assert pickle.loads(pickle.dumps(levels)) == expected


def test_what_is_pickled_goes_on() -> None:
    asked = BookSnapshots(2, 100)
    whole, cut = (COMPILED[1].begin_snapshots(asked) for _ in range(2))
    changes = [change((5, 1), (4, 2), (3, 3), snapshot=True), change((6, 1)), change((6, 0), (5, 0))]
    changes += [BookChange("S", "E", False, [BookLevel(1, 1)], [], to_timestamp(START_US + 200_000), to_timestamp(START_US))]
    expected: list[Message] = []
    got: list[Message] = []
    for item in changes:
        whole.update(item, expected)
        cut = pickle.loads(pickle.dumps(cut))
        cut.update(item, got)
    assert [to_json(item) for item in got] == [to_json(item) for item in expected]
    assert len(got) == 2


def test_amounts_that_are_no_numbers_stay_what_they_are_as_far_as_there_are_few() -> None:
    book = COMPILED[0].OrderBook()
    for number in range(1_500):
        book.update(change((1, f"{number}"), (2, []), snapshot=True))  # type: ignore[arg-type]
        assert [level.amount for level in book.bids()] in ([None, str(number)], [None, None])
        assert number or book.top_bids(2)[1].amount == "0"
    assert book.top_bids(2)[1].amount is None
