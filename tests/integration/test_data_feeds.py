"""The machine as the history API: slices to clients of their own, from upstream, the cache and recordings."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
import pytest_asyncio
import zstandard
from aiohttp import web

from tardis_machine import replay, replay_normalized
from tardis_machine.filters import Filter, optimize_filters, to_compact_json
from tardis_machine.history.recordings import RecordedFeed
from tardis_machine.messages import Trade
from tardis_machine.sample.history_api import Fault, SampleHistoryApi
from tests.integration.machine import Client, options, running_machine
from tests.integration.raw_client import connected
from tests.integration.scripted_exchange import scripted_exchange
from tests.integration.served import FEBRUARY_US, FILTERS, MINUTE_US, served
from tests.integration.test_stream_server import trade
from tests.servers.http_site import http_site

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = "2020-02-02"
FROM_US = FEBRUARY_US + 1440 * MINUTE_US
KEY = "the-upstream-key"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def upstream() -> AsyncIterator[SampleHistoryApi]:
    async with SampleHistoryApi(api_key=KEY) as api:
        yield api


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(upstream: SampleHistoryApi, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with running_machine(upstream, tmp_path_factory.mktemp("cache"), workers=0, api_key=KEY) as client:
        yield client


async def fetch(
    client: Client, path: str = "/v1/data-feeds/bitmex", *, accept: str = "identity", **query: str
) -> tuple[int, Any, bytes]:
    params = {"from": f"{DAY}T00:00:00.000Z"} | query
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.get(client.url(path), params=params, headers={"Accept-Encoding": accept}) as response,
    ):
        return response.status, response.headers, await response.read()


def filters_text(filters: list[Filter] = FILTERS) -> str:
    return to_compact_json(optimize_filters(filters)).decode()


@pytest.mark.parametrize(
    ("compression", "accept", "encoding"),
    [
        ("zstd", "", "zstd"),
        ("zstd-multiframe", "", "zstd"),
        ("gzip", "", "gzip"),
        ("none", "gzip", None),
        ("", "zstd, gzip", "zstd"),
        ("", "gzip, deflate, zstd", "gzip"),
        ("", "br;q=1, gzip;q=0", None),
    ],
)
async def test_a_slice_is_the_lines_of_its_minutes_however_it_is_compressed(
    client: Client, upstream: SampleHistoryApi, compression: str, accept: str, encoding: str | None
) -> None:
    query = {"compression": compression} if compression else {}
    status, headers, body = await fetch(client, accept=accept, offset="2", sliceSize="3", filters=filters_text(), **query)
    assert status == 200, body
    assert headers.get("Content-Encoding") == encoding
    assert headers["X-Slice-Size"] == "3"
    assert 1 <= int(headers["X-Suggested-Slice-Size"]) <= 10
    if encoding == "zstd":
        body = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=compression == "zstd-multiframe").read()
    elif encoding == "gzip":
        body = gzip.decompress(body)
    assert body == upstream.recording.slice("bitmex", FROM_US + 2 * MINUTE_US, 3, FILTERS)


async def test_each_minute_is_asked_for_once_with_the_key_of_the_server(
    client: Client, upstream: SampleHistoryApi, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"exchange": "bitmex", "from_": f"{DAY}T01:00", "to": f"{DAY}T01:05"}
    asked |= {"filters": [{"channel": "trade", "symbols": ["XBTUSD"]}], "api_url": client.url("/v1")}
    before = len(upstream.requests)
    bodies = [[item async for batch in replay(**asked, cache_dir=tmp_path / name) for item in batch] for name in ("a", "b")]
    came = upstream.requests[before:]
    assert len(bodies[0]) > 20
    assert bodies[0] == bodies[1]
    assert sum(request.minutes for request in came) == 5
    assert {request.authorization for request in came} == {f"Bearer {KEY}"}


async def test_what_is_cached_needs_no_upstream(upstream: SampleHistoryApi, tmp_path: Path) -> None:
    async with running_machine(upstream, tmp_path, workers=0, api_key=KEY) as client:
        status, _, whole = await fetch(client, sliceSize="2", filters=filters_text())
        assert status == 200
    async with running_machine(SampleHistoryApi(port=9), tmp_path, workers=0, _history={"backoff_scale": 0.01}) as client:
        assert (await fetch(client, sliceSize="2", filters=filters_text()))[2] == whole
        first = upstream.recording.slice("bitmex", FROM_US, 1, FILTERS)
        assert (await fetch(client, filters=filters_text()))[2] == first
        status, _, body = await fetch(client, offset="7", filters=filters_text())
        assert (status, json.loads(body)["code"]) == (502, 502)


@pytest.mark.parametrize("body", ["cut", "half", "garbage", "empty"])
async def test_what_upstream_cuts_off_is_never_passed_on(tmp_path: Path, body: Any) -> None:
    history = {"backoff_scale": 0.01}
    async with SampleHistoryApi() as api, running_machine(api, tmp_path, workers=0, _history=history) as client:
        api.fail(Fault(body=body))
        status, _, whole = await fetch(client, sliceSize="3", filters=filters_text())
        assert (status, whole) == (200, api.recording.slice("bitmex", FROM_US, 3, FILTERS))
        api.fail(Fault(body=body), times=100)
        status, headers, said = await fetch(client, offset="7", sliceSize="3", filters=filters_text())
        assert (status, headers["Content-Type"], json.loads(said)["code"]) == (502, "application/json", 502)
        api.recover()
        assert (await fetch(client, offset="7", filters=filters_text()))[0] == 200


async def test_a_damaged_file_is_fetched_again(upstream: SampleHistoryApi, tmp_path: Path) -> None:
    async with running_machine(upstream, tmp_path, workers=0, api_key=KEY) as client:
        whole = (await fetch(client, filters=filters_text()))[2]
        [file] = tmp_path.rglob("*.json.zst")
        file.write_bytes(file.read_bytes()[:-7])
        assert (await fetch(client, filters=filters_text()))[2] == whole


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"from": "yesterday"}, "from: expected an ISO 8601 date"),
        ({"offset": "-1"}, "offset: expected a whole number"),
        ({"sliceSize": "11"}, "sliceSize: expected a whole number from 1 to 10"),
        ({"compression": "brotli"}, "compression: expected one of zstd-multiframe, zstd, gzip, none"),
        ({"filters": "[{]"}, "filters: expected a JSON array"),
        ({"filters": '[{"channel":"tarde"}]'}, "filters[0].channel: bitmex has no channel"),
    ],
)
async def test_mistakes_are_said_as_the_history_api_says_them(client: Client, query: dict[str, str], problem: str) -> None:
    status, _, body = await fetch(client, **query)
    said = json.loads(body)
    assert (status, said["code"]) == (400, 400)
    assert said["message"].startswith(problem)


async def test_refusals_of_upstream_are_passed_on_without_the_key(upstream: SampleHistoryApi, tmp_path: Path) -> None:
    async with running_machine(upstream, tmp_path, workers=0, api_key="wrong") as client:
        status, _, body = await fetch(client)
        assert (status, json.loads(body)) == (401, {"code": 401, "message": "The API key is not valid."})
        status, _, body = await fetch(client, "/v1/data-feeds/nowhere")
        assert (status, json.loads(body)["code"]) == (400, 400)
        status, _, body = await fetch(client, "/v1/nothing")
        assert (status, json.loads(body)) == (404, {"code": 404, "message": "Not Found"})


async def test_clients_show_the_token_as_their_key(upstream: SampleHistoryApi, tmp_path: Path) -> None:
    async with running_machine(upstream, tmp_path, workers=0, api_key=KEY, auth_token=["other", "team"]) as client:
        status, _, body = await fetch(client)
        assert (status, json.loads(body)["code"]) == (401, 401)
        for token, status in (("other", 200), ("team", 200), ("other,team", 401), ("othe", 401)):
            headers = {"Authorization": f"Bearer {token}"}
            async with client.http.get(client.url("/v1/api-key-info"), headers=headers) as response:
                assert response.status == status
        asked: dict[str, Any] = {"exchange": "bitmex", "from_": DAY, "to": f"{DAY}T00:01", "api_url": client.url("/v1")}
        came = [item async for batch in replay(**asked, api_key="team", cache_dir=tmp_path / "own") for item in batch]
        lines = upstream.recording.slice("bitmex", FROM_US, 1).splitlines()
        assert len(came) == len([line for line in lines if line])


async def test_tokens_do_not_go_up_and_the_key_does_not_come_down(tmp_path: Path) -> None:
    """Whatever upstream repeats of what it was sent."""
    told: list[str] = []

    async def repeat(request: web.Request) -> web.Response:
        told.append(f"{request.path_qs} {dict(request.headers)}")
        return web.json_response({"code": 403, "message": told[-1]}, status=403)

    replay = "/replay-normalized?" + urlencode({"options": json.dumps(options(**{"from": DAY, "to": f"{DAY}T00:01"}))})
    paths = [
        *("/v1/exchanges", "/v1/exchanges/bitmex", "/v1/instruments/bitmex", "/v1/instruments/bitmex/XBTUSD", "/v1/api-key-info"),
        *(f"/v1/data-feeds/bitmex?from={DAY}", "/v1/datasets/bitmex/trades/2020/02/02/XBTUSD.csv.gz"),
        *(f"/book?exchange=bitmex&symbol=XBTUSD&at={DAY}T10:00", replay),
    ]
    async with http_site(repeat) as port:
        settings: dict[str, Any] = {"workers": 0, "api_key": KEY, "auth_token": ["team-token"]}
        async with running_machine(SampleHistoryApi(port=port), tmp_path, **settings) as client:
            for path in paths:
                before = len(told)
                async with client.http.get(client.url(path), headers={"Authorization": "Bearer team-token"}) as response:
                    said = await response.text()
                    assert response.status == 403, path
                assert len(told) > before, path
                assert "***" in said
                assert KEY not in f"{said} {dict(response.headers)}"
    assert all(KEY in each for each in told)
    assert not any("team-token" in each for each in told)
    assert [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()] == []


async def test_limits_hold_here_too(upstream: SampleHistoryApi, tmp_path: Path) -> None:
    limits = {"max_filters": 2, "max_symbols": 3, "max_slices": 2}
    async with running_machine(upstream, tmp_path, workers=0, api_key=KEY, **limits) as client:
        status, _, body = await fetch(client, filters=json.dumps([{"channel": "trade"}] * 3))
        message = "filters: expected at most 2 filters, got 3; the server's --max-filters allows more"
        assert (status, json.loads(body)["message"]) == (400, message)
        elsewhere = {"Origin": "https://elsewhere.example"}
        async with client.http.get(client.url("/v1/data-feeds/bitmex"), params={"from": DAY}, headers=elsewhere) as response:
            assert response.status == 403


async def test_who_does_not_read_keeps_his_own_place_alone_and_not_for_ever(
    upstream: SampleHistoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tardis_machine.server.bodies.UNREAD_TIMEOUT_S", 1.0)
    # A body that no socket's buffers hold.
    feed = RecordedFeed(tmp_path / "recorded", "bitmex", (Filter("trade", ["XBTUSD"]),))
    assert feed.claim()
    line = b"2020-02-02T00:00:00.5000000Z " + json.dumps({"table": "trade", "data": [{"symbol": "XBTUSD"}]}).encode() + b"\n"
    feed.append(FROM_US, line * 150_000)
    feed.seal(FROM_US)
    feed.release()
    place: dict[str, Any] = {"workers": 0, "api_key": KEY, "max_slices": 2, "record_dir": tmp_path / "recorded"}
    async with running_machine(upstream, tmp_path, **place) as client:
        query = urlencode({"from": DAY, "compression": "none", "filters": filters_text([Filter("trade", ["XBTUSD"])])})
        request = f"GET /v1/data-feeds/bitmex?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        idle = {"receive_buffer_bytes": 4096}
        async with connected(client.machine.port, **idle) as first, connected(client.machine.port, **idle) as second:
            for stalled in (first, second):
                stalled.writer.write(request)
            await asyncio.sleep(0.5)
            began = time.monotonic()
            bodies = await asyncio.wait_for(asyncio.gather(*(fetch(client, offset=str(n)) for n in range(1, 4))), 30)
            assert {status for status, _, _ in bodies} == {200}
            # All are of one address, which shares one place of the two: each that stalls has it until it is cut off.
            assert 0.5 < time.monotonic() - began < 20
            for stalled in (first, second):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await asyncio.wait_for(stalled.reader.readexactly(150_000 * len(line)), 10)


async def recorded_lines(client: Client, minutes: list[str], *filters: Filter) -> list[bytes]:
    """What the machine has of these minutes."""
    lines: list[bytes] = []
    for minute in minutes:
        status, _, body = await fetch(client, **{"from": minute, "filters": filters_text(list(filters))})
        lines += body.split(b"\n")[:-1] if status == 200 else []
    return lines


async def test_what_was_heard_live_is_history_also_after_a_crash(tmp_path: Path) -> None:
    record = ("--record-dir", str(tmp_path / "recorded"), "--workers", "1", "--api-url", "http://127.0.0.1:9/v1")
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD", "ETHUSD"], "dataTypes": ["trade"], "timeoutIntervalMS": 0}
    heard: list[dict[str, Any]] = []
    async with scripted_exchange() as exchange, aiohttp.ClientSession() as http:
        with served(tmp_path / "cache", tmp_path / "log", *record, "--exchange-urls", f"bitmex:{exchange.url}") as server:
            path = f"http://127.0.0.1:{server.port}/ws-stream-normalized"
            async with http.ws_connect(path, params={"options": json.dumps(asked)}) as socket:
                for number in range(2):
                    peer = await exchange.client()
                    await peer.send(trade(2 * number), trade(2 * number + 1))
                    heard += [await asyncio.wait_for(socket.receive_json(), 10) for _ in range(2)]
                    if number == 0:
                        peer.cut()
                # All at once, with no time to write anything more.
                for pid in [server.process.pid, *server.worker_pids]:
                    os.kill(pid, signal.SIGKILL)
            server.process.wait()
    minutes = sorted({message["localTimestamp"][:16] for message in heard})
    end = (datetime.fromisoformat(minutes[-1]) + timedelta(minutes=1)).isoformat()[:16]
    offline = {"workers": 0, "record_dir": tmp_path / "recorded", "_history": {"backoff_scale": 0.01}}
    async with running_machine(SampleHistoryApi(port=9), tmp_path / "none", **offline) as client:
        lines = await recorded_lines(client, minutes, Filter("trade", ["XBTUSD", "ETHUSD"]))
        # Before, between and after these it was not connected; consecutive empty lines are as one.
        kept = [line for place, line in enumerate(lines) if line or lines[place - 1] or not place]
        names = [json.loads(line.split(b" ", 1)[1])["data"][0]["trdMatchID"] if line else None for line in kept]
        assert names == [None, "0", "1", None, "2", "3", None]
        # Filters over what was recorded: what they leave, and what nobody heard.
        of_one = await recorded_lines(client, minutes, Filter("trade", ["XBTUSD"]))
        assert [line for line in of_one if line] == [line for line in lines if line]
        assert not any(await recorded_lines(client, minutes, Filter("trade", ["ETHUSD"])))
        assert not await recorded_lines(client, minutes, Filter("trade", ["ETHUSD"]), Filter("quote"))
        # Any client of the history API replays it.
        span: dict[str, Any] = {"from_": minutes[0], "to": end, "api_url": client.url("/v1"), "cache_dir": tmp_path / "own"}
        batches = replay_normalized(exchange="bitmex", symbols=["XBTUSD"], data_types=["trade"], **span)
        replayed = [message async for batch in batches for message in batch]
        assert [message.id for message in replayed if isinstance(message, Trade)] == ["0", "1", "2", "3"]
