"""One connection with a feed that needs all that the contract offers: a token, headers, signed frames, binary ones, text that is no
JSON, polls of many symbols, snapshots asked for in a frame."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import web

from tardis_machine.exchanges import Credentials, Exchange, LiveApi
from tardis_machine.exchanges._feed import (
    Action,
    BookStep,
    Feed,
    FeedError,
    Fetch,
    FrameKind,
    Handshake,
    Heard,
    HttpRequest,
    to_frame,
)
from tardis_machine.exchanges._joined_book import JoinRules, links
from tardis_machine.exchanges._joined_book_gate import JoinedBookGate
from tardis_machine.exchanges._mapper import Json
from tardis_machine.filters import Filter
from tardis_machine.realtime.backoff import Timings
from tardis_machine.realtime.connection import Arrivals, Connection, open_session
from tardis_machine.realtime.troubles import Trouble
from tests.integration.scripted_exchange import Client, ScriptedExchange, scripted_exchange

TIMINGS = Timings(first_s=0.005, most_s=0.02, limited_s=0.01, close_timeout_s=0.1, refetch_s=0.01, summary_s=0.0)
RULES = JoinRules(overlaps=links)
SECRET = "open sesame"


class EveryFeed(Feed):
    """Speaks a protocol that no exchange has, with what each of them may have."""

    ping_interval_s = 0.05

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self.books = JoinedBookGate(RULES)

    def access_request(self, now_us: int) -> HttpRequest:
        return HttpRequest("/token?for=public", "POST", {"X-Time": str(now_us)})

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        token = orjson.loads(access or b"")["token"]
        return Handshake(f"/live?token={token}", "wss://elsewhere.example", {"X-Decimal": "1"})

    def subscribe(self, now_us: int) -> list[Action]:
        signature = f"{self.credentials['KEY']}:{now_us}"
        return [Fetch("all", "/all", self._each, every_s=0.02), to_frame({"signed": signature}), to_frame({"want": "book"})]

    def _each(self, body: bytes) -> list[bytes]:
        return [orjson.dumps({"polled": row}) for row in orjson.loads(body)]

    def ping(self, now_us: int) -> str:
        return f"PING {now_us}"

    def to_text(self, frame: bytes) -> bytes:
        return b'{"number":%d}' % int.from_bytes(frame, "big")

    @staticmethod
    def decode(raw: bytes) -> Json:
        return orjson.loads(raw) if raw[:1] == b"{" else raw.decode()

    def classify(self, message: Json) -> Heard:
        if isinstance(message, str):
            return FrameKind.HEARTBEAT
        if "said" in message:
            return FrameKind.ERROR
        if "book" in message:
            return BookStep("book", message["book"] == "snapshot", message["number"], message.get("previous"))
        return FrameKind.ANSWER if "answer" in message else FrameKind.DATA

    def error(self, message: Json) -> FeedError:
        return FeedError("other", message["said"], is_final=message.get("final", False))

    def reply(self, message: Json, now_us: int) -> list[Action]:
        if isinstance(message, str):
            return ["pong"] if message == "ping" else []
        return [to_frame({"want": "snapshot"})] if "answer" in message or message.get("book") == "snapshot" else []

    def pause_after_s(self, headers: Mapping[str, str]) -> float:
        return float(headers.get("X-Pause", "0"))


class Told:
    """A receiver that keeps what it was told."""

    is_full = False

    def __init__(self) -> None:
        self.told: asyncio.Queue[Any] = asyncio.Queue()

    async def ready(self) -> None:
        raise AssertionError("it is never full")

    def take(self, arrivals: Arrivals) -> None:
        for raw in arrivals.raws:
            self.told.put_nowait(json.loads(raw))

    def lost(self, reason: str, close_code: int | None) -> None:
        self.told.put_nowait(f"lost: {reason}")

    def failed(self, trouble: Trouble) -> None:
        self.told.put_nowait(trouble.details)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.told.get(), 5)

    async def next_not_polled(self) -> Any:
        while isinstance(told := await self.next(), dict) and "polled" in told:
            pass
        return told


@asynccontextmanager
async def connecting(server: ScriptedExchange, timings: Timings = TIMINGS) -> AsyncIterator[Told]:
    server.rest.setdefault("/all", lambda request: web.json_response([]))
    exchange = Exchange("every", "", (), {}, lambda message, date_us: None, live=LiveApi(EveryFeed, "wss://x", "https://x"))
    urls = {"every": server.url, "every-rest": server.rest_url}
    heard = Told()
    async with open_session(urls, timings) as session:
        connection = Connection(
            exchange, [], heard, session, timeout_s=0, urls=urls, timings=timings, credentials=Credentials(KEY=SECRET)
        )
        task = asyncio.create_task(connection.run())
        try:
            yield heard
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def token(server: ScriptedExchange) -> list[web.Request]:
    """The server has one; those who asked."""
    asked: list[web.Request] = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request)
        return web.json_response({"token": f"t{len(asked)}"})

    server.rest["/token"] = answer
    return asked


async def hear(client: Client) -> Any:
    """The next frame that is no ping."""
    while isinstance(frame := await client.hear(), str) and frame.startswith("PING "):
        pass
    return frame


async def test_a_token_is_fetched_for_each_connection_and_headers_go_with_the_handshake() -> None:
    async with scripted_exchange() as server:
        asked = token(server)
        async with connecting(server) as heard:
            client = await server.client()
            assert (asked[0].method, asked[0].path_qs) == ("POST", "/token?for=public")
            assert int(asked[0].headers["X-Time"]) > 1_700_000_000_000_000
            assert (client.request.path_qs, client.request.headers["X-Decimal"]) == ("/live?token=t1", "1")
            client.cut()
            assert await heard.next_not_polled() == "lost: the connection broke"
            client = await server.client()
            assert client.request.path_qs == "/live?token=t2"


async def test_frames_are_signed_with_credentials_and_the_time_that_are_given() -> None:
    async with scripted_exchange() as server:
        token(server)
        async with connecting(server):
            client = await server.client()
            secret, _, time_us = (await hear(client))["signed"].rpartition(":")
            assert secret == SECRET
            assert int(time_us) > 1_700_000_000_000_000
            assert await hear(client) == {"want": "book"}
            ping = await client.hear()
            assert int(ping.removeprefix("PING ")) > int(time_us)
            await client.send("ping")
            assert await hear(client) == "pong"
            await client.send("PONG")


async def test_a_binary_frame_is_recorded_as_the_text_that_the_feed_makes_of_it() -> None:
    async with scripted_exchange() as server:
        token(server)
        async with connecting(server) as heard:
            client = await server.client()
            await client.send(b"\x01\x02")
            assert await heard.next_not_polled() == {"number": 258}


async def test_a_poll_brings_many_messages_again_and_again_and_waits_as_it_is_told() -> None:
    rounds = 0

    def answer(request: web.Request) -> web.Response:
        nonlocal rounds
        rounds += 1
        return web.json_response([f"a{rounds}", f"b{rounds}"], headers={"X-Pause": "0" if rounds < 2 else "60"})

    async with scripted_exchange() as server:
        token(server)
        server.rest["/all"] = answer
        async with connecting(server) as heard:
            assert [await heard.next() for _ in range(4)] == [{"polled": row} for row in ("a1", "b1", "a2", "b2")]
            await asyncio.sleep(0.1)
            assert rounds == 2


async def test_a_snapshot_may_be_asked_for_in_a_frame_until_one_fits() -> None:
    async with scripted_exchange() as server:
        token(server)
        async with connecting(server) as heard:
            client = await server.client()
            await hear(client)
            await hear(client)
            first = {"book": "update", "number": 12, "previous": 10}
            await client.send(first, {"answer": "subscribed"})
            assert await heard.next_not_polled() == first
            assert await hear(client) == {"want": "snapshot"}
            await client.send({"book": "snapshot", "number": 9})
            assert await hear(client) == {"want": "snapshot"}
            snapshot = {"book": "snapshot", "number": 10}
            await client.send(snapshot, {"book": "update", "number": 14, "previous": 13})
            assert await heard.next_not_polled() == snapshot
            assert await heard.next_not_polled() == "lost: book: update 14 follows 13, but the last one was 12"


async def test_an_error_may_end_the_connection() -> None:
    async with scripted_exchange() as server:
        token(server)
        async with connecting(server) as heard:
            client = await server.client()
            await client.send({"said": "no such symbol"}, {"said": "please reconnect", "final": True})
            told = [await heard.next_not_polled() for _ in range(3)]
            assert told == ["no such symbol", "please reconnect", "lost: please reconnect"]
            await server.client()


async def test_without_a_token_there_is_no_connection_and_no_secret_is_told(caplog: pytest.LogCaptureFixture) -> None:
    answers = [
        web.Response(status=429, text=SECRET, headers={"Retry-After": "0"}),
        web.Response(status=500, text=SECRET),
        web.json_response({"tokens": SECRET}),
        web.Response(text=SECRET),
        web.json_response({"token": "hidden"}),
        web.json_response({"token": "hidden"}),
    ]
    async with scripted_exchange() as server:
        server.rest["/token"] = lambda request: answers.pop(0)
        server.refusals = [web.Response(status=403, text=SECRET)]
        async with connecting(server) as heard:
            await server.client()
            told = [await heard.next() for _ in range(5)]
    assert told == [
        "can't connect: 429 Too Many Requests",
        "can't connect: 500 Internal Server Error",
        "can't connect: the answer to the request for access makes no sense: KeyError",
        "can't connect: the answer to the request for access makes no sense: JSONDecodeError",
        "can't connect: 403 Invalid response status",
    ]
    shown = f"{caplog.text} {[vars(record) for record in caplog.records]}"
    assert SECRET not in shown
    assert "hidden" not in shown


async def test_who_is_banned_waits_long_also_where_no_time_is_named() -> None:
    async with scripted_exchange() as server:
        token(server)
        server.refusals = [web.Response(status=429), web.Response(status=418)]
        began = time.monotonic()
        async with connecting(server, timings=msgspec.structs.replace(TIMINGS, banned_s=0.5)) as heard:
            client = await server.client()
            assert client.request.headers["User-Agent"].startswith("Mozilla/5.0 (compatible; tardis-machine/")
            assert time.monotonic() - began >= 0.5
            assert [await heard.next() for _ in range(2)] == [
                "can't connect: 429 Invalid response status",
                "can't connect: 418 Invalid response status",
            ]


async def test_an_answer_that_grows_without_end_is_given_up() -> None:
    body = gzip.compress(bytes(200_000_000), 9)
    answers = [web.Response(body=body, headers={"Content-Encoding": "gzip"}), web.json_response({"token": "t1"})]
    async with scripted_exchange() as server:
        server.rest["/token"] = lambda request: answers.pop(0)
        tracemalloc.start()
        try:
            async with connecting(server) as heard:
                await server.client()
                assert await heard.next() == "can't connect: the answer has more than 1048576 bytes"
                assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()
