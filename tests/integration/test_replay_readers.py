"""Clients that leave, clients that read slowly, and clients that never read."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio

from tardis_machine import TardisMachine
from tardis_machine.processes.jobs.contract import CHUNK_BYTES
from tardis_machine.server import ws
from tests.integration.leaks import assert_no_surprise, nothing_leaks
from tests.integration.machine import DAY, options
from tests.integration.raw_client import WS_CLOSE, WS_PING, WS_PONG, WS_TEXT, RawClient, connected, http_get, ws_frame, ws_get
from tests.integration.served import Served, fill_bitmex, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTES = 20
ALL = options(to=f"{DAY}00:{MINUTES}:00Z")
RAW = {
    "exchange": "bitmex",
    "from": ALL["from"],
    "to": ALL["to"],
    "filters": [{"channel": "trade", "symbols": ["XBTUSD"]}, {"channel": "orderBookL2", "symbols": ["XBTUSD"]}],
}
FEW = options(to=f"{DAY}00:02:00Z")
NO_UPSTREAM = "http://127.0.0.1:9/v1"
SMALL_BUFFER_BYTES = 16 * 1024


def ws_normalized(asked: object = ALL) -> bytes:
    return ws_get(f"/ws-replay-normalized?options={quote(json.dumps(asked))}")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, MINUTES)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def machine(cache_dir: Path) -> AsyncIterator[TardisMachine]:
    machine = TardisMachine(api_url=NO_UPSTREAM, cache_dir=cache_dir, workers=2)
    await machine.start(port=0)
    assert await count_lines(machine.port) > 1000
    yield machine
    await machine.stop()


@pytest.fixture(scope="module")
def server(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(cache_dir, tmp_path_factory.mktemp("log") / "log", "--workers", "2", "--api-url", NO_UPSTREAM) as server:
        yield server


async def count_lines(port: int) -> int:
    """Messages of a whole replay; its end is checked."""
    async with connected(port) as client:
        await client.send(http_get("/replay-normalized", ALL))
        answer, ended = await client.receive_all(60)
        assert ended
        assert answer.endswith(b"\r\n0\r\n\r\n")
        return answer.count(b"}\n")


def processor_ticks(pids: list[int]) -> int:
    """Processor time that these have used, in hundredths of a second."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields)


async def test_two_hundred_clients_that_leave_at_random_points(
    machine: TardisMachine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(ws, "SESSION_START_DELAY_S", 0.1)
    rng = random.Random(7)
    raw_ws = ws_get(f"/ws-replay?exchange=bitmex&from={DAY}00:00&to={DAY}00:{MINUTES}&session=s")
    subscription = ws_frame(WS_TEXT, b'{"op":"subscribe","args":["trade:XBTUSD","orderBookL2:XBTUSD"]}')

    async def leave_early(number: int) -> None:
        await asyncio.sleep(number * 0.01)
        async with connected(rng.choice([machine.port, machine.ws_port])) as client:
            request = rng.choice([http_get("/replay-normalized", ALL), http_get("/replay", RAW), ws_normalized(), raw_ws])
            if rng.random() < 0.1:
                request = request[: rng.randrange(len(request))]
            await client.send(request)
            if request == raw_ws:
                await client.send(subscription)
            await read_some(client, rng.choice([0, 0, 100, 10_000, 1_000_000, 5_000_000]))
            if rng.random() < 0.5:
                client.abort()

    async with nothing_leaks():
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(leave_early(number))
        await asyncio.sleep(1)
        ticks = processor_ticks(machine.worker_pids)
        await asyncio.sleep(0.5)
        assert processor_ticks(machine.worker_pids) - ticks <= 5, "the workers go on for clients that have left"
    assert_no_surprise(caplog)
    assert await count_lines(machine.port) > 1000


async def read_some(client: RawClient, size: int) -> None:
    """Reads that many bytes, or what comes within a moment."""
    try:
        async with asyncio.timeout(0.5):
            while size > 0 and (part := await client.reader.read(1 << 16)):
                size -= len(part)
    except (TimeoutError, ConnectionError):
        pass


async def test_a_hundred_slow_readers_at_once(server: Served) -> None:
    whole = await count_lines(server.port)
    at_rest_mb = server.memory_mb
    # Nine read to the end, the others never.
    requests = [http_get("/replay-normalized", FEW), http_get("/replay", RAW | {"to": FEW["to"]}), ws_normalized(FEW)] * 3
    requests += [http_get("/replay-normalized", ALL), ws_normalized(), *[http_get("/replay", RAW)] * 5] * 13

    async def read_slowly(number: int, all_stalled: asyncio.Barrier) -> None:
        reads_to_the_end = number < 9
        async with connected(server.port, receive_buffer_bytes=SMALL_BUFFER_BYTES * (8 if reads_to_the_end else 1)) as client:
            await client.send(requests[number])
            received = len(await client.reader.readexactly(20_000))
            await all_stalled.wait()
            await all_stalled.wait()
            # Slowly, and to the end: nobody is cut while it reads.
            if reads_to_the_end:
                tail = b""
                while part := await client.reader.read(1 << 16):
                    received += len(part)
                    tail = (tail + part)[-100:]
                    if received < 500_000:
                        await asyncio.sleep(0.01)
                    if number % 3 == 2 and is_close(tail):
                        break
                assert received > 1_000_000
                assert tail.endswith(b"\r\n0\r\n\r\n") or is_close(tail), tail

    async with asyncio.TaskGroup() as group:
        all_stalled = asyncio.Barrier(len(requests) + 1)
        for number in range(len(requests)):
            group.create_task(read_slowly(number, all_stalled))
        await all_stalled.wait()
        await idle(server.worker_pids)
        # A window of chunks and the minute in use for each of them, not the hundred replays of 25 MB.
        assert server.memory_mb - at_rest_mb < 500
        # Those who don't read pause only their own replays.
        assert await count_lines(server.port) == whole
        await idle(server.worker_pids)
        await all_stalled.wait()


async def test_a_chunk_that_nobody_reads_is_in_memory_once(cache_dir: Path) -> None:
    machine = TardisMachine(api_url=NO_UPSTREAM, cache_dir=cache_dir, workers=1, max_unread_bytes=0)
    await machine.start(port=0)
    try:
        assert await count_lines(machine.port) > 1000
        tracemalloc.start()
        async with AsyncExitStack() as stack:
            for _ in range(20):
                client = await stack.enter_async_context(connected(machine.port, receive_buffer_bytes=SMALL_BUFFER_BYTES))
                await client.send(http_get("/replay", RAW))
                await client.reader.readexactly(20_000)
            await idle(machine.worker_pids)
            held_bytes = tracemalloc.get_traced_memory()[0] / 20
        # The lines of a step have a prefix more when they leave.
        assert CHUNK_BYTES / 2 < held_bytes < CHUNK_BYTES * 2.5
    finally:
        tracemalloc.stop()
        await machine.stop()


async def idle(pids: list[int]) -> None:
    """Waits until these do nothing any more: every buffer on the way to the clients is full then."""
    async with asyncio.timeout(60):
        ticks = -1
        while processor_ticks(pids) - ticks > 2:
            ticks = processor_ticks(pids)
            await asyncio.sleep(0.3)


def is_close(tail: bytes) -> bool:
    """Whether it ends with a WebSocket frame that closes with 1000."""
    reason = b"\x03\xe8WS replay finished"
    return tail.endswith(bytes([0x80 | WS_CLOSE, len(reason)]) + reason)


async def test_a_slow_reader_that_talks_gets_the_last_frame_too(machine: TardisMachine) -> None:
    """What it says after the replay's end must not make the kernel throw away what it has not read."""
    async with connected(machine.port, receive_buffer_bytes=SMALL_BUFFER_BYTES) as client:
        await client.send(ws_normalized(options(to=f"{DAY}00:01:00Z")))
        await client.reader.readuntil(b"\r\n\r\n")
        count = 0
        while True:
            opcode, payload = await client.read_frame()
            if opcode == WS_CLOSE:
                break
            count += opcode == WS_TEXT
            if count % 500 == 0:
                await client.send(ws_frame(WS_PONG, b""))
                await asyncio.sleep(0.05)
        assert payload[:2] == b"\x03\xe8"
        assert count > 4_000


async def test_a_client_is_pinged_and_its_pings_are_answered(machine: TardisMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws, "PING_INTERVAL_S", 0.05)
    async with connected(machine.port, receive_buffer_bytes=SMALL_BUFFER_BYTES) as client:
        await client.send(ws_normalized())
        await client.reader.readuntil(b"\r\n\r\n")
        await client.send(ws_frame(WS_PING, b"are you there"))
        await asyncio.sleep(0.2)
        seen = set()
        while seen != {WS_TEXT, WS_PING, WS_PONG}:
            opcode, payload = await client.read_frame()
            seen.add(opcode)
            assert opcode != WS_PONG or payload == b"are you there"
