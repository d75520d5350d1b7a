"""What one client may ask for is bounded, and what it asks for takes nothing that others need."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from tardis_machine import TardisMachine
from tardis_machine.processes.jobs.contract import CHUNK_BYTES
from tardis_machine.server import ws
from tardis_machine.server.request_options import OptionsReader
from tests.integration.leaks import assert_no_surprise
from tests.integration.machine import DAY, options
from tests.integration.raw_client import WS_CLOSE, WS_TEXT, body_of, connected, http_get, http_post, status_of, ws_frame, ws_get
from tests.integration.served import fill_bitmex, served
from tests.integration.test_publishing import published
from tests.integration.upstream import Asked, Upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTES = 5
NO_UPSTREAM = "http://127.0.0.1:9/v1"
SMALL_BUFFER_BYTES = 16 * 1024
# What a machine that is busy with other things may take; what is mended here took from 7 s to minutes.
LONGEST_LAG_S = 1.5
ALL = options(to=f"{DAY}00:0{MINUTES}:00Z")
FEW = options(to=f"{DAY}00:01:00Z")
EMPTY = options(to=f"{DAY}00:00:00Z")
EMPTY_RAW = {name: EMPTY[name] for name in ("exchange", "from", "to")}
WS_EMPTY = f"/ws-replay?exchange=bitmex&from={DAY}00:00&to={DAY}00:00"
SUBSCRIPTION = {"op": "subscribe", "args": ["trade:XBTUSD"]}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, MINUTES)
    return folder


@asynccontextmanager
async def running(cache_dir: Path, **keywords: Any) -> AsyncIterator[TardisMachine]:
    machine = TardisMachine(cache_dir=cache_dir, **({"workers": 1, "api_url": NO_UPSTREAM} | keywords))
    await machine.start(port=0)
    try:
        yield machine
    finally:
        await machine.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def machine(cache_dir: Path) -> AsyncIterator[TardisMachine]:
    async with running(cache_dir) as machine:
        yield machine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def strict(cache_dir: Path) -> AsyncIterator[TardisMachine]:
    """Every limit is low."""
    limits = {"max_filters": 3, "max_symbols": 4, "max_data_types": 3, "max_snapshot_levels": 30, "max_merged_requests": 2}
    sizes = {"max_subscriptions": 2, "max_subscription_bytes": 1024, "max_request_bytes": 2048}
    async with running(cache_dir, **limits, **sizes) as machine:
        yield machine


async def answer_to(port: int, request: bytes, timeout_s: float = 60) -> bytes:
    async with connected(port) as client:
        await client.send(request)
        answer, ended = await client.receive_all(timeout_s)
        assert ended
        return answer


async def end_of(port: int, target: str, *frames: bytes, timeout_s: float = 60) -> tuple[int, str]:
    """How a WebSocket ends after these frames: its code and reason."""
    async with asyncio.timeout(timeout_s), connected(port) as client:
        await client.send(ws_get(target))
        await client.reader.readuntil(b"\r\n\r\n")
        for frame in frames:
            await client.send(frame)
        while True:
            opcode, payload = await client.read_frame()
            if opcode == WS_CLOSE:
                return int.from_bytes(payload[:2], "big"), payload[2:].decode()


class Lag:
    """How long the event loop, which is the server's too, did not come back."""

    longest_s = 0.0

    async def __aenter__(self) -> Lag:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.05)
        self._task.cancel()

    async def _watch(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now_s = time.monotonic()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s


class TestLongRequests:
    """A request that names all symbols of an exchange is honest: it is served, and holds up nobody."""

    async def test_thousands_of_filters(self, machine: TardisMachine) -> None:
        filters = [{"channel": "trade", "symbols": [f"SYMBOL{number}"]} for number in range(12_000)]
        request = http_post("/replay", json.dumps(EMPTY_RAW | {"filters": filters}).encode())
        async with Lag() as lag:
            assert status_of(await answer_to(machine.port, request)) == 200
        assert lag.longest_s < LONGEST_LAG_S

    async def test_all_symbols_of_a_large_exchange(self, machine: TardisMachine) -> None:
        symbols = [f"BTC-27JUN25-{number}-C" for number in range(100_000)]
        for path, fields in (("/replay-normalized", EMPTY | {"symbols": symbols}), ("/replay", EMPTY_RAW)):
            filters = {} if "symbols" in fields else {"filters": [{"channel": "trade", "symbols": symbols}]}
            async with Lag() as lag:
                assert status_of(await answer_to(machine.port, http_post(path, json.dumps(fields | filters).encode()))) == 200
            assert lag.longest_s < LONGEST_LAG_S

    async def test_long_subscriptions(self, machine: TardisMachine) -> None:
        args = [f"trade:SYMBOL{number}" for number in range(2_000)]
        frame = ws_frame(WS_TEXT, json.dumps(SUBSCRIPTION | {"args": args}).encode())
        async with Lag() as lag:
            assert await end_of(machine.port, WS_EMPTY, *[frame] * 20) == (1000, "WS replay finished")
        assert lag.longest_s < LONGEST_LAG_S

    async def test_four_megabytes_in_a_frame_twenty_times(self, machine: TardisMachine) -> None:
        args = [f"trade:SYMBOL{number}" for number in range(190_000)]
        frame = ws_frame(WS_TEXT, json.dumps(SUBSCRIPTION | {"args": args}).encode()[: 4 << 20])
        assert len(frame) > 3_900_000
        async with Lag() as lag:
            with suppress(ConnectionError):  # who goes on sending may not hear why
                assert (await end_of(machine.port, WS_EMPTY, *[frame] * 20))[0] == 1009
            assert status_of(await answer_to(machine.port, http_get("/health-check"))) == 200
        assert lag.longest_s < LONGEST_LAG_S


SNAPSHOTS = ["book_snapshot_10_1s", "book_snapshot_10_2s", "book_snapshot_11_1s"]


class TestCaps:
    """Each is refused with one sentence that names the limit and its option."""

    @pytest.mark.parametrize(
        ("asked", "sentence"),
        [
            (
                options(dataTypes=["trade"] * 4),
                "dataTypes: expected at most 3 data types, got 4; the server's --max-data-types allows more",
            ),
            (
                options(dataTypes=SNAPSHOTS),
                "dataTypes: expected at most 30 levels in all snapshots, got 31; the server's --max-snapshot-levels allows more",
            ),
            (options(symbols=["A"] * 5), "symbols: expected at most 4 symbols, got 5; the server's --max-symbols allows more"),
            (
                [options()] * 3,
                "options: expected at most 2 requests, got 3; the server's --max-merged-requests allows more",
            ),
            (
                [options(), options(symbols=["A"] * 5)],
                "[1].symbols: expected at most 4 symbols, got 5; the server's --max-symbols allows more",
            ),
        ],
    )
    async def test_of_normalized_requests(self, strict: TardisMachine, asked: Any, sentence: str) -> None:
        answer = await answer_to(strict.port, http_get("/replay-normalized", asked))
        assert (status_of(answer), json.loads(body_of(answer))["message"]) == (400, sentence)
        for path in ("/ws-replay-normalized", "/ws-stream-normalized"):
            live = json.loads(json.dumps(asked), object_hook=lambda fields: {**fields, "from": None, "to": None})
            for one in live if isinstance(live, list) else [live]:
                del one["from"], one["to"]
            target = http_get(path, live if "stream" in path else asked).split(b" ")[1].decode()
            assert await end_of(strict.port, target) == (1008, sentence.encode()[:123].decode())

    @pytest.mark.parametrize(
        ("filters", "sentence"),
        [
            ([{"channel": "trade"}] * 4, "filters: expected at most 3 filters, got 4; the server's --max-filters allows more"),
            (
                [{"channel": "trade", "symbols": ["A", "B", "C"]}] * 2,
                "filters: expected at most 4 symbols in all filters, got 6; the server's --max-symbols allows more",
            ),
        ],
    )
    async def test_of_raw_requests(self, strict: TardisMachine, filters: Any, sentence: str) -> None:
        answer = await answer_to(strict.port, http_get("/replay", EMPTY_RAW | {"filters": filters}))
        assert (status_of(answer), json.loads(body_of(answer))["message"]) == (400, sentence)

    async def test_of_bodies(self, strict: TardisMachine) -> None:
        answer = await answer_to(strict.port, http_post("/replay", b" " * 3000))
        sentence = "body: expected at most 2048 bytes; the server's --max-request-bytes allows more"
        assert (status_of(answer), json.loads(body_of(answer))["message"]) == (413, sentence)

    async def test_of_queries(self, machine: TardisMachine) -> None:
        answer = await answer_to(machine.port, http_get("/replay?" + "&".join(["a=1"] * 60_000)))
        assert (status_of(answer), json.loads(body_of(answer))["message"]) == (400, "query: expected at most 100 fields")

    @pytest.mark.parametrize(
        ("frames", "reason"),
        [
            ([SUBSCRIPTION] * 3, "subscriptions: expected at most 2 frames, got 3; the server's --max-subscriptions allows more"),
            (
                [{"op": "subscribe", "args": ["trade"] * 2}] * 2,
                "subscriptions: expected at most 3 filters, got 4; the server's --max-filters allows more",
            ),
        ],
    )
    async def test_of_subscriptions(self, strict: TardisMachine, frames: list[Any], reason: str) -> None:
        sent = [ws_frame(WS_TEXT, json.dumps(frame).encode()) for frame in frames]
        assert await end_of(strict.port, WS_EMPTY, *sent) == (1008, reason)

    @pytest.mark.parametrize("target", [WS_EMPTY, http_get("/ws-replay-normalized", ALL).split(b" ")[1].decode()])
    async def test_of_frames(self, strict: TardisMachine, target: str) -> None:
        reason = "expected frames of at most 1024 bytes, got 2000; the server's --max-subscription-bytes allows more"
        assert await end_of(strict.port, target, ws_frame(WS_TEXT, b" " * 2000)) == (1009, reason)

    async def test_of_products_that_channels_share(self, machine: TardisMachine) -> None:
        """A frame of 0.7 MB that asks for 400 million pairs of channel and product."""
        message = {"type": "subscribe", "product_ids": ["X"] * 20_000, "channels": ["ticker"] * 20_000}
        target = WS_EMPTY.replace("bitmex", "coinbase")
        async with Lag() as lag:
            code, reason = await end_of(machine.port, target, ws_frame(WS_TEXT, json.dumps(message).encode()))
        assert (code, reason.startswith("subscriptions: expected at most 200000 symbols, got 400000000;")) == (1008, True)
        assert lag.longest_s < LONGEST_LAG_S

    async def test_a_subscription_that_takes_longer_to_read_than_a_session_to_begin_counts(
        self, machine: TardisMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = OptionsReader.in_turn

        async def read_slowly(*given: Any) -> Any:
            await asyncio.sleep(1)
            return await read(*given)

        monkeypatch.setattr(ws, "SESSION_START_DELAY_S", 0.5)
        monkeypatch.setattr(OptionsReader, "in_turn", read_slowly)
        frame = ws_frame(WS_TEXT, json.dumps(SUBSCRIPTION).encode())
        assert await end_of(machine.port, WS_EMPTY, frame) == (1000, "WS replay finished")

    async def test_one_who_is_refused_does_not_end_the_session(self, strict: TardisMachine) -> None:
        frame = ws_frame(WS_TEXT, json.dumps(SUBSCRIPTION).encode())
        target = f"{WS_EMPTY}&session=shared"
        greedy, modest = await asyncio.gather(
            end_of(strict.port, target, frame, frame, frame), end_of(strict.port, target, frame)
        )
        assert (greedy[0], modest) == (1008, (1000, "WS replay finished"))

    async def test_of_sessions(self, strict: TardisMachine) -> None:
        frame = ws_frame(WS_TEXT, json.dumps(SUBSCRIPTION).encode())
        ends = await asyncio.gather(*(end_of(strict.port, f"{WS_EMPTY}&session=full", frame) for _ in range(3)))
        refused = (1008, "session: expected at most 2 connections, got 3; the server's --max-merged-requests allows more")
        assert sorted(ends) == [(1000, "WS replay finished"), (1000, "WS replay finished"), refused]

    async def test_what_a_client_says_during_its_replay_does_not_count(
        self, strict: TardisMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ws, "SESSION_START_DELAY_S", 0.2)
        frame = ws_frame(WS_TEXT, b'{"op":"subscribe","args":["trade:XBTUSD","orderBookL2:XBTUSD"]}')
        async with connected(strict.port, receive_buffer_bytes=SMALL_BUFFER_BYTES) as client:
            await client.send(ws_get(f"/ws-replay?exchange=bitmex&from={DAY}00:00&to={DAY}00:0{MINUTES}"))
            await client.reader.readuntil(b"\r\n\r\n")
            await client.send(frame)
            opcode, _ = await client.read_frame()
            await client.send(frame * 10)
            while opcode != WS_CLOSE:
                opcode, payload = await client.read_frame()
            assert payload == b"\x03\xe8WS replay finished"


async def test_deep_and_wide_values_are_refused_in_a_sentence(machine: TardisMachine, caplog: pytest.LogCaptureFixture) -> None:
    deep = b'{"exchange":' + b"[" * 1000 + b"]" * 1000 + b"}"
    deeper = b"[" * 200_000 + b"]" * 200_000
    wide = b'{"exchange":"bitmex","from":[' + b'"x",' * 2_000_000 + b"1]}"
    async with Lag() as lag:
        for body in (deep, deeper, wide):
            answer = await answer_to(machine.port, http_post("/replay", body))
            assert status_of(answer) == 400, answer
            assert len(answer) < 4000
    assert lag.longest_s < LONGEST_LAG_S
    assert_no_surprise(caplog)


async def test_a_million_digits_are_read_once(machine: TardisMachine) -> None:
    digits = "1" * 900_000
    async with Lag() as lag:
        for name in (f"trade_bar_{digits}x", f"trade_bar_{digits}s", f"book_snapshot_{digits}_1s", f"quote_{digits}xs"):
            answer = await answer_to(
                machine.port, http_post("/replay-normalized", json.dumps(EMPTY | {"dataTypes": [name]}).encode())
            )
            assert (status_of(answer), json.loads(body_of(answer))["field"]) == (400, "dataTypes")
        frame = ws_frame(WS_TEXT, json.dumps({"op": "subscribe", "args": [f"trade.{digits}"]}).encode())
        target = WS_EMPTY.replace("bitmex", "bybit")
        assert await end_of(machine.port, target, frame) == (1000, "WS replay finished")
    assert lag.longest_s < LONGEST_LAG_S


async def health_of(machine: TardisMachine, name: str) -> int:
    """What the server says of its replays."""
    return int(json.loads(body_of(await answer_to(machine.port, http_get("/health-check"))))["replays"][name])


async def stalled(port: int, asked: Any, stack: AsyncExitStack) -> None:
    """A client that reads the beginning of its answer and no more."""
    client = await stack.enter_async_context(connected(port, receive_buffer_bytes=SMALL_BUFFER_BYTES))
    await client.send(http_get("/replay-normalized", asked))
    assert (await client.reader.readexactly(20_000)).startswith(b"HTTP/1.1 200")


async def test_more_replays_than_allowed_are_told_to_come_back(cache_dir: Path, tmp_path: Path) -> None:
    async with running(cache_dir, max_replays=2, file={"dir": tmp_path / "events"}, spool_dir=tmp_path / "spool") as machine:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stalled(machine.port, ALL, stack)
            for request in (http_get("/replay-normalized", FEW), http_get("/replay", EMPTY_RAW)):
                answer = await answer_to(machine.port, request)
                assert status_of(answer) == 503
                assert b"Retry-After: 5" in answer
                reason = "max-replays: 2 replays are running, and no more are allowed; try again later"
                assert json.loads(body_of(answer))["message"] == reason
            target = http_get("/ws-replay-normalized", FEW).split(b" ")[1].decode()
            assert await end_of(machine.port, target) == (1013, reason)
        while status_of(answer := await answer_to(machine.port, http_get("/replay-normalized", FEW))) == 503:
            await asyncio.sleep(0.05)  # until the server has seen that they left
        assert status_of(answer) == 200
    sessions = {event.meta["session_id"] for event in published(tmp_path / "events")}
    assert len(sessions) == 3, "of those that were refused nothing is published"


async def test_long_bodies_have_a_bound_together_and_short_ones_pass(cache_dir: Path) -> None:
    """Twelve clients that don't send the end of two megabytes; eight of these may be in memory."""
    size = 2 << 20
    long = http_post("/replay", json.dumps(EMPTY_RAW).encode().ljust(size))
    async with running(cache_dir, max_request_bytes=size) as machine:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(machine.port)) for _ in range(12)]
            for client in clients:
                await client.send(long[:-1])
            refused = [asyncio.create_task(client.reader.readline()) for client in clients]
            while sum(task.done() for task in refused) < 4:
                await asyncio.sleep(0.05)
            assert {task.result() for task in refused if task.done()} == {b"HTTP/1.1 503 Service Unavailable\r\n"}
            assert status_of(await answer_to(machine.port, http_get("/replay", EMPTY_RAW))) == 200
            assert status_of(await answer_to(machine.port, http_post("/replay", json.dumps(EMPTY_RAW).encode()))) == 200
            answer = await answer_to(machine.port, long)
            assert (status_of(answer), b"Retry-After: 5" in answer) == (503, True)
            assert re.fullmatch(
                r"max-request-bytes: 1\d{7} bytes of requests are being read; try again later",
                json.loads(body_of(answer))["message"],
            )
        while status_of(answer := await answer_to(machine.port, long)) == 503:
            await asyncio.sleep(0.05)  # until the server has seen that they left
        assert status_of(answer) == 200


async def test_symbols_of_all_replays_have_a_bound_together_and_few_pass(cache_dir: Path) -> None:
    # Not in the cache, so that they wait for upstream.
    many = ALL | {"symbols": [f"SYMBOL{number}" for number in range(2_000)]}
    raw = {**EMPTY_RAW, "to": ALL["to"], "filters": [{"channel": "trade", "symbols": many["symbols"]}]}
    asked = (("/replay-normalized", many), ("/replay", raw))
    async with running(cache_dir, max_symbols=2_000) as machine, AsyncExitStack() as stack:
        for place in range(5):
            client = await stack.enter_async_context(connected(machine.port))
            path, fields = asked[place % 2]
            await client.send(http_post(path, json.dumps(fields).encode()))
        while await health_of(machine, "running") < 5:
            await asyncio.sleep(0.02)
        reason = (
            "max-symbols: the replays that run name 10000 symbols, and with 2000 more it would be more than 10000, "
            "5 times what one may; try again later"
        )
        for path, fields in asked:
            answer = await answer_to(machine.port, http_post(path, json.dumps(fields).encode()))
            assert (status_of(answer), json.loads(body_of(answer))["message"]) == (503, reason)
        assert status_of(await answer_to(machine.port, http_get("/replay-normalized", FEW))) == 200


async def test_a_thousand_requests_in_one_leave_connections_to_the_history_api_for_others(tmp_path: Path) -> None:
    async def answer_only_what_has_no_filters(asked: Asked, _: object) -> None:
        if asked.filters is not None:
            await asyncio.Event().wait()

    many = [FEW | {"symbols": [f"SYMBOL{number}"]} for number in range(1000)]
    async with (
        Upstream() as upstream,
        running(tmp_path, api_url=upstream.url) as machine,
        connected(machine.port) as greedy,
        asyncio.timeout(90),
    ):
        upstream.fault = answer_only_what_has_no_filters
        await greedy.send(http_post("/replay-normalized", json.dumps(many).encode()))
        while upstream.under_way < 50:
            await asyncio.sleep(0.02)
        answer = await answer_to(machine.port, http_get("/replay", EMPTY_RAW | {"to": FEW["to"]}))
        assert status_of(answer) == 200
        assert answer.endswith(b"\r\n0\r\n\r\n")
        assert upstream.under_way == 50


HEAVY = ["--max-data-types", "1000", "--max-snapshot-levels", "100000"]


class TestAHeavyRequest:
    """Hundreds of snapshots for each change of a book: its worker stays small, and serves others meanwhile."""

    types: ClassVar = [f"book_snapshot_100_{number}ms" for number in range(1, 301)]

    @pytest.mark.parametrize("path", ["/replay-normalized", "/ws-replay-normalized"])
    async def test_others_are_served_and_memory_is_bounded(self, cache_dir: Path, tmp_path: Path, path: str) -> None:
        argv = ["--workers", "1", "--api-url", NO_UPSTREAM, "--file-dir", str(tmp_path / "events")]
        with served(cache_dir, tmp_path / "log", *argv, "--spool-dir", str(tmp_path / "spool"), *HEAVY) as server:
            assert status_of(await answer_to(server.port, http_get("/replay-normalized", FEW))) == 200
            at_rest_mb = server.memory_mb
            request = http_get(path, ALL | {"dataTypes": ["trade", *self.types]})
            if path.startswith("/ws"):
                request = ws_get(request.split(b" ")[1].decode())
            async with connected(server.port) as client:
                await client.send(request)
                await client.reader.readexactly(1_000_000)
                reading = asyncio.create_task(client.receive_all(600))
                peak_mb = 0.0
                for _ in range(3):
                    answer = await answer_to(server.port, http_get("/replay-normalized", FEW), timeout_s=30)
                    assert answer.endswith(b"\r\n0\r\n\r\n")
                    peak_mb = max(peak_mb, server.memory_mb - at_rest_mb)
                assert not reading.done(), "the heavy request should outlast the others"
                reading.cancel()
            # 300 books of some hundred levels, and what is under way.
            assert peak_mb < 400


STALLED = 40
# In the server a chunk for each, and the events of that; what the sockets hold is not counted.
MOST_UNREAD_BYTES = (4 << 20) + STALLED * 2 * CHUNK_BYTES


async def unread_bytes(machine: TardisMachine) -> int:
    assert await health_of(machine, "running") == STALLED
    return await health_of(machine, "unreadBytes")


class TestStalledReadersWithABusOn:
    """What they hold together is bounded."""

    async def test_they_would_hold_much(self, cache_dir: Path, tmp_path: Path) -> None:
        async with stalling(cache_dir, tmp_path, "1GiB") as machine, asyncio.timeout(90):
            while await unread_bytes(machine) < MOST_UNREAD_BYTES:
                await asyncio.sleep(0.2)

    async def test_they_hold_little(self, cache_dir: Path, tmp_path: Path) -> None:
        async with stalling(cache_dir, tmp_path, "4MiB") as machine:
            for _ in range(30):
                assert await unread_bytes(machine) < MOST_UNREAD_BYTES
                await asyncio.sleep(0.2)


@asynccontextmanager
async def stalling(cache_dir: Path, folder: Path, max_unread_bytes: str) -> AsyncIterator[TardisMachine]:
    """A machine with clients that have stopped to read."""
    bus = {"file": {"dir": folder / "events"}, "spool_dir": folder / "spool"}
    async with running(cache_dir, max_unread_bytes=max_unread_bytes, **bus) as machine, AsyncExitStack() as stack:
        await asyncio.gather(*(stalled(machine.port, ALL, stack) for _ in range(STALLED)))
        yield machine
