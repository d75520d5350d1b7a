"""Books at an instant: `/book` and `book_at`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tardis_machine import book_at
from tardis_machine.errors import OptionsError
from tardis_machine.messages import BookChange, parse_timestamp_us
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.integration.machine import Client, running_machine

DAY = "2020-02-01T"


@pytest.fixture
async def api() -> AsyncIterator[SampleHistoryApi]:
    async with SampleHistoryApi(Recording(SampleMarket(1, 0.2), disconnects_per_day=0)) as api:
        yield api


def levels(book: BookChange) -> tuple[dict[float, float], dict[float, float]]:
    bids, asks = ({level.price: level.amount for level in side} for side in (book.bids, book.asks))
    return bids, asks  # type: ignore[return-value]


@pytest.mark.parametrize(("exchange", "symbol"), [("bitmex", "XBTUSD"), ("coinbase", "BTC-USD")])
async def test_it_is_the_book_that_was_recorded(api: SampleHistoryApi, tmp_path: Path, exchange: str, symbol: str) -> None:
    for at in (f"{DAY}00:00:30.5Z", f"{DAY}00:14:00Z"):
        book = await book_at(exchange=exchange, symbol=symbol, at=at, api_url=api.url, cache_dir=tmp_path)
        assert isinstance(book, BookChange)
        assert book.is_snapshot
        assert parse_timestamp_us(book.local_timestamp) <= parse_timestamp_us(at)
        bids, asks = levels(book)
        assert list(bids) == sorted(bids, reverse=True)
        assert list(asks) == sorted(asks)
        true_bids, true_asks = api.recording.book_at(exchange, symbol, parse_timestamp_us(at))
        assert list(bids.items())[:50] == list(true_bids.items())[:50]
        assert list(asks.items())[:50] == list(true_asks.items())[:50]


async def test_until_a_day_begins_with_a_whole_book_it_is_that_of_the_day_before(tmp_path: Path) -> None:
    at = "2020-02-02T00:00:00.000001Z"
    async with SampleHistoryApi(Recording(SampleMarket(1, 0.005), disconnects_per_day=0)) as api:
        book = await book_at(exchange="bitmex", symbol="XBTUSD", at=at, api_url=api.url, cache_dir=tmp_path)
        assert book.local_timestamp.startswith("2020-02-01T23:5")
        true_bids, true_asks = api.recording.book_at("bitmex", "XBTUSD", parse_timestamp_us(at))
    bids, asks = levels(book)
    assert list(bids.items())[:20] == list(true_bids.items())[:20]
    assert list(asks.items())[:20] == list(true_asks.items())[:20]


async def get(client: Client, **query: str) -> tuple[int, dict[str, object]]:
    async with client.http.get(client.url("/book"), params=query) as response:
        return response.status, await response.json()


async def test_the_server_has_the_same(api: SampleHistoryApi, tmp_path: Path) -> None:
    at = f"{DAY}00:05:10Z"
    book = await book_at(exchange="bitmex", symbol="XBTUSD", at=at, depth=3, api_url=api.url, cache_dir=tmp_path)
    async with running_machine(api, tmp_path) as client:
        status, found = await get(client, exchange="bitmex", symbol="XBTUSD", at=at, depth="3")
        assert status == 200
        assert found == {
            "type": "book_change",
            "symbol": "XBTUSD",
            "exchange": "bitmex",
            "isSnapshot": True,
            "bids": [{"price": level.price, "amount": level.amount} for level in book.bids],
            "asks": [{"price": level.price, "amount": level.amount} for level in book.asks],
            "timestamp": book.timestamp,
            "localTimestamp": book.local_timestamp,
        }
        assert len(book.bids) == 3
        status, body = await get(client, exchange="bitmex", symbol="NOTHING", at=at)
        assert (status, str(body["message"]).split(";")[0]) == (
            404,
            "at: no book of NOTHING is known at 2020-02-01T00:05:10.000000Z",
        )
        for query, field in (
            ({"exchange": "nowhere"}, "exchange"),
            ({"at": "yesterday"}, "at"),
            ({"depth": "0"}, "depth"),
            ({"depth": "ten"}, "depth"),
            ({"symbol": ""}, "symbol"),
            ({"exchange": "binance-dex"}, "exchange"),
        ):
            status, body = await get(client, **({"exchange": "bitmex", "symbol": "XBTUSD", "at": at} | query))
            assert status in (400, 404), body
            if status == 400:
                assert body["field"] == field


async def test_there_is_no_book_while_the_connection_is_lost(tmp_path: Path) -> None:
    recording = Recording(SampleMarket(1, 0.2), disconnects_per_day=1440)
    minute = next(index for index in range(26_341_925, 26_341_980) if recording.outage("bitmex", index))
    lost, back = recording.outage("bitmex", minute) or (0, 0)
    async with SampleHistoryApi(recording) as api:
        asked = {"exchange": "bitmex", "symbol": "XBTUSD", "api_url": api.url, "cache_dir": tmp_path}
        assert (await book_at(at=_text(lost // 10 - 3_000_000), **asked)).bids  # type: ignore[arg-type]
        with pytest.raises(OptionsError, match="its connection was lost"):
            await book_at(at=_text((lost + back) // 20), **asked)  # type: ignore[arg-type]


def _text(instant_us: int) -> str:
    from tardis_machine.messages import to_timestamp

    return to_timestamp(instant_us)
