"""An upstream that refuses, fails, lies, hangs and cuts; a disk that is full; readers that leave."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import resource
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from aiohttp import web

from tardis_machine.errors import SliceError, UpstreamError
from tardis_machine.filters import Filter
from tardis_machine.history.client import HistoryClient
from tardis_machine.history.reader import read_slice
from tests.integration.upstream import Asked, Fault, Sleeper, Upstream, at, collect, data_of, recorded

TRADES = [Filter("trade", ["XBTUSD"])]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as server:
        yield server


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def refuse(status: int, times: int, body: str = '{"code":7,"message":"because"}', **options: Any) -> Fault:
    """The first answers for each slice are refusals."""
    seen: Counter[int] = Counter()

    async def fault(asked: Asked, _: web.Request) -> web.Response | None:
        seen[asked.start_us] += 1
        return web.Response(status=status, text=body, **options) if seen[asked.start_us] <= times else None

    return fault


def body_of(data: bytes, **headers: str) -> Fault:
    """A complete HTTP answer with this body."""

    async def fault(_: Asked, __: web.Request) -> web.Response:
        sent = {
            "Content-Encoding": "zstd",
            "X-Slice-Size": "1",
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        return web.Response(body=data, headers=sent)

    return fault


@pytest.mark.parametrize("status", [401, 403, 404, 400])
async def test_refusals_are_passed_on_and_not_retried(upstream: Upstream, tmp_path: Path, status: int) -> None:
    upstream.fault = refuse(status, 99)
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        with pytest.raises(UpstreamError, match=r"^because$") as caught:
            await collect(client, 0, 10)
    assert (caught.value.status, caught.value.code) == (status, 7)
    assert upstream.windows == [(9, 1)]
    assert files_in(tmp_path) == []


async def test_a_400_about_the_date_format_is_retried(upstream: Upstream, tmp_path: Path) -> None:
    upstream.fault = refuse(400, 2, '{"code":1,"message":"not in ISO 8601 format"}')
    sleeper = Sleeper()
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep) as client:
        assert data_of(await collect(client, 0, 1)) == recorded(at(0))
    assert len(upstream.asked) == 3


@pytest.mark.parametrize(("status", "first_s", "second_s"), [(429, 62, 64), (500, 4, 8), (503, 2, 4), (502, 2, 4)])
async def test_failures_are_retried_with_patience(
    upstream: Upstream, tmp_path: Path, status: int, first_s: float, second_s: float
) -> None:
    upstream.fault = refuse(status, 2)
    sleeper = Sleeper()
    async with HistoryClient(upstream.url, cache_dir=tmp_path, sleep=sleeper.sleep) as client:
        assert data_of(await collect(client, 0, 1)) == recorded(at(0))
    assert len(upstream.asked) == 3
    assert first_s <= sleeper.slept[0] <= first_s + 1
    assert second_s <= sleeper.slept[1] <= second_s + 1


async def test_thirty_attempts_then_the_last_error(upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upstream.fault = refuse(500, 99, "oops")
    sleeper = Sleeper()
    async with HistoryClient(upstream.url, "hunter2", tmp_path, sleep=sleeper.sleep) as client:
        with pytest.raises(UpstreamError, match=r"answered 500 for slice bitmex 2019-06-01T00:00Z: oops") as caught:
            await collect(client, 0, 1)
    assert caught.value.status == 500
    assert len(upstream.asked) == 30
    assert len(sleeper.slept) == 29
    assert max(sleeper.slept) <= 241
    assert "attempt 29 of 30 failed" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        ('{"code":"x","message":"key hunter2 expired"}', {}, "key *** expired"),
        ("<html>\n  gone  </html>", {}, "the history API answered 404 for slice bitmex 2019-06-01T00:00Z: <html> gone </html>"),
        ("", {}, "the history API answered 404 for slice bitmex 2019-06-01T00:00Z: no text"),
        ("[1]", {}, "the history API answered 404 for slice bitmex 2019-06-01T00:00Z: [1]"),
        ("not zstd", {"Content-Encoding": "zstd"}, "the history API answered 404 for slice bitmex 2019-06-01T00:00Z: no text"),
    ],
)
async def test_refusals_in_any_form(upstream: Upstream, tmp_path: Path, body: str, headers: dict[str, str], message: str) -> None:
    upstream.fault = refuse(404, 99, body, headers=headers)
    async with HistoryClient(upstream.url, "hunter2", tmp_path) as client:
        with pytest.raises(UpstreamError) as caught:
            await collect(client, 0, 1)
    assert str(caught.value) == message
    assert caught.value.code is None


async def test_a_compressed_refusal_is_read(upstream: Upstream, tmp_path: Path) -> None:
    async def fault(_: Asked, __: web.Request) -> web.Response:
        body = zstandard.ZstdCompressor().compress(b'{"code":100,"message":"API key is not valid"}')
        return web.Response(status=401, body=body, headers={"Content-Encoding": "zstd"})

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        with pytest.raises(UpstreamError, match=r"^API key is not valid$") as caught:
            await collect(client, 0, 1)
    assert caught.value.code == 100


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
async def test_a_refusal_that_grows_without_end_is_not_unpacked(upstream: Upstream, tmp_path: Path, encoding: str) -> None:
    bomb = bytes(50_000_000)
    body = zstandard.ZstdCompressor().compress(bomb) if encoding == "zstd" else gzip.compress(bomb, 9)

    async def fault(_: Asked, __: web.Request) -> web.Response:
        return web.Response(status=401, body=body, headers={"Content-Encoding": encoding})

    upstream.fault = fault
    tracemalloc.start()
    try:
        async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
            with pytest.raises(
                UpstreamError, match=r"^the history API answered 401 for slice bitmex 2019-06-01T00:00Z: no text$"
            ):
                await collect(client, 0, 1)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


async def test_a_refusal_without_an_end_is_not_read_to_it(upstream: Upstream, tmp_path: Path) -> None:
    async def fault(_: Asked, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=401)
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(bytes(100_000))
        return response

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        with pytest.raises(UpstreamError, match=r"^the history API answered 401 for slice bitmex 2019-06-01T00:00Z"):
            await asyncio.wait_for(collect(client, 0, 1), 10)


async def test_nobody_listens(tmp_path: Path) -> None:
    sleeper = Sleeper()
    async with HistoryClient("http://127.0.0.1:9/v1", cache_dir=tmp_path, attempts=3, sleep=sleeper.sleep) as client:
        with pytest.raises(
            UpstreamError, match=r"could not be read for slice bitmex 2019-06-01T00:00Z: .*127\.0\.0\.1:9"
        ) as caught:
            await collect(client, 0, 1)
    assert caught.value.status == 502
    assert len(sleeper.slept) == 2


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 2oo OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Len"])
async def test_something_else_listens(tmp_path: Path, said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    sleeper = Sleeper()
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with HistoryClient(url, cache_dir=tmp_path, attempts=3, sleep=sleeper.sleep) as client:
            with pytest.raises(
                UpstreamError, match=r"^the history API could not be read for slice bitmex 2019-06-01T00:00Z: \S[^\n]*$"
            ):
                await collect(client, 0, 1)
    assert len(sleeper.slept) == 2


async def test_a_hanging_answer_times_out_and_is_asked_for_again(upstream: Upstream, tmp_path: Path) -> None:
    hangs = 1

    async def fault(_: Asked, request: web.Request) -> web.StreamResponse | None:
        nonlocal hangs
        if hangs == 0:
            return None
        hangs -= 1
        response = web.StreamResponse(headers={"X-Slice-Size": "1", "Content-Encoding": "zstd", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"some")
        await asyncio.sleep(30)
        return response

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path, timeout_s=0.2, backoff_scale=0.001) as client:
        assert data_of(await collect(client, 0, 1)) == recorded(at(0))
    hangs = 99
    async with HistoryClient(upstream.url, cache_dir=tmp_path, timeout_s=0.2, attempts=1) as client:
        with pytest.raises(UpstreamError, match="did not answer in time for slice bitmex 2019-06-01T00:01Z") as caught:
            await collect(client, 1, 2)
    assert caught.value.status == 504


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_half_a_body_is_asked_for_again(upstream: Upstream, tmp_path: Path, framing: str) -> None:
    cuts = 2

    async def fault(asked: Asked, request: web.Request) -> web.StreamResponse | None:
        nonlocal cuts
        if cuts == 0:
            return None
        cuts -= 1
        body = upstream.compress(recorded(asked.start_us))
        response = web.StreamResponse(headers={"X-Slice-Size": "1", "Content-Encoding": "zstd"})
        if framing == "length":
            response.content_length = len(body)
        else:
            response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        assert request.transport is not None
        request.transport.abort()
        return response

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path, backoff_scale=0.001) as client:
        assert data_of(await collect(client, 0, 1)) == recorded(at(0))
    assert len(upstream.asked) == 3
    assert files_in(tmp_path) == ["00.json.zst"]


WHOLE = zstandard.ZstdCompressor(write_checksum=True).compress(recorded(at(0)))


@pytest.mark.parametrize(
    ("data", "headers", "cause"),
    [
        (b"garbage", {}, "is corrupt: zstd"),
        (b"", {}, "is truncated"),
        (WHOLE[:-7], {}, "is truncated"),
        (WHOLE, {"Content_Encoding": "gzip"}, "is corrupt: Not a gzipped file"),
        (WHOLE, {"Content_Encoding": "br"}, "is encoded as 'br', which is neither zstd nor gzip"),
        (zstandard.ZstdCompressor().compress(b"<html>Welcome</html>"), {}, "not with a timestamp"),
    ],
)
async def test_a_corrupt_download_is_an_error_that_names_the_slice(
    upstream: Upstream, tmp_path: Path, data: bytes, headers: dict[str, str], cause: str
) -> None:
    upstream.fault = body_of(data, **headers)
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        with pytest.raises(SliceError, match=f"slice bitmex 2019-06-01T00:00Z .*{cause}") as caught:
            await collect(client, 0, 1)
    assert caught.value.status == 502
    assert len(upstream.asked) == 2
    assert files_in(tmp_path) == []


async def test_an_error_in_the_middle_comes_after_the_data_before_it(upstream: Upstream, tmp_path: Path) -> None:
    async def fault(asked: Asked, _: web.Request) -> web.Response | None:
        return web.Response(body=b"garbage", headers={"X-Slice-Size": "1"}) if asked.offset == 5 else None

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        items = client.slices("bitmex", at(0), at(10))
        came = [await anext(items) for _ in range(5)]
        with pytest.raises(SliceError, match="bitmex 2019-06-01T00:05Z"):
            await anext(items)
    assert data_of(came) == recorded(at(0), 5)


@pytest.mark.parametrize(("header", "minutes"), [("2", 2), ("1", 1), ("9", 9), ("60", 60), (None, 5), (None, 1)])
async def test_any_true_slice_size_and_none_give_the_whole_data(
    upstream: Upstream, tmp_path: Path, header: str | None, minutes: int
) -> None:
    upstream.suggested = {0: 5}

    async def fault(asked: Asked, _: web.Request) -> web.Response | None:
        return None if asked.minutes == 1 else upstream.answer(asked.start_us, minutes, {"X-Slice-Size": header})

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        assert data_of(await collect(client, 0, 20, TRADES)) == recorded(at(0), 20)
        upstream.fault = refuse(404, 99)
        assert data_of(await collect(client, 0, 20, TRADES)) == recorded(at(0), 20)


@pytest.mark.parametrize("header", ["0", "-1", "abc", "1.5", "", "99999", "१"])
async def test_a_slice_size_that_is_none_is_an_error(upstream: Upstream, tmp_path: Path, header: str) -> None:
    async def fault(asked: Asked, _: web.Request) -> web.Response | None:
        return upstream.answer(asked.start_us, asked.minutes, {"X-Slice-Size": header})

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        with pytest.raises(SliceError, match="bitmex 2019-06-01T00:04Z has the header X-Slice-Size"):
            await collect(client, 0, 5)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(("said", "holds"), [("1", 5), ("3", 5), (None, 5)])
async def test_data_outside_of_an_unexpected_size_is_an_error(
    upstream: Upstream, tmp_path: Path, said: str | None, holds: int
) -> None:
    """It would come twice otherwise."""
    upstream.suggested = {0: 4}

    async def fault(asked: Asked, _: web.Request) -> web.Response | None:
        wrong = asked.minutes > 1 or said is None
        return upstream.answer(asked.start_us, holds, {"X-Slice-Size": said}) if wrong else None

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        with pytest.raises(SliceError, match="but has lines outside of the"):
            await collect(client, 0, 20, TRADES)


async def test_a_single_minute_may_come_without_a_size(upstream: Upstream, tmp_path: Path) -> None:
    async def fault(asked: Asked, _: web.Request) -> web.Response:
        return upstream.answer(asked.start_us, asked.minutes, {"X-Slice-Size": None, "X-Suggested-Slice-Size": None})

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        assert data_of(await collect(client, 0, 10, TRADES)) == recorded(at(0), 10)


async def test_a_first_minute_that_comes_larger_is_cut_and_not_fetched_twice(upstream: Upstream, tmp_path: Path) -> None:
    async def fault(asked: Asked, _: web.Request) -> web.Response | None:
        return upstream.answer(asked.start_us, 6) if asked.offset == 0 else None

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        assert data_of(await collect(client, 0, 10)) == recorded(at(0), 10)
    assert sorted(upstream.windows) == [(0, 1), (6, 1), (7, 1), (8, 1), (9, 1)]


@pytest.mark.parametrize("hint", ["0", "-4", "many", "1e3"])
async def test_a_suggestion_is_only_a_hint(upstream: Upstream, tmp_path: Path, hint: str) -> None:
    async def fault(asked: Asked, _: web.Request) -> web.Response | None:
        return upstream.answer(asked.start_us, asked.minutes, {"X-Suggested-Slice-Size": hint})

    upstream.fault = fault
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        assert data_of(await collect(client, 0, 5, TRADES)) == recorded(at(0), 5)


async def test_a_redirect_to_another_origin_drops_the_key(upstream: Upstream, tmp_path: Path) -> None:
    async with Upstream() as elsewhere:

        async def redirect(_: Asked, request: web.Request) -> web.Response:
            location = f"http://127.0.0.1:{elsewhere.port}{request.path_qs}"
            return web.Response(status=307, headers={"Location": location})

        upstream.fault = redirect
        async with HistoryClient(upstream.url, "hunter2", tmp_path) as client:
            assert data_of(await collect(client, 0, 1)) == recorded(at(0))
        assert upstream.asked[0].headers["Authorization"] == "Bearer hunter2"
        assert "Authorization" not in elsewhere.asked[0].headers


async def test_a_redirect_on_the_same_origin_keeps_the_key(upstream: Upstream, tmp_path: Path) -> None:
    async def redirect(asked: Asked, request: web.Request) -> web.Response | None:
        location = str(request.rel_url.update_query(again="1"))
        return None if "again" in asked.query else web.Response(status=302, headers={"Location": location})

    upstream.fault = redirect
    async with HistoryClient(upstream.url, "hunter2", tmp_path) as client:
        assert data_of(await collect(client, 0, 1)) == recorded(at(0))
    assert [asked.headers["Authorization"] for asked in upstream.asked] == ["Bearer hunter2"] * 2


async def test_a_circle_of_redirects_is_an_error_at_once(upstream: Upstream, tmp_path: Path) -> None:
    async def redirect(_: Asked, request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.path_qs})

    upstream.fault = redirect
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        with pytest.raises(UpstreamError, match="could not be read"):
            await collect(client, 0, 1)
    assert len(upstream.asked) < 20


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "gone", "foreign"])
async def test_a_corrupt_cached_file_is_fetched_again(upstream: Upstream, tmp_path: Path, damage: str) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        bad = (await collect(client, 0, 3, TRADES))[1]
        path = Path(str(bad.path))
        if damage == "gone":
            path.unlink()
        else:
            whole = path.read_bytes()
            foreign = zstandard.ZstdCompressor().compress(b"hello\n")
            path.write_bytes({"truncated": whole[:-3], "garbage": b"garbage", "empty": b"", "foreign": foreign}[damage])
        with pytest.raises(SliceError, match="bitmex 2019-06-01T00:01Z"):
            read_slice(bad)
        upstream.asked.clear()
        mended, twice = await asyncio.gather(client.refetch(bad), client.refetch(bad))
        assert data_of(mended) == data_of(twice) == recorded(at(1))
        assert upstream.windows == [(1, 1)]
        assert upstream.asked[0].filters == [{"channel": "trade", "symbols": ["XBTUSD"]}]
        assert await client.refetch(bad) == [bad]
        assert upstream.windows == [(1, 1)]
        assert data_of(await collect(client, 0, 3, TRADES)) == recorded(at(0), 3)


async def test_refetching_replaces_a_gz_and_uses_the_key_of_the_request(upstream: Upstream, tmp_path: Path) -> None:
    async with HistoryClient(upstream.url, "server", tmp_path) as client:
        upstream.encoding = "gzip"
        (item,) = await collect(client, 0, 1)
        Path(str(item.path)).write_bytes(b"x")
        upstream.encoding = "zstd"
        (mended,) = await client.refetch(item, api_key="own")
    assert mended.encoding == "zst"
    assert read_slice(mended) == recorded(at(0))
    assert upstream.asked[-1].headers["Authorization"] == "Bearer own"
    assert files_in(tmp_path) == ["00.json.zst"]


async def test_refetching_part_of_a_larger_file_gives_that_part(upstream: Upstream, tmp_path: Path) -> None:
    upstream.suggested = {0: 8}
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        await collect(client, 0, 10, TRADES)
        bad = (await collect(client, 3, 6, TRADES))[0]
        assert bad.partial
        Path(str(bad.path)).write_bytes(b"x")
        assert data_of(await client.refetch(bad)) == recorded(at(3), 3)


async def test_refetching_what_upstream_has_corrupt_too_is_an_error(upstream: Upstream, tmp_path: Path) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        (item,) = await collect(client, 0, 1)
        Path(str(item.path)).write_bytes(b"x")
        upstream.fault = body_of(b"garbage")
        with pytest.raises(SliceError, match="bitmex 2019-06-01T00:00Z"):
            await client.refetch(item)


def of_history(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What it told: what tests before left to the garbage collector may be told of meanwhile."""
    return [record for record in caplog.records if record.name.startswith("tardis_machine.history")]


@contextmanager
def full_disk() -> Iterator[None]:
    """Disks that take the first bytes of a file and refuse the rest, as a full one does; those under the test's own output too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_full_disk_is_gone_on_without(upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with full_disk():
        async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
            items = await collect(client, 0, 30)
    assert data_of(items) == recorded(at(0), 30)
    # Empty minutes still fit.
    assert [item.path is not None for item in items] == [minute % 5 == 3 for minute in range(30)]
    assert [record.levelno for record in of_history(caplog)] == [logging.WARNING]
    assert "can't be written (File too large); continuing without it" in caplog.text
    assert len(files_in(tmp_path)) == 6
    assert all(name.endswith(".json.zst") for name in files_in(tmp_path))


@pytest.mark.parametrize("auto_cleanup", [False, True])
async def test_a_cache_that_can_not_be_written_is_gone_on_without(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture, auto_cleanup: bool
) -> None:
    (tmp_path / "file").write_bytes(b"")
    upstream.suggested = {0: 5}
    async with HistoryClient(upstream.url, cache_dir=tmp_path / "file" / "cache") as client:
        items = await collect(client, 0, 20, TRADES, auto_cleanup=auto_cleanup)
        assert data_of(items) == recorded(at(0), 20)
        assert {item.path for item in items} == {None}
        assert (await client.refetch(items[0])) == [items[0]]
        await collect(client, 0, 20, TRADES)
    assert sum(record.levelno >= logging.WARNING for record in of_history(caplog)) == 1


def open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(link.readlink()))
    return {target for target in found if target.startswith("/")}


@pytest.mark.parametrize("auto_cleanup", [False, True])
@pytest.mark.parametrize("leave_after", [0, 1, 7])
async def test_a_reader_that_leaves_leaves_nothing_behind(
    upstream: Upstream, tmp_path: Path, leave_after: int, auto_cleanup: bool
) -> None:
    upstream.delay_s = 0.02
    tasks, files = asyncio.all_tasks(), open_files()
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        async with aclosing(client.slices("bitmex", at(0), at(1000), auto_cleanup=auto_cleanup)) as items:
            for _ in range(leave_after):
                await anext(items)
        await asyncio.sleep(0.1)
        asked = len(upstream.asked)
        assert client._fetching._flights == {}
        await asyncio.sleep(0.2)
        assert len(upstream.asked) == asked
    # The server's own tasks end with their connections.
    await asyncio.sleep(0.1)
    assert {task for task in asyncio.all_tasks() - tasks if "history" in str(task.get_coro())} == set()
    assert open_files() <= files
    assert [name for name in files_in(tmp_path) if not name.endswith(".json.zst")] == []
    if auto_cleanup:
        assert files_in(tmp_path) == []


async def test_a_reader_that_is_cancelled_while_it_waits_leaves_nothing_behind(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 30
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        reader = asyncio.create_task(collect(client, 0, 100))
        await asyncio.sleep(0.2)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(reader, 1)
        assert client._fetching._flights == {}
    await asyncio.sleep(0.1)
    assert upstream.under_way == 0
    assert files_in(tmp_path) == []


async def test_a_reader_that_forgets_to_close_is_cleaned_up_after(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 0.05
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        async for _ in client.slices("bitmex", at(0), at(1000)):
            break
        gc.collect()
        await asyncio.sleep(0.3)
        assert client._fetching._flights == {}


async def test_a_client_that_closes_ends_its_replays_with_an_error(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 30
    client = HistoryClient(upstream.url, cache_dir=tmp_path)
    reader = asyncio.create_task(collect(client, 0, 100))
    await asyncio.sleep(0.2)
    await client.aclose()
    with pytest.raises(UpstreamError, match="closed"):
        await asyncio.wait_for(reader, 1)


async def test_leftovers_of_a_crash_are_ignored(upstream: Upstream, tmp_path: Path) -> None:
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:
        (item,) = await collect(client, 0, 1)
        folder = Path(str(item.path)).parent
        for name in (
            "01.json.zst.0011223344556677.unconfirmed",
            "02.json.zst0011223344556677.unconfirmed",
            "00.json.gz8899.unconfirmed",
        ):
            (folder / name).write_bytes(b"half")
        assert data_of(await collect(client, 0, 3)) == recorded(at(0), 3)


async def test_readers_that_leave_at_random_share_fetches_with_those_that_stay(upstream: Upstream, tmp_path: Path) -> None:
    upstream.delay_s = 0.01
    async with HistoryClient(upstream.url, cache_dir=tmp_path) as client:

        async def leave_after(seconds: float) -> None:
            task = asyncio.create_task(collect(client, 0, 60))
            await asyncio.sleep(seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        stays = [asyncio.create_task(collect(client, 0, 60)) for _ in range(3)]
        await asyncio.gather(*(leave_after(number * 0.004) for number in range(50)))
        for items in await asyncio.gather(*stays):
            assert data_of(items) == recorded(at(0), 60)
    assert sorted(upstream.windows) == [(minute, 1) for minute in range(60)]
