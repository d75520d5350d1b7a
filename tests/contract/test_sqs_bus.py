"""The SQS bus against ElasticMQ, with faults in front of it."""

from __future__ import annotations

import asyncio
import random
import ssl
from base64 import b64decode
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tardis_machine.bronze.decoding import decode_event
from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.buses.sqs import SqsBus, to_id
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.eventbus.routing import Router
from tests.contract.bus_under_test import BusUnderTest, Delivered, Fault
from tests.contract.buses.sqs import SqsUnderTest, StandardQueueUnderTest
from tests.contract.conformance import BusConformance, Session, pytest_generate_tests
from tests.contract.sample_messages import sample_messages
from tests.servers.certificates import Authority
from tests.servers.elasticmq import ElasticMqServer, KeepingElasticMqServer
from tests.unit.eventbus.events import make_events, make_stream

__all__ = ["pytest_generate_tests"]


class TestSqsBus(BusConformance):
    under_test = SqsUnderTest

    @pytest.fixture
    def bus(self, tmp_path: Path, elasticmq: ElasticMqServer) -> Iterator[BusUnderTest]:
        bus = self.under_test(tmp_path, elasticmq)
        yield bus
        bus.close()


class StandardSqsUnderTest(StandardQueueUnderTest):
    faults: ClassVar[Sequence[Fault]] = ("cut", "partial")
    cannot: ClassVar[dict[Fault, str]] = dict.fromkeys(("gone", "restart", "hang"), "the same client stands it with a FIFO queue")
    carries_key = False

    def read_back(self) -> list[Delivered]:
        """In the order of their making: a standard queue promises none, and that nothing is missing can so be seen."""
        return sorted(super().read_back(), key=lambda record: made(record.value))


def made(value: bytes) -> tuple[str, int]:
    event = decode_event(value)
    return event.meta["session_id"], event.sequence


class TestStandardSqsBus(TestSqsBus):
    under_test = StandardSqsUnderTest


async def test_a_service_that_is_killed_and_started_again_misses_nothing(tmp_path: Path) -> None:
    """It had a message on disk before it confirmed it, as Amazon promises; what it did not confirm is sent again.

    In the suite the way to the emulator is killed instead: it keeps a group's messages, but not their order.
    """
    server = KeepingElasticMqServer(tmp_path / "elasticmq")
    bus = StandardSqsUnderTest(tmp_path, server)
    session = Session("s-1")
    try:
        async with publishing(bus) as publisher:
            for _ in range(10):
                await publisher.publish(session.encode(sample_messages(len(session.messages) + 24)[-24:]))
                await asyncio.sleep(0.05)
            while not publisher.receipts[0].confirmed:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            await publisher.publish(session.encode(sample_messages(len(session.messages) + 24)[-24:]))
            assert publisher.receipts[0].confirmed < len(session.events)
            await asyncio.to_thread(server.start)
            publisher.session_end("s-1")
            (receipt,) = await publisher.close(60)
        assert receipt.is_complete
        values = {event.event_id: event.value for event in session.events}
        records = [(decode_event(record.value), record.value) for record in bus.read_back()]
        assert {event.event_id: value for event, value in records if not event.HasField("session_end")} == values
        assert [event.session_end.complete for event, _ in records if event.HasField("session_end")] == [True]
    finally:
        bus.close()
        server.stop()


@pytest.fixture
def fifo(tmp_path: Path, elasticmq: ElasticMqServer) -> Iterator[SqsUnderTest]:
    bus = SqsUnderTest(tmp_path, elasticmq)
    yield bus
    bus.close()


@pytest.fixture
def standard(tmp_path: Path, elasticmq: ElasticMqServer) -> Iterator[SqsUnderTest]:
    bus = StandardSqsUnderTest(tmp_path, elasticmq)
    yield bus
    bus.close()


@asynccontextmanager
async def publishing(bus: SqsUnderTest, **keywords: Any) -> AsyncIterator[Publisher]:
    publisher = Publisher([bus.plan(**keywords)], spool_dir=bus.folder / "spool")
    await publisher.start()
    try:
        yield publisher
    finally:
        await publisher.abort()


@asynccontextmanager
async def connected(under_test: SqsUnderTest, **keywords: Any) -> AsyncIterator[SqsBus]:
    bus = under_test.plan(**keywords).bus
    assert isinstance(bus, SqsBus)
    try:
        await bus.connect()
        yield bus
    finally:
        await bus.close()


def records_of(bus: SqsUnderTest, count: int, *symbols: str, size: int = 50, **keywords: Any) -> list[Record]:
    router = Router("sqs", bus.plan(**keywords).routing)
    streams = [make_stream(symbol, request_id="r-1") for symbol in symbols or ("XBTUSD",)]
    return [Record(router.route(stream), event) for stream in streams for event in make_events(stream, count, size=size)]


def sent(bus: SqsUnderTest) -> list[list[dict[str, Any]]]:
    return [asked.body["Entries"] for asked in bus.service.calls if asked.operation == "SendMessageBatch"]


async def test_a_message_on_the_wire(fifo: SqsUnderTest) -> None:
    keywords = {
        "static-message-attributes": "desk:delta",
        "attributes": "where:{{exchange}}/{{symbol}}{{meta.none}}",
        "meta-headers-prefix": "m.",
    }
    async with connected(fifo, **keywords) as bus:
        (record,) = records_of(fifo, 1, "BTC é", **keywords)
        assert await bus.send([record]) == []
    [message] = fifo.server.take(fifo.base.replace(fifo.url, fifo.server.url))
    assert b64decode(message["Body"]) == record.value
    attributes = {name: (value["DataType"], value["StringValue"]) for name, value in message["MessageAttributes"].items()}
    assert attributes == {
        "payloadCase": ("String", "trade"),
        "dataType": ("String", "trade"),
        "eventId": ("String", record.event.event_id.hex()),
        "desk": ("String", "delta"),
        "where": ("String", "bitmex/BTC é"),
        "m.request_id": ("String", "r-1"),
        "m.session_id": ("String", "s1"),
    }
    assert message["Attributes"]["MessageGroupId"] == "bitmex|BTC%20%C3%A9|trade"
    assert message["Attributes"]["MessageDeduplicationId"] == f"s1-{record.event.event_id.hex()}"


def test_ids_are_escaped_without_mixing_up_two() -> None:
    keys = ["a b", "a%20b", "a|b", "é", "x" * 200, "x" * 201, "%", ""]
    ids = [to_id(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert all(0 < len(given) <= 128 and given.isascii() and given.isprintable() and " " not in given for given in ids)
    assert to_id("bitmex|XBTUSD|trade") == "bitmex|XBTUSD|trade"


async def test_at_most_ten_attributes_whatever_a_session_has(fifo: SqsUnderTest) -> None:
    keywords = {"static-attributes": "a:1,b:2", "meta-headers-prefix": "m-"}
    router = Router("sqs", fifo.plan(**keywords).routing)
    stream = make_stream(**{f"n{number}": "x" for number in range(20)})
    async with connected(fifo, **keywords) as bus:
        assert await bus.send([Record(router.route(stream), make_events(stream, 1)[0])]) == []
    [delivered] = fifo.read_back()
    assert len(delivered.headers) == 10
    assert {"payloadCase", "dataType", "eventId", "a", "b"} <= delivered.headers.keys()


async def test_messages_that_fail_are_sent_again_alone_and_in_order(fifo: SqsUnderTest) -> None:
    dice = random.Random(3)
    fifo.service.refuse("InternalError", only=lambda entry: dice.random() < 0.2)
    session = Session("s-1")
    async with publishing(fifo, order="key", **{"max-retries": 100}) as publisher:
        await publisher.publish(session.encode(sample_messages(240)))
        (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert receipt.retried > 0
    BusConformance().check_session(BusConformance().read(fifo), session)
    for entries in sent(fifo):
        groups = [entry["MessageGroupId"] for entry in entries]
        assert len(groups) == len(set(groups)) <= 10


async def test_calls_may_be_filled_with_messages_of_one_group_in_order(fifo: SqsUnderTest) -> None:
    session = Session("s-1")
    async with publishing(fifo) as publisher:
        await publisher.publish(session.encode(sample_messages(360, ("XBTUSD",))))
        (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert len(sent(fifo)) < 70
    BusConformance().check_session(BusConformance().read(fifo), session)


async def test_by_default_what_fails_is_there_again_with_all_later_ones_of_its_group(fifo: SqsUnderTest) -> None:
    dice = random.Random(5)
    fifo.service.refuse("InternalError", only=lambda entry: dice.random() < 0.05)
    async with publishing(fifo, **{"max-retries": 100}) as publisher:
        events = make_events(make_stream("A"), 400)
        values = [msgspec.structs.replace(event, value=b"%d" % event.sequence) for event in events]
        await publisher.publish(values)
        (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert receipt.retried > 0
    arrived = [int(record.value) for record in fifo.read_back() if record.value.isdigit()]
    assert len(arrived) > 400, "nothing that was stored behind a failure came again"
    assert list(dict.fromkeys(reversed(arrived)))[::-1] == list(range(400))


async def test_what_is_sent_again_to_a_fifo_queue_is_dropped_and_a_second_replay_is_not(fifo: SqsUnderTest) -> None:
    first, second = Session("s-1"), Session("s-2")
    async with publishing(fifo) as publisher:
        fifo.network.hold_replies()
        await publisher.publish(first.encode(sample_messages(24)))
        async with asyncio.timeout(30):
            while publisher.receipts[0].retried == 0:
                await asyncio.sleep(0.05)
        fifo.network.reset()
        fifo.network.heal()
        await publisher.publish(second.encode(sample_messages(24)))
        (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert sum(map(len, sent(fifo))) > len(first.events) + len(second.events) + 2
    arrivals = BusConformance().read(fifo)
    assert len(arrivals) == len(first.events) + len(second.events) + 2, "two sessions and their ends, nothing twice"
    counts = defaultdict(int)
    for _, event in arrivals:
        counts[event.event_id] += not event.HasField("session_end")
    assert {count for count in counts.values() if count} == {2}, "the same events, once for each session"


async def test_a_call_keeps_within_the_size_that_the_queue_says(standard: SqsUnderTest) -> None:
    def say(answer: dict[str, Any]) -> dict[str, Any]:
        return {"Attributes": answer["Attributes"] | {"MaximumMessageSize": "65536", "MessageRetentionPeriod": "345600"}}

    standard.service.alter("GetQueueAttributes", say)
    async with connected(standard) as bus:
        assert bus.limits.record_bytes < 65536 * 3 / 4
        told = "\n".join(await bus.check())
        assert "standard: no order is promised), and accepts messages of up to 65536 bytes" in told
        assert "keeps messages for 96 hours" in told
        largest = records_of(standard, 1, size=bus.limits.record_bytes)[0]
        batch = records_of(standard, 2, size=bus.limits.record_bytes - largest.route.overhead_bytes)
        batch += records_of(standard, 8, size=10_000)
        assert await bus.send(batch) == []
        sizes = [[size_of(entry) for entry in entries] for entries in sent(standard) if entries[0]["Id"] != "probe"]
        assert sum(map(len, sizes)) == 10
        assert all(sum(call) <= 65536 for call in sizes)
        assert max(map(max, sizes)) > 65536 - 200
    with pytest.raises(TerminalDeliveryError, match=r"--sqs-max-message-bytes is 262144, but the queue .* accepts at most 65536"):
        async with connected(standard, **{"max-message-bytes": "256KiB"}):
            pass


def size_of(entry: dict[str, Any]) -> int:
    """As SQS counts: the body, and of each attribute its name, type and value."""
    attributes = entry["MessageAttributes"].items()
    parts = [text for name, value in attributes for text in (name, value["DataType"], value["StringValue"])]
    return len(entry["MessageBody"]) + sum(len(part.encode()) for part in parts)


async def test_the_largest_message_of_all_passes(standard: SqsUnderTest) -> None:
    keywords = {"max-message-bytes": "1MiB"}
    async with connected(standard, **keywords) as bus:
        overhead = records_of(standard, 1)[0].route.overhead_bytes
        assert await bus.send(records_of(standard, 1, size=bus.limits.record_bytes - overhead)) == []
    assert len(standard.take(standard.base)) == 1


@pytest.mark.parametrize("kind", ["fifo", "standard"])
async def test_a_queue_that_is_not_what_its_name_says_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    bus: SqsUnderTest = request.getfixturevalue(kind)

    def lie(answer: dict[str, Any]) -> dict[str, Any]:
        return {"Attributes": answer["Attributes"] | {"FifoQueue": str(kind == "standard").lower()}}

    bus.service.alter("GetQueueAttributes", lie)
    says = {
        "fifo": "is not a FIFO queue, though its name ends with .fifo",
        "standard": "is a FIFO queue, though its name does not end",
    }
    with pytest.raises(TerminalDeliveryError, match=says[kind]):
        async with connected(bus):
            pass


async def test_a_group_template_is_for_fifo_queues_and_routing_takes_names(standard: SqsUnderTest) -> None:
    with pytest.raises(Exception, match="--sqs-message-group-template is only for FIFO queues"):
        standard.plan(**{"message-group-template": "{{symbol}}"})
    queue = standard.new_destination("trades")
    async with publishing(standard, **{"queue-routing": f"trade:{queue.rpartition('/')[2]}"}) as publisher:
        await publisher.publish(make_events(make_stream(), 5))
        await publisher.close(30)
    assert len(standard.take(queue)) == 5


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("RequestThrottled", 400, TransientDeliveryError),
        ("InternalFailure", 500, TransientDeliveryError),
        ("ExpiredToken", 403, TransientDeliveryError),
        ("AccessDenied", 403, TerminalDeliveryError),
        ("QueueDoesNotExist", 400, TerminalDeliveryError),
    ],
)
async def test_what_a_failed_call_means(standard: SqsUnderTest, code: str, status: int, error: type[Exception]) -> None:
    async with connected(standard) as bus:
        standard.service.fail(code, status, "because")
        failures = await bus.send(records_of(standard, 1, "A", "B"))
    assert [(failure.index, type(failure.error)) for failure in failures] == [(0, error), (1, error)]
    assert all(code in str(failure.error) and standard.base in str(failure.error) for failure in failures)


async def test_who_may_send_but_not_ask_can_publish_and_doctor_sends_nothing(fifo: SqsUnderTest) -> None:
    fifo.service.fail("AccessDenied", 403, only=lambda asked: asked.operation == "GetQueueAttributes")
    async with connected(fifo) as bus:
        told = await bus.check()
        assert f"messages may be sent to {fifo.base}" in told
        assert fifo.read_back() == []
        assert await bus.send(records_of(fifo, 1)) == []
        assert len(fifo.read_back()) == 1
        fifo.service.fail("AccessDenied", 403)
        with pytest.raises(TerminalDeliveryError, match="AccessDenied"):
            await bus.check()


async def test_doctor_is_told_what_order_costs(fifo: SqsUnderTest, standard: SqsUnderTest) -> None:
    for under_test, keywords, given_up in (
        (fifo, {}, "order in a message group where a part of a call fails"),
        (fifo, {"order": "key"}, "pace: one message of a group a call"),
        (standard, {}, "order: a standard queue promises none"),
    ):
        async with connected(under_test, **keywords) as bus:
            assert f"by choice it gives up {given_up}" in "\n".join(await bus.check())


async def test_tls_with_an_authority_of_ones_own(tmp_path: Path, elasticmq: ElasticMqServer) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(issued.cert, issued.key)
    under_test = SqsUnderTest(tmp_path, elasticmq, tls)
    with pytest.raises(TerminalDeliveryError, match="its certificate is not trusted"):
        async with connected(under_test):
            pass
    async with connected(under_test, **{"ca-bundle": authority.ca, "endpoint-url": None}) as bus:
        assert await bus.send(records_of(under_test, 1, "A", "B")) == []
    assert len(under_test.read_back()) == 2
    under_test.close()
