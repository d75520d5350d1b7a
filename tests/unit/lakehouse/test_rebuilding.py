"""Books from sorted rows: what is given, when, and from which book it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tardis_machine.lakehouse.gold.rebuilding import BOOKS, CHANGE, DISCONNECT, KNOWN, TOP, Sampling, rebuild
from tests.compiled_or_not import import_as_python, import_compiled

_DECIMAL = pa.decimal128(38, 18)
_LEVELS = pa.list_(pa.struct({"price": _DECIMAL, "amount": _DECIMAL}))
_FEED = pa.schema(
    {
        "exchange": pa.string(),
        "symbol": pa.string(),
        "kind": pa.int32(),
        "local_us": pa.int64(),
        "event_us": pa.int64(),
        "is_snapshot": pa.bool_(),
        "bids": _LEVELS,
        "asks": _LEVELS,
        "level_count": pa.int64(),
        "recorder": pa.string(),
        "number": pa.int64(),
        "since_us": pa.int64(),
        "has_gap": pa.bool_(),
        "emit_from_us": pa.int64(),
        "until_us": pa.int64(),
    }
)
SECOND = 1_000_000


Number = float | Decimal


def levels(*pairs: tuple[Number, Number]) -> list[dict[str, Decimal]]:
    return [{"price": Decimal(str(price)), "amount": Decimal(str(amount))} for price, amount in pairs]


def row(
    kind: int,
    at_us: int,
    bids: Sequence[tuple[Number, Number]] = (),
    asks: Sequence[tuple[Number, Number]] = (),
    *,
    snapshot: bool = False,
    count: int | None = None,
    symbol: str = "A",
    recorder: str | None = "live",
    number: int | None = None,
    emit_from_us: int = 0,
    until_us: int | None = None,
) -> dict[str, Any]:
    book = (snapshot, levels(*bids), levels(*asks), count)
    return dict(
        zip(
            _FEED.names,
            ("x", symbol, kind, at_us, at_us, *book, recorder, number, None, None, emit_from_us, until_us),
            strict=True,
        )
    )


def rebuilt(rows: Sequence[dict[str, Any]], *samplings: Sampling, cut: int = 1000) -> list[dict[str, Any]]:
    batches = [pa.RecordBatch.from_pylist(rows[start : start + cut], _FEED) for start in range(0, len(rows), cut)]
    return [item for batch in rebuild(samplings, batches) for item in batch.to_pylist()]


def of(items: Sequence[dict[str, Any]], product: str) -> list[tuple[Any, ...]]:
    def side(given: Sequence[dict[str, Decimal]] | None) -> list[tuple[float, float]] | None:
        return None if given is None else [(float(level["price"]), float(level["amount"])) for level in given]

    chosen = [item for item in items if item["product"] == product]
    return [(round(item["start"].timestamp() * SECOND), side(item["bids"]), side(item["asks"])) for item in chosen]


FEED = [
    row(CHANGE, 1, [(5, 1)], [(9, 9)]),  # before any snapshot: ignored
    row(CHANGE, 10, [(99, 5), (98, 7)], [(101, 3)], snapshot=True),
    row(CHANGE, 20, [(98, 8)]),  # not at the top
    row(CHANGE, 30, [(99, 0)]),
    row(CHANGE, 30, [(99.5, 2)]),  # the same instant
    row(CHANGE, SECOND + 1, [], [(101, 0), (102, 4)]),
    row(DISCONNECT, 3 * SECOND),
    row(CHANGE, 3 * SECOND + 1, [(50, 1)]),  # no book
    row(CHANGE, 4 * SECOND, [(90, 1)], [(91, 1)], snapshot=True),
]


@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_tops_and_states(cut: int) -> None:
    items = rebuilt(FEED, Sampling("two", 2, SECOND), cut=cut)
    assert of(items, TOP) == [
        (10, [(99, 5)], [(101, 3)]),
        (30, [(99.5, 2)], [(101, 3)]),
        (SECOND + 1, [(99.5, 2)], [(102, 4)]),
        (3 * SECOND, [], []),
        (4 * SECOND, [(90, 1)], [(91, 1)]),
    ]
    assert of(items, "two") == [
        (0, [(99.5, 2), (98, 8)], [(101, 3)]),
        (SECOND, [(99.5, 2), (98, 8)], [(102, 4)]),
        (4 * SECOND, [(90, 1)], [(91, 1)]),
    ]
    assert of(items, BOOKS) == [(0, [(90, 1)], [(91, 1)])]
    flows = [item["order_flow"] for item in items if item["product"] == TOP]
    # A better bid brings its amount; an ask that went away takes its own; nothing is said where a side is missing.
    assert flows == [None, 2, 3, None, None]


def test_it_goes_on_from_a_known_book_and_gives_what_is_new() -> None:
    whole = rebuilt(FEED[:6], Sampling("two", 2, SECOND))
    known = row(KNOWN, 20, [(99, 5), (98, 8)], [(101, 3)], snapshot=True)
    items = rebuilt([{**line, "emit_from_us": 30} for line in (known, *FEED[3:6])], Sampling("two", 2, SECOND))
    assert of(items, TOP) == of(whole, TOP)[1:]
    assert of(items, "two") == of(whole, "two")
    # At a snapshot that replaces the book it ends: the rest of that second, and of that hour, is as it was.
    until = 4 * SECOND
    items = rebuilt([{**line, "until_us": until} for line in FEED], Sampling("two", 2, SECOND))
    assert of(items, TOP) == of(rebuilt(FEED), TOP)
    assert [start for start, _, _ in of(items, "two")] == [0, SECOND]
    assert of(items, BOOKS) == []
    # A connection that was lost before leaves no book to go on from.
    nothing = {**row(KNOWN, 20), "bids": None, "asks": None}
    assert of(rebuilt([nothing, FEED[2]]), TOP) == []


def test_levels_one_by_one_forget_the_book_once() -> None:
    feed = [
        row(CHANGE, 5, [(50, 1)], [(60, 1)], snapshot=True),
        *(row(CHANGE, 10, [(price, 1)], snapshot=True, count=3) for price in (99, 98)),
        row(CHANGE, 10, [], [(101, 1)], snapshot=True, count=3),
        row(CHANGE, 20, [(100, 2)], count=1),
    ]
    items = rebuilt(feed, Sampling("all", 10, SECOND))
    assert of(items, "all") == [(0, [(100, 2), (99, 1), (98, 1)], [(101, 1)])]


def test_symbols_have_books_of_their_own_and_crossed_levels_are_counted() -> None:
    feed = [
        row(CHANGE, 10, [(99, 1)], [(101, 1), (103, 1)], snapshot=True),
        row(CHANGE, 20, [(102, 1)]),  # the ask at 101 is stale
        row(CHANGE, 10, [(9, 1)], [(11, 1)], snapshot=True, symbol="B"),
    ]
    items = rebuilt(feed)
    tops = [item for item in items if item["product"] == TOP]
    assert [(item["symbol"], item["crossed_levels"]) for item in tops] == [("A", 0), ("A", 1), ("B", 0)]
    assert of(items, TOP)[1] == (20, [(102, 1)], [(103, 1)])


def test_numbers_are_exact_and_what_is_none_is_passed_over() -> None:
    widest, below, smallest = (Decimal(text) for text in (f"{'9' * 20}.{'9' * 18}", f"{'9' * 20}.{'9' * 17}8", f"0.{'0' * 17}1"))
    book = row(CHANGE, 10, snapshot=True)
    book["bids"] = [
        {"price": None, "amount": Decimal(1)},
        {"price": below, "amount": widest},
        {"price": widest, "amount": None},
        None,
    ]
    book["asks"] = [{"price": widest, "amount": smallest}, {"price": -smallest, "amount": Decimal(0)}]
    unknown = {**row(CHANGE, 20), "bids": None, "asks": None}
    better = row(CHANGE, 30, [(widest, widest)])  # the ask at this price is stale
    again = row(CHANGE, 40, [], [(widest, widest)])  # and now the bid
    tops = [item for item in rebuilt([book, unknown, better, again], cut=1) if item["product"] == TOP]
    assert [(item["bids"], item["asks"]) for item in tops] == [
        (levels((below, widest)), levels((widest, smallest))),
        (levels((widest, widest)), []),
        (levels((below, widest)), levels((widest, widest))),
    ]
    # Twice the widest amount is more than a number can have.
    flow = [
        row(CHANGE, 10, [(1, widest)], [(9, widest)], snapshot=True),
        row(CHANGE, 20, [(2, widest)], [(9, 0), (10, widest)]),
        row(CHANGE, 30, [(3, smallest)]),
    ]
    assert [item["order_flow"] for item in rebuilt(flow) if item["product"] == TOP] == [None, None, smallest]


def test_batches_without_rows_change_nothing() -> None:
    empty = pa.RecordBatch.from_pylist([], _FEED)
    batches = [empty, pa.RecordBatch.from_pylist(FEED, _FEED), empty]
    assert [item for batch in rebuild((), batches) for item in batch.to_pylist()] == rebuilt(FEED)
    assert list(rebuild((), [empty])) == []


def heard(recorder: str, at_us: int, price: int, *, snapshot: bool = False, number: int | None = None) -> dict[str, Any]:
    """A change that tells who was heard: the best bid."""
    return row(CHANGE, at_us, [(price, at_us)], [(1000, 1)], snapshot=snapshot, recorder=recorder, number=number)


def followed(rows: Sequence[dict[str, Any]], **options: Any) -> list[tuple[int, float | None]]:
    """When the best bid changed, and what it then was."""
    return [(at, bids[0][0] if bids else None) for at, bids, _ in of(rebuilt(rows, **options), TOP)]


def test_of_two_recorders_the_one_whose_book_stands_is_followed_and_the_other_when_it_is_lost() -> None:
    feed = [
        heard("a", 10, 1, snapshot=True),
        heard("b", 20, 2, snapshot=True),
        heard("b", 30, 3),
        heard("a", 40, 4),
        row(DISCONNECT, 50, recorder="a"),
        heard("a", 60, 5),  # no book
        heard("a", 70, 6, snapshot=True),  # younger than the other's
        heard("b", 80, 7),
        row(DISCONNECT, 90, recorder="b"),
        row(DISCONNECT, 95, recorder="a"),
        heard("b", 99, 8, snapshot=True),
    ]
    tops = [(10, 1), (40, 4), (50, 3), (80, 7), (90, 6), (95, None), (99, 8)]
    for cut in (1, 1000):
        assert followed(feed, cut=cut) == tops
    flows = [item["order_flow"] for item in rebuilt(feed) if item["product"] == TOP]
    # From one recorder's book to another's nothing flows.
    assert flows[2] is None
    assert flows[1] is not None


def test_a_recorder_that_lost_a_change_is_left_for_one_that_did_not() -> None:
    feed = [
        heard("a", 10, 1, snapshot=True, number=0),
        heard("b", 20, 2, snapshot=True, number=0),
        heard("a", 30, 3, number=2),
        heard("b", 40, 4, number=1),
        heard("b", 50, 5, number=9),  # now both have
        heard("a", 60, 6, snapshot=True, number=3),
    ]
    assert followed(feed) == [(10, 1), (30, 2), (40, 4), (50, 3), (60, 6)]


def test_a_recorder_that_is_no_longer_heard_is_left() -> None:
    late = 11 * SECOND
    feed = [heard("a", 10, 1, snapshot=True), heard("b", 20, 2, snapshot=True), heard("b", late, 3), heard("a", late + 5, 4)]
    assert followed(feed) == [(10, 1), (late, 3), (late + 5, 4)]
    # Nobody is heard for long: the last one who was is as good as another.
    assert followed([feed[0], feed[1], row(DISCONNECT, 2 * late, recorder="b")]) == [(10, 1), (2 * late, None)]
    # After a day it has no book to go on with.
    day = 24 * 3600 * SECOND
    assert followed([feed[0], feed[1], heard("b", day + 100, 3), heard("a", day + 200, 4)]) == [(10, 1), (day + 100, 3)]


def test_every_recorder_goes_on_from_its_own_book() -> None:
    hour = 3600 * SECOND
    feed = [
        heard("a", 10, 1, snapshot=True, number=0),
        heard("b", 20, 2, snapshot=True, number=0),
        heard("a", hour - 2, 3, number=1),
        heard("b", hour - 1, 4, number=1),
        heard("a", hour + 1, 5, number=3),  # one is lost
        heard("b", hour + 2, 6, number=2),
    ]
    whole = rebuilt(feed)
    books = [item for item in whole if item["product"] == BOOKS and item["start"].timestamp() == 0]
    assert [(item["recorder"], item["sequence"], item["has_gap"]) for item in books] == [("a", 1, False), ("b", 1, False)]
    known = [
        {
            **row(KNOWN, round(item["local_ts"].timestamp() * SECOND), snapshot=True, recorder=item["recorder"]),
            "bids": item["bids"],
            "asks": item["asks"],
            "number": item["sequence"],
            "since_us": round(item["since"].timestamp() * SECOND),
            "has_gap": item["has_gap"],
        }
        for item in books
    ]
    later = [{**line, "emit_from_us": hour} for line in (*known, *feed[4:])]
    expected = [top for top in of(whole, TOP) if top[0] >= hour]
    assert of(rebuilt(later), TOP) == expected
    assert [bids[0][0] for _, bids, _ in expected] == [4, 6]
    # A book of an earlier release, which does not say whose it is.
    nobody = {**known[0], "recorder": None, "number": None, "since_us": None, "has_gap": None}
    assert followed([nobody, heard("b", hour + 2, 6), heard("c", hour + 3, 7)]) == [(hour + 2, 6)]


def test_compiled_it_gives_what_it_gives_as_python() -> None:
    name = "tardis_machine.lakehouse.gold.rebuilding"
    [compiled], [python] = import_compiled(name), import_as_python(name)
    assert (compiled.rebuild.__module__, python.rebuild.__module__) == (f"{name}_compiled", name)
    chance = Random(7)
    us = 0
    rows = []
    for symbol in ("A", "B"):
        kinds = [KNOWN, *chance.choices((CHANGE, DISCONNECT), (60, 1), k=3_000)]
        for number, kind in enumerate(kinds):
            us += chance.choice((0, 0, 1, 1_000, 70_000, 4 * SECOND))
            recorder = chance.choice(("live", "live", "live", "other", None))
            item = row(kind, us, snapshot=number % 40 == 0, symbol=symbol, recorder=recorder, emit_from_us=50 * SECOND)
            for side, lowest in (("bids", 90), ("asks", 99)):
                item[side] = [
                    chance.choice([None, level]) if chance.random() < 0.02 else level
                    for level in levels(
                        *(
                            (lowest + chance.randrange(10), chance.choice((0, 1, 2.5, Decimal("1e19"))))
                            for _ in range(chance.randrange(4))
                        )
                    )
                ]
            item["number"] = number if recorder == "live" and chance.random() < 0.99 else None
            item["level_count"] = 3 if number % 80 < 3 else None
            item["is_snapshot"] = number % 80 < 3 or number % 40 == 0 or None
            item["event_us"] = chance.choice((None, us))
            rows.append(item)
    samplings = [Sampling("two", 2, SECOND), Sampling("all", None, 100_000)]
    batches = [pa.RecordBatch.from_pylist(rows[start : start + 700], _FEED).slice(3) for start in range(0, len(rows), 700)]
    expected = [item for batch in python.rebuild(samplings, batches) for item in batch.to_pylist()]
    assert [item for batch in compiled.rebuild(samplings, batches) for item in batch.to_pylist()] == expected
    assert {item["product"] for item in expected} == {TOP, BOOKS, "seconds", "two", "all"}
    assert {item["crossed_levels"] for item in expected} >= {None, 0, 1, 2}
