"""The Redis Streams bus against one real server: the suite of all buses, and each thing that a server may refuse."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.buses.redis_streams import RedisBus
from tardis_machine.eventbus.contract import Danger, Record
from tardis_machine.eventbus.dead_letters import dead_letter_files, read_dead_letters
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.eventbus.routing import Router
from tests.contract.buses.redis import RedisUnderTest, read_stream
from tests.contract.conformance import BusConformance, pytest_generate_tests
from tests.servers.redis import RedisServer
from tests.unit.eventbus.events import make_events, make_stream

__all__ = ["pytest_generate_tests"]


class TestRedisBus(BusConformance):
    under_test = RedisUnderTest


@pytest.fixture
def under_test(tmp_path: Path) -> Iterator[RedisUnderTest]:
    # So slow that one can see it load.
    under_test = RedisUnderTest(tmp_path, "--key-load-delay", "200")
    yield under_test
    under_test.close()


@pytest.fixture
def server(under_test: RedisUnderTest) -> RedisServer:
    return under_test.server


@asynccontextmanager
async def connected(under_test: RedisUnderTest, **keywords: Any) -> AsyncIterator[RedisBus]:
    bus = under_test.plan(**keywords).bus
    assert isinstance(bus, RedisBus)
    try:
        await bus.connect()
        yield bus
    finally:
        await bus.close()


def make_batch(under_test: RedisUnderTest, *symbols: str, count: int, size: int = 50, **keywords: Any) -> list[Record]:
    router = Router("redis", under_test.plan(**keywords).routing)
    by_symbol = [make_events(make_stream(symbol), count, size=size) for symbol in symbols]
    return [Record(router.route(event.stream), event) for turn in zip(*by_symbol, strict=True) for event in turn]


class Stream:
    """A publisher that is given events of two symbols while something happens to its server."""

    def __init__(self, under_test: RedisUnderTest, publisher: Publisher) -> None:
        self._server = under_test.server
        self._streams = [make_stream("A"), make_stream("B")]
        self._given = 0
        self.publisher = publisher

    async def publish(self, count: int = 100) -> None:
        for stream in self._streams:
            await self.publisher.publish(make_events(stream, count, first=self._given))
        self._given += count
        await asyncio.sleep(0)

    async def wait_for_error(self, text: str) -> None:
        async with asyncio.timeout(30):
            while text not in (self.publisher.health()[0].last_error or ""):
                await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Everything arrives, first arrivals in order."""
        (receipt,) = await self.publisher.close(60)
        assert receipt.is_complete
        assert receipt.dead_lettered == 0
        arrived: dict[str, dict[str, None]] = defaultdict(dict)
        for record in read_stream(self._server, "events"):
            arrived[record.key][record.headers["eventId"]] = None
        for stream in self._streams:
            found = list(arrived[f"bitmex|{stream.symbol}|trade"])
            assert len(found) == self._given
            assert found == sorted(found)


@pytest.fixture
async def stream(under_test: RedisUnderTest, tmp_path: Path) -> AsyncIterator[Stream]:
    publisher = Publisher([under_test.plan(**{"max-batch-delay-ms": 1})], spool_dir=tmp_path / "spool")
    await publisher.start()
    yield Stream(under_test, publisher)
    await publisher.abort()


async def test_a_server_out_of_memory_is_waited_for(stream: Stream, server: RedisServer) -> None:
    await stream.publish()
    server.ask("CONFIG", "SET", "maxmemory", "1mb")
    await stream.publish()
    await stream.wait_for_error("out of memory (maxmemory): OOM")
    server.ask("CONFIG", "SET", "maxmemory", "0")
    await stream.check()


async def test_memory_that_comes_and_goes_in_the_middle_of_batches_lets_nothing_overtake(
    stream: Stream, server: RedisServer
) -> None:
    """The server's memory is full and free again hundreds of times, between any two commands."""
    is_done = False

    def toggle() -> None:
        from redis import Redis

        with Redis(port=server.port) as client:
            while not is_done:
                client.config_set("maxmemory", "1mb")
                client.config_set("maxmemory", "0")

    toggling = asyncio.create_task(asyncio.to_thread(toggle))
    for _ in range(40):
        await stream.publish(400)
        await asyncio.sleep(0.02)
    assert stream.publisher.receipts[0].retried > 0
    is_done = True
    await toggling
    await stream.check()


async def test_a_server_that_became_a_replica_is_waited_for(stream: Stream, server: RedisServer) -> None:
    await stream.publish()
    server.ask("REPLICAOF", "127.0.0.1", "1")
    await stream.publish()
    await stream.wait_for_error("the server is a replica: READONLY")
    server.ask("REPLICAOF", "NO", "ONE")
    await stream.check()


async def test_a_server_that_loads_its_data_is_waited_for(stream: Stream, under_test: RedisUnderTest) -> None:
    await stream.publish()
    await stream.publisher.flush(30)
    # It looks at its clients after every thousand commands.
    under_test.server.ask("EVAL", "for i = 1, 6000 do redis.call('SET', i, i) end", 0)
    await asyncio.to_thread(under_test.inject, "restart")
    await stream.publish()
    starting = asyncio.create_task(asyncio.to_thread(under_test.heal))
    await stream.wait_for_error("the server still loads its data: LOADING")
    assert not starting.done()
    await starting
    await stream.check()


async def test_credentials_that_changed_are_waited_for(stream: Stream, server: RedisServer) -> None:
    await stream.publish()
    server.ask("CONFIG", "SET", "requirepass", "changed")
    server.ask("CLIENT", "KILL", "TYPE", "normal", password="changed")
    await stream.publish()
    await stream.wait_for_error("requires credentials; give --redis-username and --redis-password")
    server.ask("CONFIG", "SET", "requirepass", "", password="changed")
    await stream.check()


async def test_a_password_is_asked_for_and_never_shown(under_test: RedisUnderTest, server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "requirepass", "hunter2")
    with pytest.raises(TerminalDeliveryError, match="requires credentials; give --redis-username and --redis-password"):
        async with connected(under_test):
            pass
    with pytest.raises(TerminalDeliveryError, match="did not accept") as refused:
        async with connected(under_test, password="hunter3"):
            pass
    assert "hunter" not in str(refused.value)
    async with connected(under_test, password="hunter2") as bus:
        assert "hunter2" not in repr(vars(bus)) + repr(vars(bus._servers))
        assert await bus.send(make_batch(under_test, "A", count=3)) == []
    server.ask("CONFIG", "SET", "requirepass", "", password="hunter2")


async def test_a_url_says_it_all(under_test: RedisUnderTest, server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "writer", "on", ">p@ss/word", "~*", "+@all")
    address = f"redis://writer:p%40ss%2Fword@127.0.0.1:{server.port}/3"
    async with connected(under_test, host=None, port=None, url=address) as bus:
        assert await bus.send(make_batch(under_test, "A", count=3)) == []
    assert server.ask("XLEN", "events", db=3) == 3
    with pytest.raises(Exception, match="--redis-url: expected redis://user:password@host:port/database"):
        under_test.plan(host=None, port=None, url=f"{address}?ssl_ca_certs=x")


LEAST = ("+xadd", "+multi", "+exec", "+discard")


async def test_a_user_needs_four_commands_and_no_more(under_test: RedisUnderTest, server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "writer", "on", ">pass", "~events", *LEAST)
    options = {"username": "writer", "password": "pass"}
    async with connected(under_test, **options) as bus:
        assert await bus.send(make_batch(under_test, "A", "B", count=100)) == []
        sentences = await bus.check()
        assert any("this user may not see" in sentence for sentence in sentences)
    assert server.ask("XLEN", "events") == 200
    for refused, lacks in (("+xadd", "multi"), ("+multi", "xadd")):
        server.ask("ACL", "SETUSER", "writer", "-@all", refused)
        with pytest.raises(TerminalDeliveryError, match=f"NOPERM .*'{lacks}'"):
            async with connected(under_test, **options):
                pass
    assert server.ask("XLEN", "events") == 200, "trying adds nothing"


async def test_a_stream_that_the_user_may_not_write_goes_to_the_dead_letters_alone(
    under_test: RedisUnderTest, server: RedisServer, tmp_path: Path
) -> None:
    server.ask("ACL", "SETUSER", "writer", "on", ">pass", "~events", "~quotes", *LEAST)
    options = {"username": "writer", "password": "pass", "stream-routing": "quote:quotes"}
    publisher = Publisher([under_test.plan(**options)], spool_dir=tmp_path / "spool")
    await publisher.start()
    server.ask("ACL", "SETUSER", "writer", "resetkeys", "~events")
    quotes = make_events(make_stream(payload_case="quote"), 10)
    await publisher.publish([*make_events(make_stream(), 10), *quotes, *make_events(make_stream(), 10, first=10)])
    (receipt,) = await publisher.close(30)
    assert (receipt.confirmed, receipt.dead_lettered, receipt.retried) == (20 + 1, 10, 0)
    letters = [letter for path in dead_letter_files(under_test.folder / "dead-letters") for letter in read_dead_letters(path)]
    assert [bytes.fromhex(letter.event_id) for letter in letters] == [event.event_id for event in quotes]
    assert all("'quotes' did not take events, as the user may not do that: NOPERM" in letter.reason for letter in letters)


async def test_streams_are_named_by_a_template(under_test: RedisUnderTest, server: RedisServer) -> None:
    options: dict[str, Any] = {"key-template": "md:{{exchange}}:{{symbol}}"}
    batch = make_batch(under_test, "A", "B", "C", count=50, **options)
    async with connected(under_test, **options) as bus:
        assert await bus.send(batch) == []
    for symbol in "ABC":
        found = list(read_stream(server, f"md:bitmex:{symbol}"))
        assert [record.headers["eventId"] for record in found] == [
            record.event.event_id.hex() for record in batch if record.event.stream.symbol == symbol
        ]


async def test_of_a_batch_only_what_failed_is_said_to_have(under_test: RedisUnderTest, server: RedisServer) -> None:
    options: dict[str, Any] = {"stream-template": "md:{{symbol}}"}
    batch = make_batch(under_test, "A", "B", "C", count=50, **options)
    async with connected(under_test, **options) as bus:
        server.ask("SET", "md:B", "no stream")
        failures = await bus.send(batch)
    refused = [index for index, record in enumerate(batch) if record.destination == "md:B"]
    assert sorted(failure.index for failure in failures) == refused
    assert all(isinstance(failure.error, TerminalDeliveryError) for failure in failures)
    assert all("holds something else: WRONGTYPE" in str(failure.error) for failure in failures)
    assert [server.ask("XLEN", stream) for stream in ("md:A", "md:C")] == [50, 50]


async def test_streams_are_kept_short_and_young(under_test: RedisUnderTest, server: RedisServer) -> None:
    def make_old_entries() -> None:
        """Of 1970; whole nodes of them."""
        for number in range(1, 41):
            server.ask("XADD", "events", f"{number}-1", "old", "")

    server.ask("CONFIG", "SET", "stream-node-max-entries", "10")
    make_old_entries()
    batch = make_batch(under_test, "A", count=100)
    async with connected(under_test, **{"max-age": "1h"}) as bus:
        for _ in range(5):
            await bus.send(batch)
        assert server.ask("XLEN", "events") == 500, "by age"
    async with connected(under_test, **{"max-length": 50}) as bus:
        await bus.send(batch)
        assert 50 <= server.ask("XLEN", "events") <= 60
    server.ask("DEL", "events")
    make_old_entries()
    async with connected(under_test, **{"max-length": 50, "max-age": "1h"}) as bus:
        await bus.send(batch[:1])
        assert server.ask("XLEN", "events") == 1, "by age"
        await bus.send(batch)
        assert 50 <= server.ask("XLEN", "events") <= 60, "then by length"


async def test_a_send_that_was_cancelled_stores_nothing_later(under_test: RedisUnderTest, server: RedisServer) -> None:
    """Not even what is in the buffers of both kernels: that is half a transaction."""
    batch = make_batch(under_test, "A", count=1000, size=20_000)
    async with connected(under_test) as bus:
        server.pause()
        sending = asyncio.create_task(bus.send(batch))
        await asyncio.sleep(0.3)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        server.resume()
        await bus.connect()
        for _ in range(20):
            assert server.ask("XLEN", "events") == 0
            await asyncio.sleep(0.02)
        assert await bus.send(batch) == []
        assert server.ask("XLEN", "events") == 1000


async def test_what_the_server_says_of_its_sizes_is_a_limit(under_test: RedisUnderTest, server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "proto-max-bulk-len", "2mb")
    async with connected(under_test) as bus:
        assert bus.limits.record_bytes == 2 * 1024**2
        (failure,) = await bus.send(make_batch(under_test, "A", count=1, size=3 * 1024**2))
        assert isinstance(failure.error, TransientDeliveryError)
        assert await bus.send(make_batch(under_test, "A", count=3)) == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, ""),
        ({"maxmemory-policy": "allkeys-lru"}, "may remove whole streams when its memory is full (maxmemory-policy allkeys-lru)"),
        ({"appendonly": "no"}, "loses the last events when it crashes (appendonly no)"),
    ],
)
async def test_doctor_is_told_of_dangers(
    under_test: RedisUnderTest, server: RedisServer, settings: dict[str, str], says: str
) -> None:
    for name, value in settings.items():
        server.ask("CONFIG", "SET", name, value)
    server.ask("XADD", "quotes", "*", "a", "b")
    async with connected(under_test, **{"stream-routing": "quote:quotes"}) as bus:
        sentences = await bus.check()
    assert "the stream 'events' is empty, and XADD, MULTI and EXEC are allowed" in sentences
    assert "the stream 'quotes' has 1 entries, and XADD, MULTI and EXEC are allowed" in sentences
    dangers = [sentence.says for sentence in sentences if isinstance(sentence, Danger)]
    assert [danger.partition(f":{under_test.keywords()['port']} ")[2] for danger in dangers] == [says] * len(settings)
    assert server.ask("EXISTS", "events") == 0, "checking makes nothing"
