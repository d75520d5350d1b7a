"""Documents of tens of megabytes, asked for by many who don't read, or by names and filters that are as long as a URL may be."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio

from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import Client, running_machine
from tests.integration.raw_client import body_of, connected, http_get, status_of
from tests.integration.test_replay_limits import LONGEST_LAG_S, SMALL_BUFFER_BYTES, Lag, answer_to

pytestmark = pytest.mark.asyncio(loop_scope="module")

INSTRUMENTS = 30_000
READERS = 60
# What one reader that stalls may cost, beside the document.
PIECE_BYTES = 256 * 1024


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Of a machine that knows two documents."""
    folder = tmp_path_factory.mktemp("cache")
    symbols = [f"BTC-27JUN25-{number}-C" for number in range(INSTRUMENTS)]
    instruments = [{"id": symbol, "exchange": "deribit", "type": "option", "active": False} for symbol in symbols]
    listed = [{"id": symbol, "type": "option", "availableSince": "2020-02-01T00:00:00.000Z"} for symbol in symbols * 2]
    details = {"id": "deribit", "availableChannels": ["trades"], "availableSymbols": listed}
    (folder / "metadata").mkdir()
    (folder / "metadata" / "exchange-deribit.json").write_text(json.dumps(details))
    (folder / "metadata" / "instruments-deribit.json").write_text(json.dumps(instruments))
    async with running_machine(SampleHistoryApi(port=9), folder, workers=0) as one:
        yield one


async def test_a_document_is_in_memory_once_however_many_do_not_read_it(client: Client) -> None:
    request = http_get("/v1/exchanges/deribit").replace(b"Connection: close\r\n", b"")
    whole = body_of(await answer_to(client.machine.port, http_get("/v1/exchanges/deribit")))
    assert len(json.loads(whole)["availableSymbols"]) == 2 * INSTRUMENTS
    tracemalloc.start()
    try:
        async with AsyncExitStack() as stack:
            for _ in range(READERS):
                raw = await stack.enter_async_context(connected(client.machine.port, receive_buffer_bytes=SMALL_BUFFER_BYTES))
                await raw.send(request)
                assert status_of(await raw.reader.readuntil(b"\r\n\r\n")) == 200
            await asyncio.sleep(0.5)
            # Beside the document itself there may be one that was just read from the disk.
            assert tracemalloc.get_traced_memory()[1] < 4 * len(whole) + READERS * PIECE_BYTES < READERS * len(whole) / 4
    finally:
        tracemalloc.stop()


async def test_who_does_not_read_a_document_gives_its_place_to_a_new_connection(client: Client, tmp_path: Path) -> None:
    """It needs no token, so that all places could be taken by anyone."""
    folder = Path(client.machine._settings["cache_dir"])
    request = http_get("/v1/exchanges/deribit").replace(b"Connection: close\r\n", b"")
    async with (
        running_machine(SampleHistoryApi(port=9), folder, workers=0, max_connections=3, auth_token="token") as full,
        AsyncExitStack() as stack,
    ):
        for _ in range(3):
            raw = await stack.enter_async_context(connected(full.machine.port, receive_buffer_bytes=SMALL_BUFFER_BYTES))
            await raw.send(request)
            assert status_of(await raw.reader.readuntil(b"\r\n\r\n")) == 200
        assert status_of(await answer_to(full.machine.port, http_get("/health-check", Authorization="Bearer token"))) == 200


async def test_who_takes_nothing_of_a_document_is_cut_off(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.server.bodies.UNREAD_TIMEOUT_S", 0.5)
    async with connected(client.machine.port, receive_buffer_bytes=SMALL_BUFFER_BYTES) as raw:
        await raw.send(http_get("/v1/exchanges/deribit"))
        await raw.reader.readuntil(b"\r\n\r\n")
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(2)
        raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
        rest, has_ended = await raw.receive_all(20)
    assert (has_ended, len(rest) < 5_000_000) == (True, True)


@pytest.mark.parametrize("path", ["/v1/instruments/deribit/{}", "/v1/datasets/deribit/trades/2020/02/30/{}.csv.gz"])
async def test_a_name_as_long_as_a_url_takes_no_time(client: Client, path: str) -> None:
    async with Lag() as lag:
        answer = await answer_to(client.machine.port, http_get(path.format("x" * 200_000)))
    assert status_of(answer) in (400, 404)
    assert len(answer) < 1000
    assert lag.longest_s < LONGEST_LAG_S


async def test_a_filter_of_thousands_of_values_is_looked_up(client: Client) -> None:
    wanted = {"id": [*[0] * 21_000, "BTC-27JUN25-7-C", ["no value"], {}, None]}
    began_s = time.monotonic()
    async with Lag() as lag:
        answer = await answer_to(
            client.machine.port, http_get(f"/v1/instruments/deribit?filter={quote(json.dumps(wanted, separators=(',', ':')))}")
        )
    assert [found["id"] for found in json.loads(body_of(answer))] == ["BTC-27JUN25-7-C"]
    assert lag.longest_s < LONGEST_LAG_S
    # Compared one by one they take six hundred million comparisons.
    assert time.monotonic() - began_s < 4


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/instruments/deribit?filter=", "filter"), ("/v1/data-feeds/deribit?from=2020-02-01&filters=", "filters")],
)
async def test_what_is_nested_too_deep_is_no_internal_error(client: Client, path: str, field: str) -> None:
    answer = await answer_to(client.machine.port, http_get(path + "%5B" * 20_000 + "%5D" * 20_000))
    assert (status_of(answer), json.loads(body_of(answer))["field"]) == (400, field)


async def test_a_filter_that_is_too_long_is_refused_in_a_sentence(client: Client) -> None:
    answer = await answer_to(client.machine.port, http_get("/v1/instruments/deribit?filter=" + "1" * 70_000))
    message = "filter: expected at most 65536 characters, got 70000"
    assert (status_of(answer), json.loads(body_of(answer))["message"]) == (400, message)
