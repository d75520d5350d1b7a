from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zstandard
from aiohttp import ClientPayloadError, ClientResponse, ClientSession, ClientTimeout

from tardis_machine.filters import Filter
from tardis_machine.sample.faults import Fault
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import MINUTE_US, SampleMarket
from tardis_machine.sample.recording import Recording

FREE_US = 1_704_067_200_000_000  # 2024-01-01
FREE, PAID = "2024-01-01T00:00:00.000Z", "2024-01-02T00:00:00.000Z"
TRADES = [Filter("trade", ["XBTUSD"])]
TRADES_JSON = '[{"channel":"trade","symbols":["XBTUSD"]}]'
RECORDING = Recording(SampleMarket(1, activity=0.2))


@pytest.fixture
async def api() -> AsyncIterator[SampleHistoryApi]:
    async with SampleHistoryApi(RECORDING, api_key="right") as api:
        yield api


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession(auto_decompress=False, timeout=ClientTimeout(total=20)) as session:
        yield session


async def _get(
    session: ClientSession, api: SampleHistoryApi, *, exchange: str = "bitmex", key: str | None = None, **query: str
) -> tuple[ClientResponse, bytes]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    query = {"from" if name == "from_" else name: value for name, value in query.items()}
    async with session.get(f"{api.url}/data-feeds/{exchange}", params=query, headers=headers, allow_redirects=False) as response:
        return response, await response.read()


def _decompress(response: ClientResponse, body: bytes) -> bytes:
    if response.headers["Content-Encoding"] == "gzip":
        return gzip.decompress(body)
    assert response.headers["Content-Encoding"] == "zstd"
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        return reader.read()


@pytest.mark.parametrize(
    ("compression", "encoding"), [("gzip", "gzip"), ("zstd", "zstd"), ("zstd-multiframe", "zstd"), (None, "gzip")]
)
async def test_a_slice_is_what_was_recorded(
    api: SampleHistoryApi, session: ClientSession, compression: str | None, encoding: str
) -> None:
    query = {"compression": compression} if compression else {}
    response, body = await _get(session, api, from_=FREE, offset="3", filters=TRADES_JSON, **query)
    assert response.status == 200
    assert response.headers["Content-Encoding"] == encoding
    assert response.headers["X-Slice-Size"] == "1"
    assert _decompress(response, body) == RECORDING.minute("bitmex", FREE_US // MINUTE_US + 3, TRADES)


async def test_offset_and_size_choose_minutes(api: SampleHistoryApi, session: ClientSession) -> None:
    response, body = await _get(session, api, from_="2024-01-01T00:10:42.000Z", offset="5", sliceSize="3", filters=TRADES_JSON)
    assert response.headers["X-Slice-Size"] == "3"
    assert _decompress(response, body) == RECORDING.slice("bitmex", FREE_US + 15 * MINUTE_US, 3, TRADES)
    _, bare = await _get(session, api, from_="2024-01-01")
    assert gzip.decompress(bare) == RECORDING.minute("bitmex", FREE_US // MINUTE_US)


async def test_sparse_filters_suggest_longer_slices(api: SampleHistoryApi, session: ClientSession) -> None:
    async def suggested(**query: str) -> int:
        response, _ = await _get(session, api, from_=FREE, offset="1", **query)
        return int(response.headers["X-Suggested-Slice-Size"])

    assert await suggested() == 1
    assert 2 <= await suggested(filters=TRADES_JSON) <= 10
    assert await suggested(filters='[{"channel":"chat"}]') == 10


async def test_only_first_days_are_free(api: SampleHistoryApi, session: ClientSession) -> None:
    assert (await _get(session, api, from_=FREE))[0].status == 200
    assert (await _get(session, api, from_=PAID, key="right", filters=TRADES_JSON))[0].status == 200
    refused, body = await _get(session, api, from_=PAID)
    assert (refused.status, json.loads(body)["code"]) == (401, 401)
    assert "first day of each month" in json.loads(body)["message"]
    assert (await _get(session, api, from_=FREE, key="wrong"))[0].status == 401
    assert (await _get(session, api, from_=FREE, offset="1439", sliceSize="2"))[0].status == 401
    async with SampleHistoryApi(RECORDING) as open_api:
        assert (await _get(session, open_api, from_=PAID, filters=TRADES_JSON))[0].status == 200


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"from_": "yesterday"}, 400, "ISO 8601 format"),
        ({}, 400, "ISO 8601 format"),
        ({"from_": FREE, "offset": "-1"}, 400, "offset: expected a whole number from 0, got '-1'"),
        ({"from_": FREE, "sliceSize": "0"}, 400, "sliceSize: expected"),
        ({"from_": FREE, "sliceSize": "11"}, 400, "sliceSize: expected"),
        ({"from_": FREE, "filters": "[{]"}, 400, "filters: expected"),
        ({"from_": FREE, "filters": '[{"symbols":[]}]'}, 400, "filters: expected"),
        ({"from_": FREE, "compression": "brotli"}, 400, "compression: expected one of zstd-multiframe, zstd, gzip, got 'brotli'"),
        ({"from_": FREE, "exchange": "mtgox"}, 404, "mtgox"),
    ],
)
async def test_bad_requests_are_told_why(
    api: SampleHistoryApi, session: ClientSession, query: dict[str, Any], status: int, says: str
) -> None:
    response, body = await _get(session, api, **query)
    assert response.status == status
    assert response.content_type == "application/json"
    assert says in json.loads(body)["message"]


async def test_other_paths_are_not_found(api: SampleHistoryApi, session: ClientSession) -> None:
    async with session.get(f"{api.url}/elsewhere") as response:
        assert response.status == 404
        assert (await response.json())["code"] == 404


async def test_what_is_yet_to_come_is_refused(session: ClientSession) -> None:
    now_us = FREE_US + 5 * MINUTE_US
    async with SampleHistoryApi(RECORDING, clock_us=lambda: now_us) as api:
        assert (await _get(session, api, from_=FREE, offset="4", filters=TRADES_JSON))[0].status == 200
        refused, body = await _get(session, api, from_=FREE, offset="5", filters=TRADES_JSON)
        assert refused.status == 400
        assert "not available yet" in json.loads(body)["message"]
        now_us += MINUTE_US
        assert (await _get(session, api, from_=FREE, offset="5", filters=TRADES_JSON))[0].status == 200


async def test_requests_are_counted_by_slice(api: SampleHistoryApi, session: ClientSession) -> None:
    for compression in ("zstd", "gzip"):
        await _get(session, api, from_=FREE, offset="2", filters=TRADES_JSON, compression=compression)
    await _get(session, api, from_="2024-01-01T00:02:00.000Z", filters=TRADES_JSON)
    await _get(session, api, from_=PAID, key="right", filters=TRADES_JSON)
    assert sorted(api.counts.values()) == [1, 3]
    assert api.counts["bitmex", FREE_US + 2 * MINUTE_US, 1, TRADES_JSON.encode()] == 3
    assert [request.authorization for request in api.requests] == [None, None, None, "Bearer right"]


@pytest.mark.parametrize("status", [429, 500, 401])
async def test_an_error_on_command(api: SampleHistoryApi, session: ClientSession, status: int) -> None:
    api.fail(Fault(status=status, message="so it is"), times=2)
    for _ in range(2):
        response, body = await _get(session, api, from_=FREE, filters=TRADES_JSON)
        assert response.status == status
        assert json.loads(body) == {"code": status, "message": "so it is"}
    assert (await _get(session, api, from_=FREE, filters=TRADES_JSON))[0].status == 200


async def test_a_fault_may_wait_for_its_request(api: SampleHistoryApi, session: ClientSession) -> None:
    api.fail(Fault(status=500), when=lambda request: request.start_us == FREE_US + MINUTE_US)
    assert (await _get(session, api, from_=FREE, filters=TRADES_JSON))[0].status == 200
    assert (await _get(session, api, from_=FREE, offset="1", filters=TRADES_JSON))[0].status == 500
    api.fail(Fault(status=500), times=100)
    api.recover()
    assert (await _get(session, api, from_=FREE, filters=TRADES_JSON))[0].status == 200


async def test_bodies_that_are_wrong(api: SampleHistoryApi, session: ClientSession) -> None:
    query = {"from_": FREE, "offset": "1", "filters": TRADES_JSON, "compression": "zstd"}
    response, right = await _get(session, api, **query)

    async def body_of(fault: Fault) -> bytes:
        api.fail(fault)
        response, body = await _get(session, api, **query)
        assert response.status == 200
        return body

    assert await body_of(Fault(body="half")) == right[: len(right) // 2]
    assert await body_of(Fault(body="empty")) == b""
    garbage = await body_of(Fault(body="garbage"))
    assert garbage != right
    with pytest.raises(zstandard.ZstdError):
        zstandard.decompress(garbage)
    assert _decompress(response, await body_of(Fault(trailing_newline=False))) == _decompress(response, right)[:-1]
    assert await body_of(Fault(chunk_pause_s=0.001)) == right


async def test_headers_that_are_wrong(api: SampleHistoryApi, session: ClientSession) -> None:
    query = {"from_": FREE, "offset": "1", "filters": TRADES_JSON}
    api.fail(Fault(slice_size="missing"))
    assert "X-Slice-Size" not in (await _get(session, api, **query))[0].headers
    api.fail(Fault(slice_size=7))
    assert (await _get(session, api, **query))[0].headers["X-Slice-Size"] == "7"
    api.fail(Fault(encoding_header=False))
    response, body = await _get(session, api, **query)
    assert "Content-Encoding" not in response.headers
    assert gzip.decompress(body) == RECORDING.minute("bitmex", FREE_US // MINUTE_US + 1, TRADES)


async def test_a_connection_that_breaks_or_hangs(api: SampleHistoryApi, session: ClientSession) -> None:
    api.fail(Fault(body="cut"))
    with pytest.raises(ClientPayloadError):
        await _get(session, api, from_=FREE)
    api.fail(Fault(body="hang"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_get(session, api, from_=FREE), 0.2)


async def test_a_redirect(api: SampleHistoryApi, session: ClientSession) -> None:
    api.fail(Fault(location="http://localhost:1/v1/elsewhere"))
    response, _ = await _get(session, api, from_=FREE)
    assert response.status == 302
    assert response.headers["Location"] == "http://localhost:1/v1/elsewhere"


async def test_it_serves_from_a_thread_and_from_a_process(session: ClientSession) -> None:
    right = RECORDING.minute("bitmex", FREE_US // MINUTE_US, TRADES)
    with SampleHistoryApi(RECORDING).serve_in_thread() as api:
        assert gzip.decompress((await _get(session, api, from_=FREE, filters=TRADES_JSON))[1]) == right
        url = api.url
        with (
            pytest.raises(OSError),
            SampleHistoryApi(RECORDING, port=int(url.split(":")[2].removesuffix("/v1"))).serve_in_thread(),
        ):
            pass
        with pytest.raises(OSError), SampleHistoryApi.serve_in_process(port=int(url.split(":")[2].removesuffix("/v1"))):
            pass
    with SampleHistoryApi.serve_in_process(seed=1, activity=0.2) as url:
        async with session.get(f"{url}/data-feeds/bitmex", params={"from": FREE, "filters": TRADES_JSON}) as response:
            assert gzip.decompress(await response.read()) == right
    with pytest.raises(OSError):
        await session.get(url)
