"""Events that are published together: by stream, and from one process to another."""

from __future__ import annotations

import pickle

from tardis_machine.bronze.bundle import Bundle
from tardis_machine.bronze.event import Tally, digest_of
from tardis_machine.processes.jobs.contract import Events
from tests.unit.eventbus.events import make_events, make_stream

TRADES, BOOKS = make_stream("A"), make_stream("A", "book_change")
FIRST, SECOND, THIRD = make_events(TRADES, 2, size=5), make_events(BOOKS, 1, size=7), make_events(TRADES, 1, first=2, size=9)


def facts(bundle: Bundle) -> list[tuple[object, ...]]:
    def of_share(tally: Tally) -> tuple[object, ...]:
        return tally.stream, tally.count, tally.first, tally.last, tally.digest

    return [
        (*of_share(columns.tally(stream)), columns.size_bytes, columns.largest_bytes)
        for stream, columns in zip(bundle.streams, bundle.columns, strict=True)
    ]


def test_columns_are_by_stream() -> None:
    events = FIRST + SECOND + THIRD
    bundle = Bundle.of(events)
    assert list(bundle) == events
    assert bundle.stream_indexes == [0, 0, 1, 0]
    assert facts(bundle) == [
        (TRADES, 3, FIRST[0], THIRD[0], digest_of([event.event_id for event in FIRST + THIRD]), 19, 9),
        (BOOKS, 1, SECOND[0], SECOND[0], digest_of([SECOND[0].event_id]), 7, 7),
    ]
    assert Bundle.of(bundle) is bundle


def test_events_cross_to_another_process_as_a_bundle() -> None:
    events = FIRST + SECOND + THIRD
    crossed = pickle.loads(pickle.dumps(Events(events))).events
    assert isinstance(crossed, Bundle)
    assert list(crossed) == events
    assert crossed.stream_indexes == Bundle.of(events).stream_indexes
    assert facts(crossed) == facts(Bundle.of(events))
    # Objects of streams are shared again: routes are found by them.
    assert crossed[0].stream is crossed[3].stream


def test_no_events_cross_too() -> None:
    assert list(pickle.loads(pickle.dumps(Events([]))).events) == []


def test_a_digest_is_the_sum_of_ids() -> None:
    largest = b"\xff" * 16
    for count in (*range(12), 1000, 1001):
        ids = [largest, *(number.to_bytes(8) + largest[:8] for number in range(count))]
        assert digest_of(ids) == sum(map(int.from_bytes, ids)) % (1 << 128)
    assert digest_of([]) == 0
