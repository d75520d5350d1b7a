"""Who may use a NATS server and how it is reached: credentials of every kind, TLS, rights, several servers, a cluster."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.buses.nats_jetstream import NatsBus
from tardis_machine.eventbus.dead_letters import dead_letter_files, read_dead_letters
from tardis_machine.eventbus.publisher import BusPlan, Publisher
from tardis_machine.settings import from_keywords
from tests.contract.buses.nats_peek import NatsPeek
from tests.contract.conformance import Session
from tests.contract.sample_messages import sample_messages
from tests.servers.certificates import Authority
from tests.servers.nats import NatsServer
from tests.servers.nats_jwt import Operator, new_user_seed
from tests.servers.process import free_port

Start = Callable[[str], NatsServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with further settings."""
    servers: list[NatsServer] = []

    def start_one(config: str) -> NatsServer:
        servers.append(NatsServer(tmp_path / f"nats-{len(servers)}", config))
        return servers[-1].start()

    yield start_one
    for server in servers:
        server.stop()


def plan_of(folder: Path, **options: Any) -> BusPlan:
    keywords = {
        "subject": "md.all",
        "stream": "MD",
        "ack-timeout": "1s",
        "max-batch-delay-ms": 20,
        "retry-backoff-ms": 20,
        "retry-backoff-max-ms": 200,
        "dead-letter-dir": folder / "dead-letters",
        **options,
    }
    return plan_bus("nats", from_keywords({"nats": {k: v for k, v in keywords.items() if v is not None}}, {}).for_bus("nats"))


async def connect(folder: Path, **options: Any) -> NatsBus:
    bus = plan_of(folder, **options).bus
    assert isinstance(bus, NatsBus)
    try:
        await bus.connect()
    finally:
        await bus.close()
    return bus


async def test_a_user_is_known_by_password_token_or_url(tmp_path: Path, start: Start) -> None:
    with_user = start('authorization { user: "me", password: "s3cr3t/@:" }')
    await connect(tmp_path, servers=with_user.url, user="me", **{"pass": "s3cr3t/@:"})
    await connect(tmp_path, servers=f"nats://me:s3cr3t%2F%40%3A@{with_user.address}")
    for wrong in ({"user": "me", "password": "wr0ng"}, {"token": "wr0ng"}, {}):
        with pytest.raises(TerminalDeliveryError, match="refuses the credentials: Authorization Violation") as caught:
            await connect(tmp_path, servers=with_user.url, **wrong)
        assert "wr0ng" not in str(caught.value)
    with_token = start('authorization { token: "t0k3n" }')
    await connect(tmp_path, servers=with_token.address, token="t0k3n")
    await connect(tmp_path, servers=f"nats://t0k3n@{with_token.address}")


async def test_a_user_is_known_by_nkey_or_credentials_file(tmp_path: Path, start: Start) -> None:
    seed, public = new_user_seed()
    (tmp_path / "user.nk").write_text(f"{seed}\n")
    (tmp_path / "other.nk").write_text(new_user_seed()[0])
    with_nkey = start(f"authorization {{ users: [ {{ nkey: {public} }} ] }}")
    await connect(tmp_path, servers=with_nkey.url, nkey=tmp_path / "user.nk")
    with pytest.raises(TerminalDeliveryError, match="refuses the credentials"):
        await connect(tmp_path, servers=with_nkey.url, nkey=tmp_path / "other.nk")
    (tmp_path / "half.nk").write_text(seed[:-5])
    with pytest.raises(TerminalDeliveryError, match=r"--nats-nkey: .*half\.nk' has no seed of a user") as caught:
        await connect(tmp_path, servers=with_nkey.url, nkey=tmp_path / "half.nk")
    assert seed[:10] not in str(caught.value)
    with pytest.raises(TerminalDeliveryError, match=r"--nats-nkey: can't read .*none\.nk': No such file"):
        await connect(tmp_path, servers=with_nkey.url, nkey=tmp_path / "none.nk")

    operator = Operator()
    with_operator = start(operator.server_config)
    await connect(tmp_path, servers=with_operator.url, creds=operator.write_creds(tmp_path / "user.creds"))
    with pytest.raises(TerminalDeliveryError, match="refuses the credentials"):
        await connect(tmp_path, servers=with_operator.url, creds=Operator().write_creds(tmp_path / "other.creds"))


async def test_tls_verifies_the_server_and_shows_an_own_certificate(tmp_path: Path, start: Start) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger")
    served, mine, misplaced = authority.issue("server"), authority.issue("client"), authority.issue("other", ("example.test",))
    config = 'tls {{ cert_file: "{0.cert}", key_file: "{0.key}", ca_file: "{1}", verify: true }}'
    server = start(config.format(served, authority.ca))
    trusted = {"tls-ca": authority.ca, "tls-cert": mine.cert, "tls-key": mine.key}
    for url in (server.url, f"tls://{server.address}"):
        await connect(tmp_path, servers=url, **trusted)
    with pytest.raises(TerminalDeliveryError, match=r"the certificate of the NATS server .* is not trusted"):
        await connect(tmp_path, servers=server.url, **trusted | {"tls-ca": stranger.ca})
    with pytest.raises(TerminalDeliveryError, match="requires a certificate; give one with --nats-tls-cert"):
        await connect(tmp_path, servers=server.url, **{"tls-ca": authority.ca})
    with pytest.raises(TerminalDeliveryError, match=r"--nats-tls-cert and --nats-tls-key: can't use "):
        await connect(tmp_path, servers=server.url, **trusted | {"tls-key": served.key})
    with pytest.raises(TerminalDeliveryError, match=r"--nats-tls-ca: can't read certificates from "):
        await connect(tmp_path, servers=server.url, **{"tls-ca": tmp_path / "none.pem"})
    elsewhere = start(config.format(misplaced, authority.ca))
    with pytest.raises(TerminalDeliveryError, match="is not trusted: IP address mismatch"):
        await connect(tmp_path, servers=elsewhere.url, **trusted)
    plain = start("")
    with pytest.raises(TerminalDeliveryError, match="TLS is required, but the NATS server does not offer it"):
        await connect(tmp_path, servers=f"tls://{plain.address}", user="me", password="s3cr3t")
    either = start(config.format(served, authority.ca).replace("verify: true }", "}") + "\nallow_non_tls: true")
    await connect(tmp_path, servers=either.url, **{"tls-ca": authority.ca})


async def test_what_may_not_be_written_is_dead_and_holds_up_nothing(tmp_path: Path, start: Start) -> None:
    server = start(
        """authorization { users: [
            { user: admin, password: admin },
            { user: me, password: s3cr3t, permissions: { publish: { allow: [">"], deny: ["md.Trades"] } } },
            { user: blind, password: s3cr3t, permissions: { publish: ["md.>"] } },
            { user: deaf, password: s3cr3t, permissions: { publish: [">"], subscribe: ["replies.>"] } }
        ] }"""
    )
    session = Session("s-1")
    options = {"servers": server.url, "subject-routing": "trade:md.Trades", "user": "me", "password": "s3cr3t"}
    publisher = Publisher([plan_of(tmp_path, **options)], spool_dir=tmp_path / "spool")
    await publisher.start()
    await publisher.publish(session.encode(sample_messages(240)))
    (receipt,) = await publisher.close(30)
    trades = {event.event_id.hex() for event in session.events if event.stream.payload_case == "trade"}
    letters = [letter for path in dead_letter_files(tmp_path / "dead-letters") for letter in read_dead_letters(path)]
    assert {letter.event_id for letter in letters} == trades
    assert receipt.confirmed == len(session.events) - len(trades) + 1
    assert receipt.unconfirmed == 0
    assert {letter.reason for letter in letters} == {"the NATS user may not publish to md.Trades"}
    with NatsPeek(server.port, user="admin", **{"pass": "admin"}) as peek:
        arrived = [record.headers["eventId"] for record in peek.read_all()]
        assert len(arrived) == len(set(arrived)) == receipt.confirmed

        # Who may write but not look gets there too, one record of a key at a time.
        unseen = plan_of(tmp_path, servers=server.url, stream=None, user="blind", password="s3cr3t")
        await unseen.bus.connect()
        assert any("may not list streams" in sentence for sentence in await unseen.bus.check())
        publisher = Publisher([unseen], spool_dir=tmp_path / "spool-2")
        await publisher.start()
        await publisher.publish(Session("s-2").encode(sample_messages(120)))
        (receipt,) = await publisher.close(30)
        assert receipt.is_complete
        assert len(peek.read_all()) == len(arrived) + receipt.confirmed
    with pytest.raises(TerminalDeliveryError, match=r"--nats-stream MD can't be used: the NATS user may not ask \$JS.API"):
        await connect(tmp_path, servers=server.url, user="blind", password="s3cr3t")
    with pytest.raises(TerminalDeliveryError, match="may not subscribe to replies; allow --nats-inbox-prefix"):
        await connect(tmp_path, servers=server.url, user="deaf", password="s3cr3t")
    await connect(tmp_path, servers=server.url, user="deaf", password="s3cr3t", **{"inbox-prefix": "replies.mine"})


async def test_without_jetstream_it_says_so_and_waits(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", jetstream=False) as server:
        with pytest.raises(TransientDeliveryError, match=r"JetStream does not answer .* is it enabled"):
            await connect(tmp_path, servers=server.url)
        await connect(tmp_path, servers=server.url, stream=None, core=True)


async def test_servers_are_tried_in_turn(tmp_path: Path, start: Start) -> None:
    server = start("")
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(0), "127.0.0.1", 0)
    deaf = silent.sockets[0].getsockname()[1]
    await connect(tmp_path, servers=[f"127.0.0.1:{free_port()}", f"127.0.0.1:{deaf}", server.address])
    silent.close()
    with pytest.raises(TransientDeliveryError, match=r"127.0.0.1:\d+ can't be reached: .*; the NATS server 127.0.0.1:\d+ can't"):
        await connect(tmp_path, servers=[f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"])


async def test_a_cluster_that_loses_its_leader_loses_and_reorders_nothing(tmp_path: Path) -> None:
    """Three servers, a stream on all of them; the one that leads it is killed while events flow."""
    routes = [free_port() for _ in range(3)]
    route_list = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
    servers = [
        NatsServer(
            tmp_path / f"nats-{number}",
            f'server_name: n{number}\ncluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{route_list}] }}',
        )
        for number, port in enumerate(routes)
    ]
    try:
        for server in servers:
            server.start()
        options = {"servers": [server.address for server in servers], "stream-replicas": 3}
        publisher = Publisher([plan_of(tmp_path, **options)], spool_dir=tmp_path / "spool")
        await publisher.start(connect_timeout_s=30)
        session = Session("s-1")

        async def publish(batches: int) -> None:
            for _ in range(batches):
                await publisher.publish(session.encode(sample_messages(len(session.messages) + 60)[-60:]))
                await asyncio.sleep(0.02)

        await publish(20)
        deadline = time.monotonic() + 30
        while publisher.receipts[0].confirmed < 100:
            assert time.monotonic() < deadline, publisher.health()
            await asyncio.sleep(0.05)
        with NatsPeek(servers[0].port) as peek:
            leader = peek.ask("STREAM.INFO.MD")["cluster"]["leader"]
        lost = servers[int(leader[1])]
        await asyncio.to_thread(lost.kill)
        await publish(50)
        (receipt,) = await publisher.close(60)
        assert receipt.is_complete
        left = next(server for server in servers if server is not lost)
        with NatsPeek(left.port) as peek:
            assert peek.ask("STREAM.INFO.MD")["config"]["num_replicas"] == 3
            # Only the stream's own leader is asked: the cluster may still be choosing one that knows of all streams.
            records = peek.read_all("MD")
        arrived = [record.headers["eventId"] for record in records if record.headers["payloadCase"] != "session_end"]
        assert len(arrived) == len(set(arrived)) == len(session.events)
        wanted: dict[int, list[str]] = defaultdict(list)
        for event in session.events:
            wanted[id(event.stream)].append(event.event_id.hex())
        for lane in wanted.values():
            mine = set(lane)
            assert [found for found in arrived if found in mine] == lane
    finally:
        for server in servers:
            server.stop()
