"""What is published is what the client got: every message, every field, once, in order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest

from tardis_machine.bronze.decoding import decode_event, to_message
from tardis_machine.messages import to_json
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import options, running_machine

ALL_TYPES = ["trade", "book_change", "derivative_ticker", "book_ticker", "trade_bar_1s", "book_snapshot_3_100ms", "quote"]


@pytest.fixture(scope="module")
def api() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi().serve_in_thread() as api:
        yield api


def published(folder: Path) -> list[Any]:
    """The events of all files, in the order of their names and rows, decoded with the generated code."""
    files = sorted(folder.rglob("*.parquet"))
    return [decode_event(value) for file in files for value in pq.read_table(file, columns=["value"])["value"].to_pylist()]


def by_stream(messages: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Order is promised for a key, not between keys."""
    streams: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for message in messages:
        streams.setdefault((message["type"], message.get("name", "")), []).append(message)
    return streams


@pytest.mark.parametrize("route", ["/replay-normalized", "/ws-replay-normalized"])
async def test_every_message_of_a_request_is_published_once(api: SampleHistoryApi, tmp_path: Path, route: str) -> None:
    asked = options(dataTypes=ALL_TYPES, to="2020-02-01T00:01:00Z", withDisconnectMessages=True)
    bus = {"dir": tmp_path / "events"}
    async with running_machine(api, tmp_path / "cache", file=bus, spool_dir=tmp_path / "spool") as client:
        if route.startswith("/ws"):
            got, code = await client.frames(route, options=json.dumps(asked))
            assert code == 1000
        else:
            got = await client.lines(asked, route)
    events = published(tmp_path / "events")
    ends = [event.session_end for event in events if event.WhichOneof("payload") == "session_end"]
    sent = [event for event in events if event.WhichOneof("payload") != "session_end"]
    assert by_stream([json.loads(to_json(to_message(event))) for event in sent]) == by_stream(got)
    assert {(event.meta["route"], event.meta["transport"]) for event in sent} == {(route, "ws" if "ws" in route else "http")}

    sequences: dict[tuple[str, str], list[int]] = {}
    for event in sent:
        sequences.setdefault((event.symbol, event.WhichOneof("payload")), []).append(event.sequence)
    assert all(numbers == list(range(len(numbers))) for numbers in sequences.values())

    [end] = ends
    assert end.complete
    counts = Counter((event.symbol, event.WhichOneof("payload")) for event in sent)
    assert {(entry.symbol, entry.payload_case): entry.count for entry in end.entries} == dict(counts)


async def test_the_same_replay_twice_has_the_same_event_ids(api: SampleHistoryApi, tmp_path: Path) -> None:
    ids = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        async with running_machine(
            api, tmp_path / "cache", workers=workers, file={"dir": folder}, spool_dir=tmp_path / f"spool{workers}"
        ) as client:
            await client.lines(options(to="2020-02-01T00:01:00Z"))
        events = [event for event in published(folder) if event.WhichOneof("payload") != "session_end"]
        ids.append([(event.event_id, event.sequence) for event in events])
        assert len({event.event_id for event in events}) == len(events)
    assert sorted(ids[0]) == sorted(ids[1])


async def test_a_client_that_leaves_ends_its_session_incomplete(api: SampleHistoryApi, tmp_path: Path) -> None:
    async with running_machine(
        api, tmp_path / "cache", file={"dir": tmp_path / "events"}, spool_dir=tmp_path / "spool"
    ) as client:
        asked = {"options": json.dumps(options(to="2020-02-01T00:20:00Z"))}
        async with client.http.get(client.url("/replay-normalized"), params=asked) as response:
            await response.content.read(1000)
    [end] = [event.session_end for event in published(tmp_path / "events") if event.WhichOneof("payload") == "session_end"]
    assert not end.complete
    assert end.reason == "the client went away"


async def test_a_request_whose_events_can_not_be_written_ahead_fails(api: SampleHistoryApi, tmp_path: Path) -> None:
    """The bus is away and the spool is full: the client is not told that all is well, and the session is not complete."""
    away = tmp_path / "disk"
    bus = {"dir": away / "events", "block_timeout": 0.5, "queue_max_bytes": 2_000_000}
    always = {"spool_mode": "always", "spool_max_bytes": 1_500_000, "spool_dir": tmp_path / "spool"}
    asked = options(dataTypes=ALL_TYPES, to="2020-02-01T00:05:00Z")
    async with running_machine(api, tmp_path / "cache", file=bus, **always) as client:
        away.rename(tmp_path / "unmounted")
        away.write_text("no folder")
        with pytest.raises(aiohttp.ClientError):
            await client.lines(asked)
        away.unlink()
        (tmp_path / "unmounted").rename(away)
    ends = [event.session_end for event in published(away / "events") if event.WhichOneof("payload") == "session_end"]
    assert [end.complete for end in ends] == [False]
    assert "--spool-mode always" in ends[0].reason


async def test_publishing_changes_no_byte_of_the_answer(api: SampleHistoryApi, tmp_path: Path) -> None:
    asked = options(dataTypes=ALL_TYPES, to="2020-02-01T00:02:00Z")
    async with running_machine(api, tmp_path / "cache") as client:
        plain = await client.get("/replay-normalized", asked)
    async with running_machine(
        api, tmp_path / "cache", file={"dir": tmp_path / "events"}, spool_dir=tmp_path / "spool"
    ) as client:
        assert await client.get("/replay-normalized", asked) == plain
        async with client.http.get(client.url("/health-check")) as response:
            assert (await response.json())["buses"]["file"]["state"] == "connected"
        async with client.http.get(client.url("/metrics")) as response:
            assert 'tardis_machine_bus_events_published_total{bus="file",payload_case="trade"}' in await response.text()
