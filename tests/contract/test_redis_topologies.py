"""The Redis Streams bus by TLS, behind Sentinel, and on a cluster, each of real servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.bronze.event import Event
from tardis_machine.errors import DeliveryError, SettingsError, TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.buses import redis_streams
from tardis_machine.eventbus.buses.redis_streams import servers
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.publisher import BusPlan, Publisher
from tardis_machine.eventbus.routing import Router
from tardis_machine.settings import from_keywords
from tests.contract.buses.redis import read_stream
from tests.servers.certificates import Authority
from tests.servers.process import free_port
from tests.servers.redis import RedisCluster, RedisSentinel, RedisServer
from tests.unit.eventbus.events import make_events, make_stream

SYMBOLS = [f"S{number}" for number in range(12)]


def make_plan(folder: Path, **keywords: Any) -> BusPlan:
    quick = {"max-batch-delay-ms": 1, "retry-backoff-ms": 20, "retry-backoff-max-ms": 200, "max-retries": 1000}
    given = {"stream": "events", "dead-letter-dir": folder / "dead-letters", **quick, **keywords}
    return plan_bus("redis", from_keywords({"redis": given}, {}).for_bus("redis"))


def make_records(plan: BusPlan, *symbols: str, count: int = 20) -> list[Record]:
    router = Router("redis", plan.routing)
    by_symbol = [make_events(make_stream(symbol), count) for symbol in symbols]
    return [Record(router.route(event.stream), event) for turn in zip(*by_symbol, strict=True) for event in turn]


async def send_once(plan: BusPlan, *symbols: str) -> None:
    try:
        await plan.bus.connect()
        assert await plan.bus.send(make_records(plan, *symbols)) == []
        assert await plan.bus.check()
    finally:
        await plan.bus.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def tls_port(tmp_path: Path, authority: Authority, request: pytest.FixtureRequest) -> Iterator[int]:
    port, own = free_port(), authority.issue("server")
    files = ("--tls-cert-file", str(own.cert), "--tls-key-file", str(own.key), "--tls-ca-cert-file", str(authority.ca))
    with RedisServer(tmp_path / "redis", "--tls-port", str(port), *files, "--tls-auth-clients", request.param):
        yield port


@pytest.mark.parametrize("tls_port", ["no"], indirect=True)
async def test_tls_with_an_authority_of_our_own(tmp_path: Path, authority: Authority, tls_port: int) -> None:
    address = {"host": "127.0.0.1", "port": tls_port}
    await send_once(make_plan(tmp_path, **address, tls=True, **{"tls-ca": authority.ca}), "A")
    await send_once(make_plan(tmp_path, url=f"rediss://127.0.0.1:{tls_port}", **{"tls-ca": authority.ca}), "A")
    await send_once(make_plan(tmp_path, **address, tls=True, **{"tls-verify": False}), "A")
    strangers = Authority(tmp_path / "strangers").ca
    for trusted in ({}, {"tls-ca": strangers}):
        with pytest.raises(TerminalDeliveryError, match=r"and TLS do not agree \(--redis-tls…\): .*certificate verify failed"):
            await send_once(make_plan(tmp_path, **address, tls=True, **trusted), "A")
    with pytest.raises(SettingsError, match=r"--redis-tls-ca: .*nowhere' is not a file"):
        make_plan(tmp_path, **address, tls=True, **{"tls-ca": tmp_path / "nowhere"})


@pytest.mark.parametrize("tls_port", ["yes"], indirect=True)
async def test_tls_where_the_server_asks_for_a_certificate(tmp_path: Path, authority: Authority, tls_port: int) -> None:
    options = {"host": "127.0.0.1", "port": tls_port, "tls": True, "tls-ca": authority.ca}
    own = authority.issue("client")
    await send_once(make_plan(tmp_path, **options, **{"tls-cert": own.cert, "tls-key": own.key}), "A")
    # Whether the server's reason arrives before it closes the connection is a matter of luck.
    with pytest.raises(DeliveryError, match=r"(and TLS do not agree|it may want a certificate).*--redis-tls"):
        await send_once(make_plan(tmp_path, **options), "A")
    with pytest.raises(SettingsError, match="--redis-tls-cert and --redis-tls-key must be given together"):
        make_plan(tmp_path, **options, **{"tls-cert": own.cert})


class Flow:
    """A publisher that gets events of some symbols, each with a stream of its own, until it is told to stop."""

    def __init__(self, publisher: Publisher, symbols: list[str]) -> None:
        self.publisher = publisher
        self.given: dict[str, list[Event]] = {symbol: [] for symbol in symbols}
        self._streams = {symbol: make_stream(symbol) for symbol in symbols}
        self._is_done = False

    async def run(self) -> None:
        for first in count(0, 5):
            for symbol, given in self.given.items():
                events = make_events(self._streams[symbol], 5, first=first)
                given += events
                await self.publisher.publish(events)
            if self._is_done:
                return
            await asyncio.sleep(0.005)

    async def passes(self, events: int = 300) -> None:
        """Waits until so many more are confirmed."""
        goal = self.publisher.receipts[0].confirmed + events
        async with asyncio.timeout(30):
            while self.publisher.receipts[0].confirmed < goal:
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._is_done = True

    def ids(self, symbol: str) -> list[str]:
        return [event.event_id.hex() for event in self.given[symbol]]


@asynccontextmanager
async def flowing(plan: BusPlan, folder: Path, symbols: list[str]) -> AsyncIterator[Flow]:
    publisher = Publisher([plan], spool_dir=folder / "spool")
    await publisher.start()
    flow = Flow(publisher, symbols)
    running = asyncio.create_task(flow.run())
    try:
        await flow.passes()
        yield flow
        await flow.passes()
        flow.stop()
        await running
        (receipt,) = await publisher.close(60)
        assert receipt.is_complete
        assert receipt.dead_lettered == 0
    finally:
        running.cancel()
        await publisher.abort()


def ids_in(server: RedisServer, stream: str) -> list[str]:
    return [record.headers["eventId"] for record in read_stream(server, stream)]


async def test_sentinel_leads_to_the_new_master(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path / "master") as master,
        RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(master.port)) as replica,
        RedisSentinel(tmp_path / "sentinel", master) as sentinel,
    ):
        nobody = f"127.0.0.1:{free_port()}"
        options = {"sentinels": f"{nobody},{sentinel.address}", "sentinel-master": "main"}
        with pytest.raises(TerminalDeliveryError, match="knows no master 'mian'"):
            await send_once(make_plan(tmp_path, **{**options, "sentinel-master": "mian"}), "A")
        deadline = time.monotonic() + 30
        while sentinel.ask("INFO", "SENTINEL")["master0"]["slaves"] < 1:
            assert time.monotonic() < deadline, "the sentinel looks for replicas every ten seconds"
            await asyncio.sleep(0.05)
        async with flowing(make_plan(tmp_path, **options, **{"stream-template": "md:{{symbol}}"}), tmp_path, ["A"]) as flow:
            # What a master confirmed and did not pass on yet is lost with it: here it gets the time to do so.
            master.ask("CLIENT", "PAUSE", "60000", "WRITE")
            offset = master.ask("INFO", "replication")["master_repl_offset"]
            while replica.ask("INFO", "replication")["slave_repl_offset"] < offset:
                await asyncio.sleep(0.01)
            master.kill()
            await asyncio.sleep(0.2)
            sentinel.ask("SENTINEL", "FAILOVER", "main")
            await flow.passes()
        assert list(dict.fromkeys(ids_in(replica, "md:A"))) == flow.ids("A")


async def test_replicas_that_must_have_an_event_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        RedisServer(tmp_path / "master") as master,
        RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(master.port)) as replica,
    ):
        plan = make_plan(tmp_path, host="127.0.0.1", port=master.port, **{"wait-replicas": 1})
        async with asyncio.timeout(30):
            # The replica says that it is up a moment before its master counts it.
            while master.ask("INFO", "replication").get("slave0", {}).get("state") != "online":
                await asyncio.sleep(0.02)
        await plan.bus.connect()
        batch = make_records(plan, "A")
        assert await plan.bus.send(batch) == []
        assert len(ids_in(replica, "events")) == 20, "on the replica before it is confirmed"
        replica.pause()
        with monkeypatch.context() as patch:
            patch.setattr(redis_streams, "_REPLICAS_TIMEOUT_MS", 300)
            failures = await plan.bus.send(batch)
        assert [failure.index for failure in failures] == list(range(20))
        assert {type(failure.error) for failure in failures} == {TransientDeliveryError}
        assert str(failures[0].error).endswith("(--redis-wait-replicas) those that have the events are: 0")
        replica.resume()
        assert await plan.bus.send(batch) == []
        await plan.bus.close()
        too_many = make_plan(tmp_path, host="127.0.0.1", port=master.port, **{"wait-replicas": 2})
        with pytest.raises(TransientDeliveryError, match="of 2 replicas"):
            await too_many.bus.connect()
        await too_many.bus.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("servers") / "cluster") as cluster:
        yield cluster


def test_the_streams_of_these_tests_are_on_all_nodes(cluster: RedisCluster) -> None:
    assert {cluster.owner_of(f"{name}:{symbol}").port for name in ("md", "dead") for symbol in SYMBOLS} == {
        node.port for node in cluster.nodes
    }


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_a_cluster_is_found_from_any_of_its_nodes(cluster: RedisCluster, tmp_path: Path, first: int) -> None:
    template = f"from{first}:{{{{symbol}}}}"
    nobody = f"127.0.0.1:{free_port()}"
    for address in (
        {"host": "127.0.0.1", "port": cluster.nodes[first].port},
        {"cluster-nodes": f"{nobody},{cluster.nodes[first].address}"},
    ):
        await send_once(make_plan(tmp_path, **address, **{"stream-template": template}), *SYMBOLS)
    for symbol in SYMBOLS:
        stream = f"from{first}:{symbol}"
        assert cluster.owner_of(stream).ask("XLEN", stream) == 40


async def test_a_cluster_has_one_database(cluster: RedisCluster, tmp_path: Path) -> None:
    with pytest.raises(TerminalDeliveryError, match=r"has no database 1 \(--redis-db\): .*cluster"):
        await send_once(make_plan(tmp_path, db=1, **{"cluster-nodes": cluster.nodes[0].address}), "A")


async def test_a_stream_that_moves_is_followed(cluster: RedisCluster, tmp_path: Path) -> None:
    """Its slot is given from node to node as an operator would, with events coming all the time, also between the steps."""
    plan = make_plan(tmp_path, **{"cluster-nodes": cluster.nodes[0].address, "stream-template": "md:{{symbol}}"})
    stream, slot = "md:S0", cluster.slot_of("md:S0")
    source = cluster.owner_of(stream)
    target = next(node for node in cluster.nodes if node is not source)
    names = {node.port: node.ask("CLUSTER", "MYID").decode() for node in cluster.nodes}
    async with flowing(plan, tmp_path, SYMBOLS) as flow:
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
        await flow.passes()
        source.ask("MIGRATE", "127.0.0.1", target.port, stream, 0, 5000)
        moved = target.ask("DBSIZE")
        await flow.passes()
        assert target.ask("DBSIZE") == moved
        for node in (target, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target.port])
    assert target.ask("XLEN", stream) == len(flow.given["S0"])
    assert ids_in(target, stream) == flow.ids("S0")
    for symbol in SYMBOLS[1:]:
        assert ids_in(cluster.owner_of(f"md:{symbol}"), f"md:{symbol}") == flow.ids(symbol)
    assert flow.publisher.receipts[0].retried == 0, "all of it was followed within the same send"


async def test_a_node_that_dies_holds_up_its_own_streams_only(cluster: RedisCluster, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, **{"cluster-nodes": cluster.nodes[0].address, "stream-template": "dead:{{symbol}}"})
    victim = cluster.nodes[0]
    async with flowing(plan, tmp_path, SYMBOLS) as flow:
        victim.kill()
        await flow.passes(2000)
        assert "can't be reached" in str(flow.publisher.health()[0].last_error)
        victim.start()
        await flow.passes(2000)
    for symbol in SYMBOLS:
        owner, stream = cluster.owner_of(f"dead:{symbol}"), f"dead:{symbol}"
        if owner is victim:
            assert list(dict.fromkeys(ids_in(owner, stream))) == flow.ids(symbol)
        else:
            assert ids_in(owner, stream) == flow.ids(symbol), "what was confirmed is not sent again"


async def test_a_node_that_hangs_is_left_alone_and_others_go_on(
    cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for the nodes that do not hang, on a machine that has much else to do.
    for name, seconds in (("CONNECT_TIMEOUT_S", 3.0), ("ANSWER_TIMEOUT_S", 3.0), ("SILENCE_S", 6.0)):
        monkeypatch.setattr(servers, name, seconds)
    plan = make_plan(tmp_path, **{"cluster-nodes": cluster.nodes[1].address, "stream-template": "hung:{{symbol}}"})
    victim = cluster.nodes[2]
    async with flowing(plan, tmp_path, SYMBOLS) as flow:
        victim.pause()
        async with asyncio.timeout(30):
            while "is not tried again for a while" not in str(flow.publisher.health()[0].last_error):
                await flow.passes(100)
        await flow.passes(2000)
        assert flow.publisher.health()[0].state == "connected"
        victim.resume()
    for symbol in SYMBOLS:
        owner, stream = cluster.owner_of(f"hung:{symbol}"), f"hung:{symbol}"
        found = ids_in(owner, stream)
        assert list(dict.fromkeys(found)) == flow.ids(symbol)
        assert owner is victim or len(found) == len(flow.ids(symbol)), "what was confirmed is not sent again"
