"""The replay routes, over real HTTP and WebSocket, on the sample history."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tardis_machine import replay, replay_normalized, to_json
from tardis_machine.sample.faults import Fault
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import DAY, Client, options, running_machine


@pytest.fixture(scope="module")
def upstream() -> Iterator[SampleHistoryApi]:
    """One for all tests here, so that a minute of the market is made once."""
    with SampleHistoryApi().serve_in_thread() as api:
        yield api


@pytest.fixture
def api(upstream: SampleHistoryApi) -> SampleHistoryApi:
    upstream.recover()
    upstream.requests.clear()
    return upstream


@pytest.fixture
async def client(api: SampleHistoryApi, tmp_path: Path) -> AsyncIterator[Client]:
    async with running_machine(api, tmp_path) as client:
        yield client


async def library_lines(api: SampleHistoryApi, tmp_path: Path, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    batches = replay_normalized(*requests, api_url=api.url, cache_dir=tmp_path)
    return [json.loads(to_json(message)) async for batch in batches for message in batch]


async def test_normalized_history_is_the_library_s_own(client: Client, api: SampleHistoryApi, tmp_path: Path) -> None:
    lines = await client.lines(options())
    assert {line["type"] for line in lines} == {"trade", "book_change"}
    assert lines == await library_lines(api, tmp_path, options())
    assert [line["localTimestamp"] for line in lines] == sorted(line["localTimestamp"] for line in lines)


async def test_workers_and_in_process_send_the_same_bytes(api: SampleHistoryApi, tmp_path: Path) -> None:
    asked = options(dataTypes=["trade", "book_change", "trade_bar_1s", "book_snapshot_5_100ms"])
    # Of several, each runs in a worker of its own, and they are merged as bytes.
    several = [asked, options(dataTypes=["book_change"]), options(exchange="deribit", symbols=["BTC-PERPETUAL"])]
    bodies = []
    for workers in (0, 2):
        async with running_machine(api, tmp_path, workers=workers) as client:
            bodies.append([await client.get("/replay-normalized", each) for each in (asked, several)])
    assert bodies[0] == bodies[1]
    assert [status for status, *_ in bodies[0]] == [200, 200]


async def test_raw_history_keeps_the_exchange_s_bytes(client: Client, api: SampleHistoryApi, tmp_path: Path) -> None:
    asked = options(symbols=None, dataTypes=None, filters=[{"channel": "trade", "symbols": ["XBTUSD"]}])
    lines = await client.lines(asked, "/replay")
    batches = replay(
        exchange="bitmex", from_=asked["from"], to=asked["to"], filters=asked["filters"], api_url=api.url, cache_dir=tmp_path
    )
    expected = [item async for batch in batches for item in batch if item is not None]
    assert [(line["localTimestamp"], line["message"]) for line in lines] == expected
    assert len(lines[0]["localTimestamp"]) == 28


async def test_seconds_are_honoured(client: Client) -> None:
    whole = await client.lines(options(dataTypes=["trade"]))
    part = await client.lines(options(dataTypes=["trade"], **{"from": f"{DAY}00:00:20.5Z", "to": f"{DAY}00:01:10Z"}))
    assert part == [line for line in whole if f"{DAY}00:00:20.500000Z" <= line["localTimestamp"] < f"{DAY}00:01:10.000000Z"]
    assert len(part) > 10


async def test_several_requests_are_merged_by_local_time(client: Client) -> None:
    asked = [options(dataTypes=["trade"]), options(dataTypes=["book_change"])]
    merged = await client.lines(asked)
    assert [line["localTimestamp"] for line in merged] == sorted(line["localTimestamp"] for line in merged)
    for one in asked:
        assert [line for line in merged if [line["type"]] == one["dataTypes"]] == await client.lines(one)


async def test_post_is_get_with_a_body(client: Client) -> None:
    async with client.http.post(client.url("/replay-normalized"), json=options()) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/x-json-stream"
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert await response.read() == (await client.get("/replay-normalized", options()))[1]


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
async def test_answers_compress_when_asked(client: Client, encoding: str) -> None:
    import gzip

    import zstandard

    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.post(client.url("/replay-normalized"), json=options(), headers={"Accept-Encoding": encoding}) as response,
    ):
        assert response.headers.get("Content-Encoding", "identity") == encoding
        body = await response.read()
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding == "zstd":
        body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    assert body == (await client.get("/replay-normalized", options()))[1]


@pytest.mark.parametrize(
    ("asked", "field", "says"),
    [
        (options(exchange="bitmx"), "exchange", "bitmex"),
        (options(exchange=7), "exchange", "expected one of"),
        (options(dataTypes=["trades"]), "dataTypes", "trade"),
        (options(dataTypes=[]), "dataTypes", "expected an array"),
        (options(dataTypes=["option_summary"]), "dataTypes", "bitmex has no option_summary"),
        (options(symbols="XBTUSD"), "symbols", "expected an array of texts"),
        (options(**{"from": "yesterday"}), "from", "expected an ISO 8601 date"),
        (options(to="2019-01-01"), "to", "not before from"),
        (options(withDisconnectMessages="yes"), "withDisconnectMessages", "expected true or false"),
        ([options(), options(exchange="x")], "[1].exchange", "expected one of"),
        ([], "options", "at least one request"),
        ("text", "options", "expected a JSON object"),
    ],
)
async def test_bad_options_are_named_before_any_upstream_call(
    client: Client, api: SampleHistoryApi, asked: Any, field: str, says: str
) -> None:
    status, body = await client.get("/replay-normalized", asked)
    answer = json.loads(body)
    assert (status, answer["field"]) == (400, field)
    assert says in answer["message"]
    assert not api.requests


async def test_what_is_no_json_or_no_route_is_said(client: Client) -> None:
    async with client.http.get(client.url("/replay"), params={"options": "{"}) as response:
        assert response.status == 400
        assert "not valid JSON" in (await response.json())["message"]
    async with client.http.get(client.url("/replay")) as response:
        assert response.status == 400
    async with client.http.get(client.url("/nowhere")) as response:
        assert response.status == 404


async def test_an_upstream_refusal_is_passed_on(tmp_path: Path) -> None:
    async with SampleHistoryApi(api_key="right") as api, running_machine(api, tmp_path) as client:
        status, body = await client.get("/replay-normalized", options(**{"from": "2020-02-03", "to": "2020-02-04"}))
        assert status == 401
        assert json.loads(body)["message"]
        assert (
            await client.get("/replay-normalized", options(apiKey="right", **{"from": "2020-02-03", "to": "2020-02-03T00:01"}))
        )[0] == 200


async def test_an_error_after_the_first_byte_cuts_the_transfer(client: Client, api: SampleHistoryApi) -> None:
    asked = options(to=f"{DAY}00:20:00Z")
    # The ends are fetched first, so the fault is met while the answer is under way.
    api.fail(Fault(body="garbage"), times=1000, when=lambda request: request.start_us % 3_600_000_000 == 15 * 60_000_000)
    with pytest.raises(aiohttp.ClientPayloadError):
        await client.get("/replay-normalized", asked)


async def test_one_of_several_that_fails_cuts_the_answer_of_all(api: SampleHistoryApi, tmp_path: Path) -> None:
    later = {"to": f"{DAY}00:20:00Z"}
    asked = [options(**later), options(exchange="deribit", symbols=["BTC-PERPETUAL"], **later)]
    api.fail(
        Fault(body="garbage"),
        times=1000,
        when=lambda request: request.exchange == "deribit" and request.start_us % 3_600_000_000 == 15 * 60_000_000,
    )
    async with running_machine(api, tmp_path, workers=2) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/replay-normalized", asked)
        # What failed has left nothing behind.
        assert await client.lines(asked[0])


async def test_a_client_that_leaves_stops_the_work(client: Client) -> None:
    async with client.http.get(
        client.url("/replay-normalized"), params={"options": json.dumps(options(to=f"{DAY}00:20:00Z"))}
    ) as response:
        await response.content.read(1000)
    await asyncio.sleep(1)
    tasks = [task for task in asyncio.all_tasks() if "_feed" in repr(task.get_coro())]
    assert tasks == []


async def test_a_worker_that_dies_fails_its_own_requests_and_is_replaced(client: Client) -> None:
    [pid] = client.machine.worker_pids

    async def ask_and_kill() -> None:
        asked = {"options": json.dumps(options(to=f"{DAY}00:20:00Z"))}
        async with client.http.get(client.url("/replay-normalized"), params=asked) as response:
            await response.content.read(1000)
            os.kill(pid, signal.SIGKILL)
            await response.read()

    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
        await ask_and_kill()
    while client.machine.worker_pids in ([], [pid]):  # the test's time-out bounds it
        await asyncio.sleep(0.05)
    assert await client.lines(options())


async def test_normalized_frames_are_the_lines(client: Client) -> None:
    frames, code = await client.frames("/ws-replay-normalized", options=json.dumps(options()))
    assert code == 1000
    assert frames == await client.lines(options())


async def test_websocket_is_on_the_http_port_too(client: Client) -> None:
    async with client.http.ws_connect(client.url("/ws-replay-normalized"), params={"options": json.dumps(options())}) as socket:
        assert json.loads((await socket.receive()).data)["exchange"] == "bitmex"


async def test_bad_websocket_requests_are_closed_with_1008(client: Client) -> None:
    frames, code = await client.frames("/ws-replay-normalized", options=json.dumps(options(exchange="x")))
    assert (frames, code) == ([], 1008)
    frames, code = await client.frames("/ws-replay", exchange="bitmex", to="2020-02-02")
    assert (frames, code) == ([], 1008)


async def raw_frames(client: Client, subscription: Any, **query: str) -> tuple[list[Any], int | None]:
    asked = {"exchange": "bitmex", "from": f"{DAY}00:00", "to": f"{DAY}00:01"} | query
    async with client.http.ws_connect(client.ws_url("/ws-replay"), params=asked) as socket:
        if subscription is not None:
            await socket.send_json(subscription)
        return [json.loads(frame.data) async for frame in socket], socket.close_code


async def test_raw_replay_answers_the_exchange_s_own_subscriptions(client: Client) -> None:
    frames, code = await raw_frames(client, {"op": "subscribe", "args": ["trade:XBTUSD"]})
    asked = options(symbols=None, dataTypes=None, to=f"{DAY}00:01", filters=[{"channel": "trade", "symbols": ["XBTUSD"]}])
    assert code == 1000
    assert frames == [line["message"] for line in await client.lines(asked, "/replay")]


async def test_connections_of_a_session_replay_in_step(client: Client) -> None:
    (trades, _), (books, _) = await asyncio.gather(
        raw_frames(client, {"op": "subscribe", "args": ["trade:XBTUSD"]}, session="s"),
        raw_frames(client, {"op": "subscribe", "args": ["orderBookL2:XBTUSD"]}, session="s"),
    )
    assert {frame["table"] for frame in trades} == {"trade"}
    assert {frame["table"] for frame in books} == {"orderBookL2"}
    alone, _ = await raw_frames(client, {"op": "subscribe", "args": ["trade:XBTUSD"]})
    assert trades == alone


async def test_a_connection_without_a_subscription_is_closed(client: Client) -> None:
    assert await raw_frames(client, None) == ([], 1008)


async def test_a_subscription_may_be_an_array(client: Client) -> None:
    subscription = [{"ticket": "mine"}, {"type": "trade", "codes": ["KRW-BTC"]}]
    # The stand-in has no such exchange: that it was asked shows that the subscription was understood.
    assert await raw_frames(client, subscription, exchange="upbit") == ([], 1011)
    assert await raw_frames(client, {"type": "trade", "codes": ["KRW-BTC"]}, exchange="upbit") == ([], 1008)
