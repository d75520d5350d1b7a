"""Events that tests publish, and what must be true of them on the other side."""

from __future__ import annotations

from collections.abc import Sequence

from tardis_machine.bronze.event import Event
from tardis_machine.eventbus.publisher import Publisher
from tests.unit.eventbus.events import make_events, make_stream

TRADES = make_stream("XBTUSD", "trade")
BOOKS = make_stream("XBTUSD", "book_change")
# What waits to be written to disk may be one batch more than the queue holds.
ONE_BATCH = 45_000


def interleaved(count: int, first: int = 0, size: int = 50) -> list[Event]:
    pairs = zip(
        make_events(TRADES, count, first=first, size=size), make_events(BOOKS, count, first=first, size=size), strict=True
    )
    return [event for pair in pairs for event in pair]


async def start_session(publisher: Publisher, session: str = "s1") -> None:
    await publisher.session_start(session, source="tardis-machine/test", origin="replay", meta={"request_id": "r1"})


def assert_in_order(events: Sequence[Event]) -> None:
    last: dict[tuple[str, str], int] = {}
    for event in events:
        lane = (event.stream.symbol, event.stream.payload_case)
        assert event.sequence > last.get(lane, -1)
        last[lane] = event.sequence
