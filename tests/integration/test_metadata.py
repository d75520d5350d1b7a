"""Metadata of the history API: from upstream, kept, stale where it is away, and of what was recorded; by HTTP and in the library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tardis_machine import (
    clear_cache,
    find_instrument_symbols,
    get_api_key_access_info,
    get_exchange_details,
    get_instrument_info,
)
from tardis_machine.errors import OptionsError, UpstreamError
from tardis_machine.filters import Filter
from tardis_machine.history.recordings import RecordedFeed
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import Client, running_machine
from tests.integration.served import FEBRUARY_US, fill_bitmex

KEY = "the-upstream-key"
NOWHERE = SampleHistoryApi(port=9)


async def get(client: Client, path: str, **query: str) -> tuple[int, Any, Any]:
    async with client.http.get(client.url(path), params=query) as response:
        return response.status, await response.json(), response.headers


async def test_documents_are_asked_for_once_an_hour_and_served_when_upstream_is_away(tmp_path: Path) -> None:
    paths = ["/v1/exchanges", "/v1/exchanges/bitmex", "/v1/instruments/bitmex", "/v1/api-key-info"]
    async with SampleHistoryApi(api_key=KEY) as api, running_machine(api, tmp_path, workers=0, api_key=KEY) as client:
        first = [await get(client, path) for path in paths]
        assert [status for status, _, _ in first] == [200] * 4
        assert "bitmex" in {each["id"] for each in first[0][1]}
        assert "trade" in first[1][1]["availableChannels"]
        assert "XBTUSD" in {each["id"] for each in first[2][1]}
        assert KEY not in json.dumps([document for _, document, _ in first])
        status, found, _ = await get(client, "/v1/instruments/bitmex", filter='{"type":"perpetual","active":true}')
        assert (status, {each["type"] for each in found}) == (200, {"perpetual"})
        status, found, _ = await get(client, "/v1/instruments/bitmex/xbtusd")
        assert (status, found["id"]) == (200, "XBTUSD")
        status, found, _ = await get(client, "/v1/instruments/bitmex/NOTHING")
        assert (status, found["code"]) == (404, 404)
        status, found, _ = await get(client, "/v1/instruments/bitmex", filter='{"tpye":"perpetual"}')
        assert (status, found["message"]) == (400, f"filter: there is no field 'tpye' to filter by; there are {_FIELDS}")
        assert sorted(api.metadata_requests) == sorted(paths)
    for file in tmp_path.rglob("metadata/*.json"):
        os.utime(file, (0, 0))
        assert KEY not in file.name
    async with running_machine(NOWHERE, tmp_path, workers=0, api_key=KEY) as client:
        for path, (_, document, _) in zip(paths, first, strict=True):
            status, kept, headers = await get(client, path)
            assert (status, kept) == (200, document)
            assert headers["Warning"].startswith("110")
        status, refusal, _ = await get(client, "/v1/exchanges/deribit")
        assert (status, refusal["code"]) == (502, 502)


_FIELDS = "id, datasetId, baseCurrency, quoteCurrency, type, contractType, underlyingType, active, availableSince, availableTo"


_TOKEN_WANTED = "Authorization: expected Bearer and a token that this server was started with"


async def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    async with SampleHistoryApi(api_key=KEY) as api, running_machine(api, tmp_path, workers=0, api_key="wrong") as client:
        assert (await get(client, "/v1/api-key-info"))[:2] == (401, {"code": 401, "message": "The API key is not valid."})
        assert (await get(client, "/v1/exchanges/nowhere"))[0] == 400
    async with SampleHistoryApi() as api, running_machine(api, tmp_path, workers=0, auth_token="team") as client:
        # As upstream, whose clients show no key for these.
        assert (await get(client, "/v1/exchanges"))[0] == 200
        assert (await get(client, "/v1/exchanges/bitmex"))[0] == 200
        for path in ("/v1/instruments/bitmex", "/v1/api-key-info", "/v1/exchanges-of-others"):
            assert (await get(client, path))[:2] == (401, {"code": 401, "message": _TOKEN_WANTED})


async def test_recordings_say_what_was_heard(tmp_path: Path) -> None:
    for number, filters in enumerate(((Filter("trade", ["XBTUSD", "ETHUSD"]),), (Filter("orderBookL2", ["XBTUSD"]),))):
        feed = RecordedFeed(tmp_path / "recorded", "bitmex", filters)
        assert feed.claim()
        feed.append(FEBRUARY_US + number * 60_000_000, b"\n")
        feed.seal(FEBRUARY_US + number * 60_000_000)
    async with running_machine(NOWHERE, tmp_path, workers=0, record_dir=tmp_path / "recorded") as client:
        assert (await get(client, "/v1/exchanges"))[1] == [{"id": "bitmex", "name": "bitmex", "enabled": True}]
        _, details, _ = await get(client, "/v1/exchanges/bitmex")
        assert details["availableChannels"] == ["orderBookL2", "trade"]
        assert details["availableSince"] == "2020-02-01T00:00:00.000Z"
        assert [each["id"] for each in details["availableSymbols"]] == ["ETHUSD", "XBTUSD"]
        _, instruments, _ = await get(client, "/v1/instruments/bitmex", filter='{"id":["XBTUSD"]}')
        assert [each["datasetId"] for each in instruments] == ["XBTUSD"]
        assert (await get(client, "/v1/instruments/deribit"))[0] == 502


async def test_the_library_asks_the_same(tmp_path: Path) -> None:
    async with SampleHistoryApi(api_key=KEY) as api:
        place: dict[str, Any] = {"api_url": api.url, "cache_dir": tmp_path}
        assert (await get_exchange_details("bitmex", **place))["id"] == "bitmex"
        everything = await get_instrument_info(["bitmex", "deribit"], api_key=KEY, **place)
        assert {each["exchange"] for each in everything} == {"bitmex", "deribit"}
        [one] = await get_instrument_info("bitmex", symbol="xbtusd", api_key=KEY, **place)
        assert one["id"] == "XBTUSD"
        wanted = {"type": ["option"], "baseCurrency": "BTC", "availableSince": "2020-01-01", "availableTo": "2020-02-01"}
        [found] = await find_instrument_symbols(["deribit"], wanted, api_key=KEY, **place)
        options = [each["id"] for each in everything if each["type"] == "option" and each["baseCurrency"] == "BTC"]
        assert found == {"exchange": "deribit", "symbols": options}
        assert options
        assert (await get_api_key_access_info(KEY, **place))[0]["exchange"] == "all"
        with pytest.raises(UpstreamError, match="not valid"):
            await get_api_key_access_info("wrong", **place)
        with pytest.raises(OptionsError, match="exchange: expected a name"):
            await get_exchange_details("../x", **place)


def test_the_cache_is_cleared(tmp_path: Path) -> None:
    fill_bitmex(tmp_path, 1)
    assert list(tmp_path.rglob("*.json.*"))
    clear_cache(tmp_path)
    assert not list(tmp_path.rglob("*.json.*"))
