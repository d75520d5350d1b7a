"""An upstream that fails, a cache that is damaged, a worker that is killed: told, or mended, and nobody else is touched."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tardis_machine.processes import replay_pool
from tardis_machine.sample.faults import Fault
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.leaks import KEPT_ALIVE, assert_no_surprise, nothing_leaks
from tests.integration.machine import DAY, Client, options, running_machine
from tests.integration.served import fill_bitmex

pytestmark = pytest.mark.asyncio(loop_scope="module")

# As patient as needed to see that it tries again, and no more.
HISTORY = {"attempts": 3, "timeout_s": 0.5, "backoff_scale": 0.001}
# Where requests are counted: on a busy machine an answer takes longer, and one that is given up is asked for again.
PATIENT = HISTORY | {"timeout_s": 60.0}

# That many are in the cache.
MINUTES = 15

LASTING = {
    "too many requests": (Fault(status=429, message="slow down"), 429, "slow down"),
    "a server's error": (Fault(status=500, message="oh no"), 500, "oh no"),
    "no access": (Fault(status=401, message="not with this key"), 401, "not with this key"),
    "an answer that is none": (Fault(status=204), 502, ""),
    "garbage": (Fault(body="garbage"), 502, "corrupt"),
    "half a slice": (Fault(body="half"), 502, "truncated"),
    "no bytes at all": (Fault(body="empty"), 502, "truncated"),
    "a cut": (Fault(body="cut"), 502, "could not be read"),
    "nothing": (Fault(body="hang"), 504, "did not answer in time"),
    "a size that can't be": (Fault(slice_size=0), 502, "X-Slice-Size"),
}
PASSING = {name: fault for name, (fault, status, _) in LASTING.items() if status != 401}


@pytest.fixture(scope="module")
def upstream() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi().serve_in_thread() as api:
        yield api


@pytest.fixture
def api(upstream: SampleHistoryApi) -> SampleHistoryApi:
    upstream.recover()
    upstream.requests.clear()
    return upstream


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(upstream: SampleHistoryApi, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    cache_dir = tmp_path_factory.mktemp("cache")
    fill_bitmex(cache_dir, MINUTES)
    async with running_machine(upstream, cache_dir, workers=2, _history=HISTORY) as client:
        yield client


_minutes = count(1)


def fresh(**fields: Any) -> dict[str, Any]:
    """A request for a minute that no other test has brought into the cache."""
    hour, minute = divmod(next(_minutes), 60)
    start = f"{DAY}{hour + 1:02d}:{minute:02d}"
    return options(**({"from": f"{start}:00Z", "to": f"{start}:59.9Z", "dataTypes": ["trade"]} | fields))


@pytest.mark.parametrize("name", LASTING)
async def test_a_lasting_fault_of_upstream_is_passed_on(client: Client, api: SampleHistoryApi, name: str) -> None:
    fault, expected, says = LASTING[name]
    api.fail(fault, times=1000)
    status, body = await client.get("/replay-normalized", fresh())
    assert status == expected
    assert says in json.loads(body)["message"]
    frames, code, reason = await ws_end(client, fresh())
    assert (frames, code) == (0, 1011)
    assert says[:20] in reason


@pytest.mark.parametrize("name", PASSING)
async def test_a_passing_fault_of_upstream_is_not_seen(client: Client, api: SampleHistoryApi, name: str) -> None:
    api.fail(PASSING[name])
    lines = await client.lines(fresh())
    assert len(lines) > 100
    assert len(api.requests) > 1


async def ws_end(client: Client, asked: Any) -> tuple[int, int | None, str]:
    """How many frames came, and how it ended."""
    async with client.http.ws_connect(client.ws_url("/ws-replay-normalized"), params={"options": json.dumps(asked)}) as socket:
        frames = 0
        while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            frames += 1
        return frames, socket.close_code, message.extra or ""


async def test_a_fault_in_the_middle_is_seen_on_every_route(
    client: Client, api: SampleHistoryApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    asked = options(**{"from": f"{DAY}10:00:00Z", "to": f"{DAY}10:09:00Z"})
    api.fail(Fault(body="garbage"), times=1000, when=lambda request: request.start_us // 60_000_000 % 60 == 5)
    async with nothing_leaks(*KEPT_ALIVE):
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/replay-normalized", asked)
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/replay", options(dataTypes=None, symbols=None, **{name: asked[name] for name in ("from", "to")}))
        frames, code, reason = await ws_end(client, asked)
        assert (frames > 1000, code) == (True, 1011)
        assert "bitmex 2020-02-01T10:05Z" in reason
    assert_no_surprise(caplog)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"garbage", lambda data: b""])
async def test_a_damaged_cached_slice_is_fetched_again(api: SampleHistoryApi, tmp_path: Path, damage: Any) -> None:
    fill_bitmex(tmp_path, 2)
    async with running_machine(api, tmp_path, _history=PATIENT) as client:
        whole = await client.lines(options())
        assert not api.requests
        for path in tmp_path.rglob("*.json.gz"):
            path.write_bytes(damage(path.read_bytes()))
        assert await client.lines(options()) == whole
        assert len(api.requests) == 2
        # What came instead is kept.
        assert await client.lines(options()) == whole
        assert len(api.requests) == 2
        for path in tmp_path.rglob("*.json.*"):
            path.write_bytes(damage(path.read_bytes()))
        api.fail(Fault(status=403, message="not today"), times=1000)
        assert (await client.get("/replay-normalized", options()))[0] == 403


async def test_a_cache_that_can_t_be_written_is_done_without(api: SampleHistoryApi, tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    async with running_machine(api, no_folder, _history=HISTORY) as client:
        whole = await client.lines(options())
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        client_of_full_disk = running_machine(api, tmp_path / "full", _history=HISTORY)
        async with client_of_full_disk as other:
            resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
            try:
                assert await other.lines(options()) == whole
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [path for path in (tmp_path / "full").rglob("*") if path.is_file()]


async def stalled(client: Client, asked: Any) -> aiohttp.ClientResponse:
    """An answer under way, of which little is read."""
    response = await client.http.post(client.url("/replay-normalized"), json=asked, headers={"Accept-Encoding": "identity"})
    assert await response.content.readexactly(1000)
    return response


async def test_a_killed_worker_fails_its_own_requests_alone(
    client: Client, api: SampleHistoryApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_pool, "_LEAST_LIFE_S", 0.0)
    long = options(to=f"{DAY}00:{MINUTES}:00Z")
    async with nothing_leaks(*KEPT_ALIVE):
        # The first and the third have one worker, the second has the other.
        doomed, lucky = await stalled(client, long), await stalled(client, long)
        ws = await client.http.ws_connect(client.url("/ws-replay-normalized"), params={"options": json.dumps(long)})
        await ws.receive()
        victim, other = client.machine.worker_pids
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientPayloadError):
            await doomed.read()
        while (message := await ws.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
        assert (message.data, message.extra) == (1011, "the worker process that served this request died")
        body = await lucky.read()
        assert body.endswith(b"}\n")
        assert body.count(b"\n") > 50_000
        # A new request is served, whether the new worker is there yet or not.
        assert await client.lines(fresh())
        async with asyncio.timeout(5):
            while len(client.machine.worker_pids) < 2:
                await asyncio.sleep(0.02)
        assert other in client.machine.worker_pids
        assert victim not in client.machine.worker_pids
    assert "a worker process died and is replaced" in caplog.text


async def test_with_its_only_worker_killed_a_request_waits_for_the_next(api: SampleHistoryApi, tmp_path: Path) -> None:
    fill_bitmex(tmp_path, 2)
    async with running_machine(api, tmp_path, workers=1) as client:
        whole = await client.lines(options())
        killed = client.machine.worker_pids
        os.kill(killed[0], signal.SIGKILL)
        async with asyncio.timeout(5):
            while client.machine.worker_pids == killed:  # the next one may be there before we look
                await asyncio.sleep(0.001)
        assert await client.lines(options()) == whole


async def test_a_fault_of_our_own_ends_one_request_and_is_logged(
    api: SampleHistoryApi, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("who would have thought")

    async with running_machine(api, tmp_path, workers=0) as client:
        monkeypatch.setattr("tardis_machine.processes.jobs.slices.read_slice", broken)
        status, body = await client.get("/replay-normalized", options())
        assert (status, json.loads(body)["message"]) == (
            500,
            "an internal error ended this request: ZeroDivisionError: who would have thought",
        )
        assert (await ws_end(client, options()))[1] == 1011
        monkeypatch.undo()
        assert await client.lines(options())
        monkeypatch.setattr("tardis_machine.processes.slice_sender.fetch_slices", broken)
        assert (await client.get("/replay-normalized", options()))[0] == 500
        monkeypatch.undo()
        monkeypatch.setattr("tardis_machine.processes.jobs.replay.make_job", broken)
        assert (await client.get("/replay-normalized", options()))[0] == 500
    assert any("ZeroDivisionError" in getattr(record, "fields", {}).get("traceback", "") for record in caplog.records)
