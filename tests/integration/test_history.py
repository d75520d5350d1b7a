"""Slices in order from a real HTTP server, and from the cache without one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from pathlib import Path

import pytest
from aiohttp import web

from tardis_machine.errors import OptionsError
from tardis_machine.filters import Filter
from tardis_machine.history.cache import clear_cache
from tardis_machine.history.client import HistoryClient
from tardis_machine.history.reader import lines_between, read_slice, split_lines
from tardis_machine.history.slice import MINUTE_US
from tests.integration.upstream import Asked, Upstream, at, collect, data_of, recorded

TRADES = [Filter("trade", ["XBTUSD"])]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as server:
        yield server


def offline(cache_dir: Path) -> HistoryClient:
    """Any call it makes is refused, and it tries but once."""
    return HistoryClient("http://127.0.0.1:9/v1", cache_dir=cache_dir, attempts=1)


async def test_last_then_first_then_the_rest_by_suggested_size(upstream: Upstream, tmp_path: Path) -> None:
    upstream.suggested = {0: 3, 19: 5}
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        items = await collect(client, 0, 20, TRADES)
    assert upstream.windows[:2] == [(19, 1), (0, 1)]
    assert sorted(upstream.windows[2:]) == [(1, 5), (6, 5), (11, 5), (16, 3)]
    assert data_of(items) == recorded(at(0), 20)
    assert {asked.from_us for asked in upstream.asked} == {at(0)}
    assert [asked.offset for asked in upstream.asked] == [minute for minute, _ in upstream.windows]


async def test_without_filters_each_minute_by_itself(upstream: Upstream, tmp_path: Path) -> None:
    upstream.suggested = {0: 3, 7: 5}
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        items = await collect(client, 0, 8)
    assert upstream.windows[:2] == [(7, 1), (0, 1)]
    assert sorted(upstream.windows) == [(minute, 1) for minute in range(8)]
    assert data_of(items) == recorded(at(0), 8)


@pytest.mark.parametrize(("start", "end", "windows"), [(4, 5, [(4, 1)]), (4, 6, [(5, 1), (4, 1)]), (4, 4, []), (4.5, 4.5, [])])
async def test_short_ranges(upstream: Upstream, tmp_path: Path, start: float, end: float, windows: list[tuple[int, int]]) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        items = await collect(client, start, end, TRADES)
    assert upstream.windows == windows
    assert data_of(items) == (recorded(at(4), len(windows)) if windows else b"")


async def test_what_is_sent(upstream: Upstream, tmp_path: Path) -> None:
    upstream.suggested = {0: 2}
    filters = [Filter("trade", ["币USDT", "A&B=C", "it's(~*!)"]), Filter("instrument"), Filter("trade", ["A&B=C"])]
    async with HistoryClient(upstream.url, "server-key", tmp_path, user_agent="me/1") as client:
        await collect(client, 0.7, 5, filters)
        await collect(client, 5, 6, api_key="own-key")
    async with HistoryClient(upstream.url + "/", cache_dir=tmp_path) as client:
        await collect(client, 6, 7)
    last, middle = upstream.asked[0], next(asked for asked in upstream.asked if asked.minutes == 2)
    filters_text = '[{"channel":"instrument"},{"channel":"trade","symbols":["A&B=C","it\'s(~*!)","币USDT"]}]'
    encoded = (
        "%5B%7B%22channel%22%3A%22instrument%22%7D%2C%7B%22channel%22%3A%22trade%22%2C%22symbols%22%3A%5B%22A%26B%3DC%22%2C"
        "%22it's(~*!)%22%2C%22%E5%B8%81USDT%22%5D%7D%5D"
    )
    assert last.query == f"from=2019-06-01T00:00:00.000Z&offset=4&compression=zstd&filters={encoded}"
    assert middle.query == f"from=2019-06-01T00:00:00.000Z&offset=1&compression=zstd&sliceSize=2&filters={encoded}"
    assert last.filters == json.loads(filters_text)
    assert last.headers["Authorization"] == "Bearer server-key"
    assert last.headers["Accept-Encoding"] == "zstd, gzip"
    assert last.headers["User-Agent"] == "me/1"
    own, none = upstream.asked[-2:]
    assert own.query == "from=2019-06-01T00:05:00.000Z&offset=0&compression=zstd"
    assert own.headers["Authorization"] == "Bearer own-key"
    assert "Authorization" not in none.headers
    assert none.headers["User-Agent"].startswith("tardis-machine/")
    folder = tmp_path / "feeds" / "bitmex" / hashlib.sha256(filters_text.encode()).hexdigest() / "2019" / "06" / "01" / "00"
    assert sorted(path.name for path in folder.iterdir()) == ["00.json.zst", "01.size-2.json.zst", "03.json.zst", "04.json.zst"]


@pytest.mark.parametrize(
    ("encoding", "frames", "extension"),
    [("zstd", 1, "zst"), ("zstd", 7, "zst"), ("gzip", 1, "gz"), ("gzip", 3, "gz"), ("none", 1, "gz")],
)
async def test_encodings_are_stored_as_they_came(
    upstream: Upstream, tmp_path: Path, encoding: str, frames: int, extension: str
) -> None:
    upstream.encoding, upstream.frames = encoding, frames
    async with HistoryClient(upstream.url, cache_dir=tmp_path, compression="zstd-multiframe") as client:
        items = await collect(client, 0, 5)
    assert data_of(items) == recorded(at(0), 5)
    for item in items:
        assert item.path is not None
        assert item.path.endswith(f".json.{extension}")
        assert Path(item.path).read_bytes() == upstream.compress(recorded(item.start_us))
    assert "compression=zstd-multiframe" in upstream.asked[0].query


@pytest.mark.parametrize("suggested", [1, 4])
async def test_a_cached_replay_needs_no_network(upstream: Upstream, tmp_path: Path, suggested: int) -> None:
    upstream.suggested = {55: suggested}
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        await collect(client, 55, 75, TRADES)
    async with offline(tmp_path) as client:
        assert data_of(await collect(client, 55, 75, TRADES)) == recorded(at(55), 20)
        # Also parts of it, which begin and end inside of files.
        assert data_of(await collect(client, 57, 73, TRADES)) == recorded(at(57), 16)
        assert data_of(await collect(client, 61, 62, TRADES)) == recorded(at(61))


def put(cache_dir: Path, spelling: str, name: str, minute: int, minutes: int, upstream: Upstream) -> None:
    digest = hashlib.sha256(spelling.encode()).hexdigest()
    path = cache_dir / "feeds" / "bitmex" / digest / "2019" / "06" / "01" / "00" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(upstream.compress(recorded(at(minute), minutes)))


@pytest.mark.parametrize("spelling", ['[{"channel":"trade"}]', '[{"channel":"trade","symbols":null}]'])
async def test_a_cache_of_the_node_or_python_client_is_used_as_it_is(tmp_path: Path, spelling: str) -> None:
    upstream = Upstream()
    upstream.encoding = "gzip"
    put(tmp_path, spelling, "00.json.gz", 0, 1, upstream)
    upstream.encoding = "zstd"
    put(tmp_path, spelling, "01.size-5.json.zst", 1, 5, upstream)
    put(tmp_path, spelling, "06.size-3.json.zst", 6, 3, upstream)
    put(tmp_path, spelling, "09.json.zst", 9, 1, upstream)
    async with offline(tmp_path) as client:
        items = await collect(client, 0, 10, [Filter("trade")])
    assert data_of(items) == recorded(at(0), 10)
    assert [item.minutes for item in items] == [1, 5, 3, 1]
    assert [item.encoding for item in items] == ["gz", "zst", "zst", "zst"]


async def test_only_gaps_are_fetched_and_the_size_is_learnt_on_the_way(upstream: Upstream, tmp_path: Path) -> None:
    spelling = '[{"channel":"trade","symbols":["XBTUSD"]}]'
    for minute in (0, 5, 6):
        put(tmp_path, spelling, f"{minute:02}.json.zst", minute, 1, upstream)
    upstream.suggested = {19: 4}
    async with HistoryClient(upstream.url, cache_dir=tmp_path, concurrency=4) as client:
        items = await collect(client, 0, 20, TRADES)
    assert data_of(items) == recorded(at(0), 20)
    assert upstream.windows[0] == (19, 1)
    assert sorted(upstream.windows[1:]) == [(1, 4), (7, 4), (11, 4), (15, 4)]


async def test_both_ends_cached_still_learn_the_size(upstream: Upstream, tmp_path: Path) -> None:
    spelling = '[{"channel":"trade","symbols":["XBTUSD"]}]'
    put(tmp_path, spelling, "00.json.zst", 0, 1, upstream)
    put(tmp_path, spelling, "59.json.zst", 59, 1, upstream)
    upstream.suggested = dict.fromkeys(range(60), 10)
    async with HistoryClient(upstream.url, cache_dir=tmp_path, concurrency=4) as client:
        items = await collect(client, 0, 60, TRADES)
    assert data_of(items) == recorded(at(0), 60)
    assert len(upstream.asked) < 15
    assert max(minutes for _, minutes in upstream.windows) == 10


async def test_a_thousand_replays_of_one_asker_do_not_hold_up_another(upstream: Upstream, tmp_path: Path) -> None:
    """Answers to the first asker never come; the second has its own at once."""

    async def hang(asked: Asked, _: web.Request) -> None:
        if asked.exchange == "bitmex":
            await asyncio.Event().wait()

    upstream.fault = hang
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        greedy = [asyncio.create_task(collect(client, minute, minute + 1, TRADES, asker="greedy")) for minute in range(1000)]
        while upstream.under_way < 50:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(20), aclosing(client.slices("deribit", at(0), at(8), asker="modest")) as items:
            assert data_of([item async for item in items]) == recorded(at(0), 8)
        assert upstream.under_way == 50
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)


async def test_seconds_are_honoured(upstream: Upstream, tmp_path: Path) -> None:
    start_us, end_us = at(1) + 40_000_000, at(1) + 50_000_000
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        items = [item async for item in client.slices("bitmex", start_us, end_us)]
        lines = [line for item in items for line in lines_between(split_lines(read_slice(item)), start_us, end_us)]
    assert upstream.windows == [(1, 1)]
    assert lines == [b'2019-06-01T00:01:40.0000000Z {"minute":1,"second":40}']


async def test_at_most_sixty_at_a_time_and_a_slow_reader_holds_them_up(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 0.05
    async with (
        HistoryClient(upstream.url, cache_dir=tmp_path) as client,
        aclosing(client.slices("bitmex", at(0), at(1440))) as items,
    ):
        first = await anext(items)
        await asyncio.sleep(1.0)
        assert first.start_us == at(0)
        assert len(upstream.asked) == 61
        assert 50 <= upstream.most_under_way <= 60
        for _ in range(5):
            await anext(items)
        await asyncio.sleep(0.3)
        assert len(upstream.asked) == 66


async def test_large_slices_are_fetched_fewer_at_a_time(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes = len(upstream.compress(recorded(at(0))))
    monkeypatch.setattr("tardis_machine.history.client.LOOK_AHEAD_BYTES", size_bytes * 10)
    async with (
        HistoryClient(upstream.url, cache_dir=tmp_path) as client,
        aclosing(client.slices("bitmex", at(0), at(600))) as items,
    ):
        await anext(items)
        await asyncio.sleep(0.3)
        assert 9 <= len(upstream.asked) <= 12


async def test_a_replay_of_a_day_is_complete(upstream: Upstream, tmp_path: Path) -> None:
    upstream.suggested = {0: 10}
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        items = await collect(client, 0, 1440, TRADES)
    assert data_of(items) == recorded(at(0), 1440)
    assert len(upstream.asked) == 2 + 144


async def test_two_requests_for_the_same_slices_fetch_them_once(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 0.05
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        results = await asyncio.gather(*(collect(client, 0, 10) for _ in range(5)))
    assert sorted(upstream.windows) == [(minute, 1) for minute in range(10)]
    assert all(data_of(items) == recorded(at(0), 10) for items in results)


async def test_a_waiter_that_leaves_does_not_stop_the_fetch_for_others(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 0.2
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        first, second = (asyncio.create_task(collect(client, 0, 1)) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert data_of(await second) == recorded(at(0))
    assert upstream.windows == [(0, 1)]


async def test_other_keys_are_other_fetches(upstream: Upstream, tmp_path: Path) -> None:
    """One user's refusal must not become another's."""
    upstream.delay_s = 0.05
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        await asyncio.gather(collect(client, 0, 1, api_key="a"), collect(client, 0, 1, api_key="b"))
    assert {asked.headers["Authorization"] for asked in upstream.asked} == {"Bearer a", "Bearer b"}


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


async def test_auto_cleanup_removes_what_the_replay_brought_and_nothing_else(upstream: Upstream, tmp_path: Path) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        for start, end in ((5, 7), (12, 13)):
            await collect(client, start, end)
        before = files_in(tmp_path)
        assert len(before) == 3
        items = await collect(client, 0, 10, auto_cleanup=True)
        assert data_of(items) == recorded(at(0), 10)
        assert files_in(tmp_path) == before
        async with aclosing(client.slices("bitmex", at(0), at(100), auto_cleanup=True)) as left:
            await anext(left)
            await asyncio.sleep(0.3)
    assert files_in(tmp_path) == before


async def test_auto_cleanup_leaves_what_another_replay_asked_for_first(upstream: Upstream, tmp_path: Path) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold(_: Asked, request: web.Request) -> None:
        arrived.set()
        await go_on.wait()

    upstream.fault = hold
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        keeping = asyncio.create_task(collect(client, 0, 1))
        await arrived.wait()
        cleaning = asyncio.create_task(collect(client, 0, 1, auto_cleanup=True))
        while not any(flight.passengers == 2 for flight in client._fetching._flights.values()):
            await asyncio.sleep(0.01)
        go_on.set()
        [kept], [cleaned] = await keeping, await cleaning
    assert len(upstream.asked) == 1
    assert data_of([kept]) == data_of([cleaned]) == recorded(at(0), 1)
    assert files_in(tmp_path) == {Path(str(kept.path))}


async def test_auto_cleanup_mends_a_corrupt_file_and_survives_another_clean_up(upstream: Upstream, tmp_path: Path) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        items = await collect(client, 0, 4)
        Path(str(items[1].path)).write_bytes(b"garbage")
        results = await asyncio.gather(*(collect(client, 0, 4, auto_cleanup=True) for _ in range(3)))
    assert all(data_of(items) == recorded(at(0), 4) for items in results)


async def test_a_relative_cache_folder_gives_absolute_paths(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with HistoryClient(upstream.url, cache_dir="cache") as client:
        (item,) = await collect(client, 0, 1)
    assert str(item.path).startswith(f"{tmp_path}/cache/feeds/bitmex/")


async def test_clear_cache_means_fetching_again(upstream: Upstream, tmp_path: Path) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        await collect(client, 0, 3)
        clear_cache(tmp_path)
        await collect(client, 0, 3)
    assert sorted(upstream.windows) == [(0, 1), (0, 1), (1, 1), (1, 1), (2, 1), (2, 1)]


def _replay_in_a_process(url: str, cache_dir: str) -> bytes:
    async def run() -> bytes:
        async with HistoryClient(url, cache_dir=cache_dir) as client:
            return data_of(await collect(client, 0, 40))

    return asyncio.run(run())


async def test_two_processes_may_write_the_same_slices(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 0.02
    loop = asyncio.get_running_loop()
    # A pool of multiprocessing would end its processes with a signal, which may find them at writing down what they covered.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        calls = [loop.run_in_executor(pool, _replay_in_a_process, upstream.url, str(tmp_path)) for _ in range(2)]
        data = await asyncio.gather(*calls)
    assert data == [recorded(at(0), 40)] * 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 40
    assert all(path.name.endswith(".json.zst") for path in files)


async def test_refused_before_any_call(upstream: Upstream, tmp_path: Path) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        for exchange, start_us, end_us, options, field in [
            ("../x", at(0), at(1), {}, "exchange"),
            ("bitmex", at(1), at(0), {}, "to"),
            ("bitmex", -1, at(0), {}, "from"),
            ("bitmex", at(0), 10**18, {}, "to"),
            ("bitmex", at(0), at(1), {"api_key": "a\nb"}, "apiKey"),
            ("bitmex", at(0), at(1), {"wait_when_data_not_yet_available": float("nan")}, "waitWhenDataNotYetAvailable"),
        ]:
            with pytest.raises(OptionsError) as caught:
                client.slices(exchange, start_us, end_us, **options)  # type: ignore[arg-type]
            assert caught.value.field == field
    assert upstream.asked == []


def test_an_answer_of_the_stand_in_is_what_the_tests_think() -> None:
    assert recorded(at(0), 2).count(b"\n\n") == 1
    assert recorded(at(3)) == b""
    assert recorded(at(0), 5) == b"".join(recorded(at(minute)) for minute in range(5))
    assert at(1) - at(0) == MINUTE_US
