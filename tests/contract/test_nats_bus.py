"""The NATS bus against a real nats-server, in all the ways a stream may take records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from tardis_machine.bronze.event import EventStream
from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.buses.nats_jetstream import NatsBus
from tardis_machine.eventbus.buses.nats_jetstream.lines import to_line, to_parts
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.routing import Router, Routing
from tardis_machine.settings import from_keywords
from tests.contract.bus_under_test import Fault
from tests.contract.buses.nats import NatsUnderTest
from tests.contract.buses.nats_peek import NatsPeek
from tests.contract.conformance import BusConformance, pytest_generate_tests
from tests.servers.nats import NatsServer
from tests.servers.proxy import FaultProxy
from tests.unit.eventbus.events import make_events, make_stream

__all__ = ["pytest_generate_tests"]


class TestNatsBus(BusConformance):
    under_test = NatsUnderTest


class WithoutBatches(NatsUnderTest):
    """Streams that confirm each record by itself, as all did before batches; the connection is the same, and so are its faults."""

    faults: ClassVar[Sequence[Fault]] = ("restart", "partial")
    cannot: ClassVar[dict[Fault, str]] = dict.fromkeys(("gone", "hang", "cut"), "strikes the connection, whatever the stream is")
    stream_config: ClassVar[dict[str, Any]] = {"allow_batched": False}


class TestStreamsWithoutBatches(BusConformance):
    under_test = WithoutBatches


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("servers") / "nats") as server:
        yield server


@pytest.fixture
def peek(nats_server: NatsServer) -> Iterator[NatsPeek]:
    """The server without streams of earlier tests."""
    with NatsPeek(nats_server.port) as peek:
        for name in peek.ask("STREAM.NAMES").get("streams") or []:
            assert peek.ask(f"STREAM.DELETE.{name}")["success"]
        yield peek


@asynccontextmanager
async def connected(server: NatsServer, **options: Any) -> AsyncIterator[tuple[NatsBus, Router]]:
    keywords = {"servers": server.url, "subject": "md.all", "ack-timeout": "2s", **options}
    plan = plan_bus("nats", from_keywords({"nats": keywords}, {}).for_bus("nats"))
    assert isinstance(plan.bus, NatsBus)
    try:
        await plan.bus.connect()
        yield plan.bus, Router("nats", plan.routing)
    finally:
        await plan.bus.close()


def records_of(router: Router, *streams: EventStream, count: int = 3, size: int = 50) -> list[Record]:
    """Of all streams in turn."""
    events = zip(*(make_events(stream, count, size=size) for stream in streams), strict=True)
    return [Record(router.route(event.stream), event) for group in events for event in group]


def ids(records: Iterable[Record]) -> list[str]:
    return [record.event.event_id.hex() for record in records]


def stored(peek: NatsPeek) -> list[str]:
    return [record.headers["eventId"] for record in peek.read_all()]


async def test_the_stream_is_made_for_every_subject_that_can_come(nats_server: NatsServer, peek: NatsPeek) -> None:
    options = {"stream": "MD", "subject-template": "md.{{exchange}}.{{symbol}}", "subject-routing": "quote:quotes,trade:md.a.b"}
    async with connected(nats_server, **options) as (bus, router):
        config = peek.ask("STREAM.INFO.MD")["config"]
        assert (config["subjects"], config["storage"]) == (["md.*.*", "quotes", "md.all"], "file")
        assert config["allow_batched"]
        odd = make_stream("A.B *>%é", "liquidation", exchange="")
        records = records_of(router, odd, make_stream("X", "quote"), make_stream("", "session_end"), make_stream("Y"), count=1)
        assert await bus.send(records) == []
        sentences = await bus.check()
    assert {record.destination for record in peek.read_all()} == {"md.%.A%2EB%20%2A%3E%25%C3%A9", "quotes", "md.all", "md.a.b"}
    assert any("MD has the subjects md.*.*, quotes, md.all, in batches" in sentence for sentence in sentences)
    async with connected(nats_server, **options):
        pass  # it is there already
    with pytest.raises(TerminalDeliveryError, match=r"MD has the subjects md\.\*\.\*, quotes, md\.all, but not other"):
        async with connected(nats_server, stream="MD", subject="other"):
            pass
    with pytest.raises(TerminalDeliveryError, match="--nats-stream MD2 can't be used: subjects overlap"):
        async with connected(nats_server, stream="MD2"):
            pass
    only_quotes = {
        "stream": "MD",
        "subject": "other",
        "subject-routing": "quote:quotes",
        "include-payloads": "quote,-session_end",
    }
    async with connected(nats_server, **only_quotes):
        pass  # the base subject can't come


async def test_a_resend_is_dropped_and_a_second_replay_is_not(nats_server: NatsServer, peek: NatsPeek) -> None:
    peek.make_stream("MD", ["md.>"])
    async with connected(nats_server) as (bus, router):
        records = records_of(router, make_stream(session="first"))
        more = records_of(router, make_stream(session="first"), count=1)
        again = [Record(router.route(make_stream(session="second")), record.event) for record in records]
        assert await bus.send(records) == []
        assert await bus.send([*records, *more]) == []
        assert await bus.send(again) == []
    assert stored(peek) == ids([*records, *more, *again])


@pytest.mark.parametrize("config", [{}, {"allow_batched": False}], ids=["batches", "singly"])
async def test_a_full_stream_keeps_what_fits_and_lets_nothing_overtake(
    nats_server: NatsServer, peek: NatsPeek, config: dict[str, Any]
) -> None:
    """By bytes: what is small would fit where a large one did not."""
    peek.make_stream("MD", ["md.>"], discard="new", max_bytes=6000, **config)
    async with connected(nats_server) as (bus, router):
        a, b = make_stream("A"), make_stream("B")
        small, large = records_of(router, a, b, count=4), records_of(router, a, count=1, size=9000)
        batch = [*small[:4], *large, *small[4:]]
        failures = await bus.send(batch)
        assert all(isinstance(failure.error, TransientDeliveryError) for failure in failures)
        assert "maximum bytes exceeded" in str(failures[0].error)
        failed = {failure.index for failure in failures}
        assert {4, 5, 7} <= failed, "A waits behind its large record"
        assert stored(peek) == ids(record for index, record in enumerate(batch) if index not in failed)
        peek.make_stream("MD", ["md.>"], discard="new", max_bytes=-1, **config)
        assert await bus.send([batch[index] for index in sorted(failed)]) == []
    for stream in (a, b):
        sequences = [r.event.sequence for r in batch if r.event.stream is stream and r is not large[0]]
        assert sequences == sorted(sequences)
    arrived = stored(peek)
    assert [found for found in arrived if found in ids(r for r in batch if r.event.stream is a)] == ids(
        r for r in batch if r.event.stream is a
    )


async def test_a_subject_that_is_full_holds_up_no_other(nats_server: NatsServer, peek: NatsPeek) -> None:
    limits = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 2}
    peek.make_stream("MD", ["md.>"], **limits)
    async with connected(nats_server, **{"subject-template": "md.{{symbol}}"}) as (bus, router):
        batch = records_of(router, make_stream("A"), make_stream("B"), count=2) + records_of(router, make_stream("A"), count=3)
        batch += records_of(router, make_stream("C"), count=2)
        failures = await bus.send(batch)
    assert [failure.index for failure in failures] == [4, 5, 6]
    assert all(isinstance(failure.error, TransientDeliveryError) for failure in failures)
    assert stored(peek) == ids([*batch[:4], *batch[7:]])


async def test_what_the_server_takes_at_most_is_known_after_the_first_connect(nats_server: NatsServer, peek: NatsPeek) -> None:
    peek.make_stream("MD", ["md.>"], max_msg_size=20_000)
    async with connected(nats_server) as (bus, router):
        limit = bus.limits.record_bytes
        assert 19_000 < limit < 20_000
        overhead = router.route(make_stream()).overhead_bytes
        batch = records_of(router, make_stream(), count=1, size=limit - overhead)
        assert await bus.send(batch) == []
        # Made smaller behind its back: what it refuses for good is dead, and holds up nobody.
        peek.make_stream("MD", ["md.>"], max_msg_size=500)
        small, large = records_of(router, make_stream(), count=4), records_of(router, make_stream(), count=1, size=5000)
        (failure,) = await bus.send([*small[:2], *large, *small[2:]])
        assert (failure.index, type(failure.error)) == (2, TerminalDeliveryError)
        (failure,) = await bus.send(large)
        assert "message size exceeds maximum allowed" in str(failure.error)
    assert stored(peek) == ids([*batch, *small])


async def test_a_stream_that_is_gone_is_waited_for(nats_server: NatsServer, peek: NatsPeek) -> None:
    peek.make_stream("MD", ["md.>"])
    async with connected(nats_server) as (bus, router):
        batch = records_of(router, make_stream())
        peek.ask("STREAM.DELETE.MD")
        failures = await bus.send(batch)
        assert len(failures) == 3
        assert isinstance(failures[0].error, TransientDeliveryError)
        assert "no stream answers" in str(failures[0].error)
        with pytest.raises(TerminalDeliveryError, match="no stream of the NATS server has the subject"):
            await bus.connect()
        peek.make_stream("MD", ["md.>"])
        await bus.connect()
        assert await bus.send(batch) == []
    assert stored(peek) == ids(batch)


async def test_a_send_that_was_cancelled_sends_nothing_more(nats_server: NatsServer, peek: NatsPeek) -> None:
    peek.make_stream("MD", ["md.>"])
    with FaultProxy(nats_server.port) as network:
        async with connected(nats_server, servers=f"127.0.0.1:{network.port}") as (bus, router):
            network.hold()
            batch = records_of(router, make_stream(), count=4000, size=5000)
            sending = asyncio.create_task(bus.send(batch))
            await asyncio.sleep(0.5)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await asyncio.to_thread(network.heal)
            await asyncio.sleep(0.5)
            arrived = stored(peek)
            assert arrived == ids(batch[: len(arrived)]), "what was on its way may arrive, in order"
            assert len(arrived) < len(batch)
            await bus.connect()
            assert await bus.send(batch[:50]) == []
    assert stored(peek)[: len(arrived) or 50] == ids(batch[: len(arrived) or 50])


async def test_core_nats_reaches_those_who_listen(nats_server: NatsServer, peek: NatsPeek) -> None:
    async with connected(nats_server, core=True) as (bus, router):
        assert await bus.send(records_of(router, make_stream())) == []
        peek.subscribe("md.>")
        batch = records_of(router, make_stream(), count=2000)
        assert await bus.send(batch) == []
        received = [peek.next_message() for _ in batch]
        assert received == [("md.all", record.value) for record in batch]
        assert any("at most once" in sentence for sentence in await bus.check())


def test_a_header_can_not_end_its_line() -> None:
    routing = Routing(destination="md.all", static_headers={"desk": "delta"}, meta_headers_prefix="m-")
    router = Router("nats", routing)
    (record,) = records_of(router, make_stream(session="s\r\n1", **{"a: b\n": "c\r\nNats-Rollup: all"}), count=1)
    line = to_line(record.event, to_parts(record.route), b"_INBOX.x.1.", b"7")
    command, _, rest = line.partition(b"\r\n")
    verb, subject, reply, header_bytes, total_bytes = command.split()
    assert (verb, subject, reply) == (b"HPUB", b"md.all", b"_INBOX.x.1.7")
    assert len(rest) == int(total_bytes) + 2
    header, value = rest[: int(header_bytes)], rest[int(header_bytes) : -2]
    assert value == record.value
    event_id = record.event.event_id.hex()
    assert header.decode().split("\r\n") == [
        "NATS/1.0",
        "payloadCase: trade",
        "dataType: trade",
        f"eventId: {event_id}",
        "desk: delta",
        "m-a--b-: c  Nats-Rollup: all",
        "m-session_id: s  1",
        f"Nats-Msg-Id: s  1-{event_id}",
        "",
        "",
    ]
