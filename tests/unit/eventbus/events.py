"""Events and records for tests, without the cost or the rules of encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count

from tardis_machine.bronze.event import Event, EventStream
from tardis_machine.eventbus.contract import Record, Route
from tardis_machine.eventbus.delivery.accounts import Books

_numbers = count()


def make_stream(
    symbol: str = "XBTUSD", payload_case: str = "trade", session: str = "s1", exchange: str = "bitmex", **meta: str
) -> EventStream:
    return EventStream(
        session_id=session,
        exchange=exchange,
        symbol=symbol,
        payload_case=payload_case,
        data_type=payload_case,
        source="tardis-machine/test",
        origin="replay",
        meta={"session_id": session, **meta},
    )


def make_events(stream: EventStream, count: int, *, first: int = 0, size: int = 50) -> list[Event]:
    """Events with sequences from `first`; no two have the same id."""
    return [
        Event(stream, next(_numbers).to_bytes(16, "big"), b"v" * size, sequence, 1_600_000_000_000_000 + sequence)
        for sequence in range(first, first + count)
    ]


def make_route(lane: str, payload_case: str = "trade", session: str = "s1") -> Route:
    return Route(
        destination="base",
        key=lane,
        payload_case=payload_case,
        session_id=session,
        headers_before=(),
        headers_after=(),
        has_headers=False,
        value_suffix=b"",
        overhead_bytes=0,
        lane=("base", lane),
    )


def make_record(route: Route, sequence: int, size: int = 50) -> Record:
    stream = make_stream(route.key, route.payload_case, route.session_id)
    return Record(route, Event(stream, next(_numbers).to_bytes(16, "big"), b"v" * size, sequence, sequence))


def cases_of(records: Iterable[Record]) -> Counter[str]:
    """How many there are of each payload case."""
    return Counter(record.route.payload_case for record in records)


def is_balanced(books: Books) -> bool:
    """Whether every record is counted in one place."""
    places = books.queued + books.in_flight + books.spooled + books.confirmed + books.dead_lettered + books.dropped
    return books.accepted + books.carried == places
