"""What was published is found again in history, by its numbers and ids; what history has otherwise is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event, digest_of
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.history.client import HistoryClient
from tardis_machine.lakehouse.refetching import Found, Hole, Lacking, Promise, Unfit, find_refetched
from tardis_machine.messages import to_timestamp
from tardis_machine.pipeline.fetching import fetch_lines
from tardis_machine.pipeline.replay import NormalizedReplay
from tardis_machine.pipeline.request import NormalizedRequest, parse_normalized_request
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording

MINUTE_US = 60_000_000
START_US = 1_580_515_200_000_000  # 2020-02-01


@pytest.fixture(scope="module")
def api() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi(Recording(SampleMarket(1, 0.2), disconnects_per_day=0)).serve_in_thread() as api:
        yield api


class Published:
    """Four minutes of one data type, as a session published them."""

    def __init__(
        self, api: SampleHistoryApi, cache: Path, data_type: str, *, book_changes: str = "message", start_us: int = START_US
    ) -> None:
        self._api, self._cache, self._data_type, self._start_us = api, cache, data_type, start_us
        self._encoder = BronzeEncoder(session_id="s", origin="replay", source="tm", book_changes=book_changes)  # type: ignore[arg-type]
        self.events: list[Event] = asyncio.run(self._publish())
        self.case = self.events[0].stream.payload_case

    def request_of(self, start_us: int, end_us: int) -> NormalizedRequest:
        span = {"from": to_timestamp(start_us), "to": to_timestamp(end_us)}
        return parse_normalized_request({"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": [self._data_type], **span})

    async def _publish(self) -> list[Event]:
        found: list[Event] = []
        request = self.request_of(self._start_us, self._start_us + 4 * MINUTE_US)
        replay = NormalizedReplay(request)
        async with HistoryClient(self._api.url, None, self._cache) as client:
            async for period, lines in fetch_lines(client, request, replay.periods()):
                found += self._encoder.encode(replay.feed(period, lines))
        return found

    def lacking(self, *holes: Hole) -> Lacking:
        """The series without the events of holes, as the lake knows it."""
        there = [event for event in self.events if not any(hole.first <= event.sequence <= hole.last for hole in holes)]
        item = Lacking("kafka", "s", "bitmex", "XBTUSD", self.case, [*holes], source="tm", names=[self._data_type])
        item.neighbours = {event.sequence: (event.event_id, event.local_ts_us) for event in there}
        item.there = len(there), digest_of([event.event_id for event in there])
        item.last_there = max((event.sequence for event in there), default=-1)
        first, last = self.events[0], self.events[-1]
        item.started_us = first.local_ts_us
        digest = digest_of([event.event_id for event in self.events])
        item.promise = Promise(len(self.events), 0, last.sequence, first.local_ts_us, last.local_ts_us, digest)
        return item

    def refetch(self, item: Lacking) -> list[Found]:
        async def refetch() -> list[Found]:
            async with HistoryClient(self._api.url, None, self._cache) as client:
                return await find_refetched(item, client, self.request_of)

        return asyncio.run(refetch())

    def expect(self, holes: Sequence[Hole]) -> list[tuple[int, bytes]]:
        return [(e.sequence, e.event_id) for hole in holes for e in self.events[hole.first : hole.last + 1]]


@pytest.mark.parametrize(
    ("data_type", "book_changes", "after_us"),
    [
        ("trade", "message", 0),
        ("book_change", "message", 0),
        ("book_change", "level", 0),
        # These depend on what was said before, and on when the session began: this one long after the snapshot of the day.
        ("book_change", "message", 60 * MINUTE_US),
        ("derivative_ticker", "message", 0),
        ("trade_bar_7ticks", "message", 0),
        ("book_snapshot_3_10s", "message", 0),
    ],
)
def test_holes_anywhere_are_filled_with_what_was_published(
    api: SampleHistoryApi, tmp_path: Path, data_type: str, book_changes: str, after_us: int
) -> None:
    published = Published(api, tmp_path, data_type, book_changes=book_changes, start_us=START_US + after_us)
    last = len(published.events) - 1
    assert last > 8
    for holes in ([Hole(0, 1)], [Hole(last, last)], [Hole(3, 4), Hole(6, last - 2)], [Hole(0, last)]):
        found = published.refetch(published.lacking(*holes))
        assert [(event.sequence, event.event_id) for event in found] == published.expect(holes)
        for event in found:
            value = NormalizedEvent.FromString(event.value)
            assert (value.sequence, value.event_id, value.meta["session_id"]) == (event.sequence, event.event_id, "s")


def test_only_the_minutes_of_a_hole_are_read_where_nothing_depends_on_those_before(api: SampleHistoryApi, tmp_path: Path) -> None:
    published = Published(api, tmp_path / "published", "trade")
    in_third = [event for event in published.events if (event.local_ts_us - START_US) // MINUTE_US == 2]
    hole = Hole(in_third[1].sequence, in_third[3].sequence)
    published._cache = tmp_path / "empty"
    api.requests.clear()
    assert len(published.refetch(published.lacking(hole))) == 3
    assert {(request.start_us, request.minutes) for request in api.requests} == {(START_US + 2 * MINUTE_US, 1)}


def test_what_is_not_what_was_published_is_refused(api: SampleHistoryApi, tmp_path: Path) -> None:
    published = Published(api, tmp_path, "trade")
    other = published.lacking(Hole(4, 5))
    other.neighbours[3] = (b"x" * 16, other.neighbours[3][1])
    with pytest.raises(Unfit, match="what history has now is not what was published: it lacks an event that the lake has"):
        published.refetch(other)
    fewer = published.lacking(Hole(4, 5))
    fewer.neighbours[6] = fewer.neighbours[7]
    with pytest.raises(Unfit, match="it has another number of events"):
        published.refetch(fewer)
    promised = published.lacking(Hole(4, 5))
    assert promised.promise is not None
    promised.promise = promised.promise._replace(digest=promised.promise.digest ^ 1)
    with pytest.raises(Unfit, match="its digest is not that of the ledger"):
        published.refetch(promised)
    unknown = published.lacking(Hole(0, 1))
    unknown.promise = None
    with pytest.raises(Unfit, match="the session has no ledger, so nobody knows when its first event was"):
        published.refetch(unknown)
