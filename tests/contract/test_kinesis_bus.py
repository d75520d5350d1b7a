"""The Kinesis bus against kinesalite, with faults in front of it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.buses.kinesis import KinesisBus
from tardis_machine.eventbus.contract import Failure, Record
from tardis_machine.eventbus.dead_letters import dead_letter_files, read_dead_letters
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.eventbus.routing import Router
from tests.contract.bus_under_test import BusUnderTest, Fault
from tests.contract.buses.aws import CREDENTIALS
from tests.contract.buses.kinesis import KinesisUnderTest
from tests.contract.conformance import BusConformance, Session, pytest_generate_tests
from tests.contract.sample_messages import sample_messages
from tests.servers.aws_faults import Asked
from tests.servers.certificates import Authority
from tests.servers.kinesalite import KinesaliteServer
from tests.unit.eventbus.events import make_events, make_stream

__all__ = ["pytest_generate_tests"]


class TestKinesisBus(BusConformance):
    under_test = KinesisUnderTest

    @pytest.fixture
    def bus(self, tmp_path: Path, kinesalite: KinesaliteServer) -> Iterator[BusUnderTest]:
        bus = self.under_test(tmp_path, kinesalite)
        yield bus
        bus.close()


class PlainKinesisUnderTest(KinesisUnderTest):
    """An event a record, as it is by default."""

    faults: ClassVar[Sequence[Fault]] = ("cut", "partial")
    cannot: ClassVar[dict[Fault, str]] = dict.fromkeys(("gone", "restart", "hang"), "the same client stands it with aggregates")
    burst = 12

    def keywords(self) -> dict[str, Any]:
        return {**super().keywords(), "aggregate": False}


class TestPlainKinesisBus(TestKinesisBus):
    under_test = PlainKinesisUnderTest


THROTTLED = "ProvisionedThroughputExceededException"


@pytest.fixture
def kinesis(tmp_path: Path, kinesalite: KinesaliteServer) -> Iterator[KinesisUnderTest]:
    bus = PlainKinesisUnderTest(tmp_path, kinesalite)
    yield bus
    bus.close()


@pytest.fixture
async def publish(kinesis: KinesisUnderTest) -> Callable[..., Any]:
    async def publish(**keywords: Any) -> Publisher:
        publisher = Publisher([kinesis.plan(**keywords)], spool_dir=kinesis.folder / "spool")
        await publisher.start()
        return publisher

    return publish


def records_of(kinesis: KinesisUnderTest, count: int, *symbols: str, size: int = 50, **keywords: Any) -> list[Record]:
    plan = kinesis.plan(**keywords)
    router = Router("kinesis", plan.routing, carries_headers=False)
    streams = [make_stream(symbol) for symbol in symbols or ("XBTUSD",)]
    return [Record(router.route(stream), event) for stream in streams for event in make_events(stream, count, size=size)]


async def connected(kinesis: KinesisUnderTest, **keywords: Any) -> KinesisBus:
    bus = kinesis.plan(**keywords).bus
    assert isinstance(bus, KinesisBus)
    await bus.connect()
    return bus


def puts(kinesis: KinesisUnderTest) -> list[list[dict[str, str]]]:
    return [asked.body["Records"] for asked in kinesis.service.calls if asked.operation == "PutRecords"]


def check_order(kinesis: KinesisUnderTest, session: Session) -> None:
    """Each event is there once, and those of a key are in order."""
    mine = [event for _, event in BusConformance().read(kinesis) if not event.HasField("session_end")]
    assert sorted(event.event_id for event in mine) == sorted(event.event_id for event in session.events)
    last: dict[tuple[str, str, str | None], int] = defaultdict(lambda: -1)
    for event in mine:
        lane = (event.exchange, event.symbol, event.WhichOneof("payload"))
        assert event.sequence == last[lane] + 1, f"{lane} was overtaken"
        last[lane] = event.sequence


async def test_calls_may_be_filled_with_records_of_one_key_in_order(
    kinesis: KinesisUnderTest, publish: Callable[..., Any]
) -> None:
    session = Session("s-1")
    publisher = await publish(order="call")
    for _ in range(5):
        await publisher.publish(session.encode(sample_messages(len(session.messages) + 240)[-240:]))
    (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert len(puts(kinesis)) < 60
    check_order(kinesis, session)


@pytest.mark.parametrize("aggregate", [False, True])
async def test_records_that_fail_are_sent_again_alone_and_in_order(
    kinesis: KinesisUnderTest, publish: Callable[..., Any], aggregate: bool
) -> None:
    dice = random.Random(7)
    kinesis.service.refuse(THROTTLED, only=lambda entry: dice.random() < 0.3)
    session = Session("s-1")
    publisher = await publish(aggregate=aggregate, order="key", **{"max-retries": 100})
    for _ in range(4):
        await publisher.publish(session.encode(sample_messages(len(session.messages) + 96)[-96:]))
    (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert receipt.retried > 0
    check_order(kinesis, session)
    for entries in puts(kinesis):
        keys = [entry["PartitionKey"] for entry in entries]
        assert len(keys) == len(set(keys)), "a call has two of a key, of which the first may fail alone"


async def test_by_default_what_fails_is_sent_again_with_all_later_ones_of_its_key(
    kinesis: KinesisUnderTest, publish: Callable[..., Any]
) -> None:
    dice = random.Random(11)
    kinesis.service.refuse(THROTTLED, only=lambda entry: dice.random() < 0.03)
    publisher = await publish(aggregate=False, **{"max-retries": 100})
    events = [event for symbol in ("A", "B", "C") for event in make_events(make_stream(symbol), 700)]
    values = [msgspec.structs.replace(event, value=f"{event.stream.symbol} {event.sequence}".encode()) for event in events]
    await publisher.publish(values)
    (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert receipt.retried > 0
    assert len(puts(kinesis)) < 200, "calls are not full"
    arrived = [record.value for record in kinesis.read_back() if record.value[:2] in (b"A ", b"B ", b"C ")]
    assert len(arrived) > len(values), "nothing that was stored behind a failure came again"
    last_copies = list(dict.fromkeys(reversed(arrived)))[::-1]
    for symbol in (b"A", b"B", b"C"):
        assert [value for value in last_copies if value[:1] == symbol] == [b"%s %d" % (symbol, n) for n in range(700)]


async def test_permissions_that_are_revoked_and_given_back_cost_a_few_dead_letters_and_nothing_else(
    kinesis: KinesisUnderTest, publish: Callable[..., Any]
) -> None:
    publisher = await publish(**{"max-refusals": 50, "max-batch-size": 20})
    events = make_events(make_stream(), 400)
    values = [msgspec.structs.replace(event, value=b"%d" % event.sequence) for event in events]
    kinesis.service.fail("AccessDeniedException", message="not authorized")
    await publisher.publish(values)
    async with asyncio.timeout(30):
        while publisher.health()[0].state != "paused" or publisher.receipts[0].dead_lettered == 0:
            await asyncio.sleep(0.02)
    kinesis.service.heal()
    (receipt,) = await publisher.close(60)
    assert 0 < receipt.dead_lettered <= 50
    assert receipt.unconfirmed == receipt.dropped == 0
    letters = [letter for path in dead_letter_files(kinesis.folder / "dead-letters") for letter in read_dead_letters(path)]
    buried = {letter.value for letter in letters}
    arrived = {record.value for record in kinesis.read_back()}
    assert {event.value for event in values} - arrived == buried


async def test_without_order_calls_are_full_and_nothing_is_lost(kinesis: KinesisUnderTest, publish: Callable[..., Any]) -> None:
    dice = random.Random(7)
    kinesis.service.refuse(THROTTLED, only=lambda entry: dice.random() < 0.05)
    publisher = await publish(order="none", **{"max-batch-delay-ms": 500})
    events = make_events(make_stream(), 2000)
    await publisher.publish(events)
    (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert max(map(len, puts(kinesis))) == 500
    assert len(kinesis.server.read(kinesis.base)) == len(events) + 1


async def test_a_throttled_shard_holds_up_no_other(kinesis: KinesisUnderTest, publish: Callable[..., Any]) -> None:
    def is_throttled(entry: dict[str, str]) -> bool:
        return int.from_bytes(md5(entry["PartitionKey"].encode()).digest(), "big") >= 2**127

    kinesis.service.refuse(THROTTLED, only=is_throttled)
    publisher = await publish(**{"max-retries": 1000})
    streams = [make_stream(f"S{number}") for number in range(20)]
    keys = [f"bitmex|{stream.symbol}|trade" for stream in streams]
    held = sum(is_throttled({"PartitionKey": key}) for key in keys)
    assert 0 < held < 20
    for start in range(0, 50, 10):
        for stream in streams:
            await publisher.publish(make_events(stream, 10, first=start))
    async with asyncio.timeout(60):
        while publisher.receipts[0].confirmed < (20 - held) * 50:
            await asyncio.sleep(0.02)
            assert publisher.health()[0].state == "connected"
    # What waits is tried again, by itself: the bus is not taken for broken.
    await asyncio.sleep(0.5)
    assert publisher.health()[0].state == "connected"
    assert "ProvisionedThroughputExceededException" in str(publisher.health()[0].last_error)
    kinesis.service.heal()
    (receipt,) = await publisher.close(30)
    assert receipt.is_complete


async def test_a_stream_may_be_resharded_while_we_write(kinesis: KinesisUnderTest, publish: Callable[..., Any]) -> None:
    server, stream, session = kinesis.server, kinesis.base, Session("s-1")
    publisher = await publish(aggregate=True)

    async def write(batches: int) -> None:
        for _ in range(batches):
            await publisher.publish(session.encode(sample_messages(len(session.messages) + 48)[-48:]))
            await asyncio.sleep(0.02)

    def reshard() -> None:
        first, second = server.shards(stream)
        middle = (int(first["HashKeyRange"]["StartingHashKey"]) + int(first["HashKeyRange"]["EndingHashKey"])) // 2
        server.call("SplitShard", StreamName=stream, ShardToSplit=first["ShardId"], NewStartingHashKey=str(middle))
        server.wait_until_active(stream)
        upper = server.shards(stream)[3]
        server.call("MergeShards", StreamName=stream, ShardToMerge=upper["ShardId"], AdjacentShardToMerge=second["ShardId"])
        server.wait_until_active(stream)

    await write(5)
    await asyncio.gather(write(15), asyncio.to_thread(reshard))
    await write(5)
    (receipt,) = await publisher.close(30)
    assert receipt.is_complete
    assert len(server.shards(stream)) == 5
    check_order(kinesis, session)


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("ThrottlingException", 400, TransientDeliveryError),
        ("InternalFailure", 500, TransientDeliveryError),
        ("ServiceUnavailable", 503, TransientDeliveryError),
        ("ExpiredTokenException", 400, TransientDeliveryError),
        ("AccessDeniedException", 400, TerminalDeliveryError),
        ("ResourceNotFoundException", 400, TerminalDeliveryError),
    ],
)
async def test_what_a_failed_call_means(kinesis: KinesisUnderTest, code: str, status: int, error: type[Exception]) -> None:
    bus = await connected(kinesis)
    kinesis.service.fail(code, status, "because")
    failures = await bus.send(records_of(kinesis, 1, "A", "B"))
    assert [failure.index for failure in failures] == [0, 1]
    assert {type(failure.error) for failure in failures} == {error}
    assert all(code in str(failure.error) and kinesis.base in str(failure.error) for failure in failures)
    await bus.close()


async def test_credentials_that_expired_are_looked_for_again(
    kinesis: KinesisUnderTest, publish: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_profile(key: str) -> None:
        (kinesis.folder / "credentials").write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\n")

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(kinesis.folder / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    chain = dict.fromkeys(CREDENTIALS)
    monkeypatch.setattr(kinesis, "keywords", lambda: PlainKinesisUnderTest.keywords(kinesis) | chain)
    with pytest.raises(TerminalDeliveryError, match=r"no AWS credentials were found .* give --kinesis-access-key-id"):
        await publish()
    write_profile("FIRST")
    publisher = await publish()
    await publisher.publish(make_events(make_stream(), 10))
    await publisher.flush(30)
    kinesis.service.fail("ExpiredTokenException", message="expired", only=lambda asked: asked.access_key == "FIRST")
    await publisher.publish(make_events(make_stream(), 10, first=10))
    async with asyncio.timeout(20):
        while publisher.health()[0].state != "retrying":
            await asyncio.sleep(0.02)
    assert "ExpiredTokenException" in str(publisher.health()[0].last_error)
    write_profile("SECOND")
    (receipt,) = await publisher.close(30)
    assert receipt.is_complete
    assert {asked.access_key for asked in kinesis.service.calls} == {"FIRST", "SECOND"}


async def test_who_may_write_but_not_describe_can_publish_and_doctor_leaves_no_record(kinesis: KinesisUnderTest) -> None:
    kinesis.service.fail("AccessDeniedException", only=lambda asked: asked.operation == "DescribeStreamSummary")
    bus = await connected(kinesis)
    assert f"the stream {kinesis.base} exists, and may not be described with these credentials" in await bus.check()
    assert f"records may be written to {kinesis.base}" in await bus.check()
    assert kinesis.server.read(kinesis.base) == []
    assert await bus.send(records_of(kinesis, 1)) == []
    assert len(kinesis.server.read(kinesis.base)) == 1
    await bus.close()
    kinesis.service.fail("AccessDeniedException", only=lambda asked: asked.operation.startswith("PutRecord"))
    bus = await connected(kinesis)
    with pytest.raises(TerminalDeliveryError, match=r"can't write to the Kinesis stream .* AccessDeniedException"):
        await bus.check()
    await bus.close()


async def test_doctor_is_told_shards_retention_and_order(kinesis: KinesisUnderTest) -> None:
    bus = await connected(kinesis)
    told = "\n".join(await bus.check())
    assert "is active (provisioned), has 2 open shards, which take 2000 records and 2 MB a second" in told
    assert "keeps records for 24 hours" in told
    assert "1048576 bytes at most" in told
    assert "by choice it gives up order for a key where a part of a call fails" in told
    await bus.close()
    slow = await connected(kinesis, order="key")
    assert "by choice it gives up pace: some 100 records a second for a key" in "\n".join(await slow.check())
    await slow.close()


@pytest.mark.parametrize(
    ("said", "keywords", "error", "says"),
    [
        ({"StreamStatus": "CREATING"}, {}, TransientDeliveryError, "still being created"),
        ({"StreamStatus": "DELETING"}, {}, TerminalDeliveryError, "is being deleted"),
        ({"RecordDistributionStrategy": "AUTO"}, {}, TerminalDeliveryError, "keeps no order for a key: .*--kinesis-order none"),
        ({"RecordDistributionStrategy": "AUTO"}, {"order": "none"}, None, ""),
        ({"MaxRecordSizeInKiB": 10240}, {"max-record-bytes": "10MiB"}, None, ""),
    ],
)
async def test_what_the_stream_says_of_itself_is_heard(
    kinesis: KinesisUnderTest, said: dict[str, Any], keywords: dict[str, Any], error: type[Exception] | None, says: str
) -> None:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        return {"StreamDescriptionSummary": answer["StreamDescriptionSummary"] | said}

    kinesis.service.alter("DescribeStreamSummary", change)
    bus = kinesis.plan(**keywords).bus
    if error is None:
        await bus.connect()
    else:
        with pytest.raises(error, match=says):
            await bus.connect()
    await bus.close()


async def test_an_arn_names_the_stream_its_account_and_region(kinesis: KinesisUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    arn = f"arn:aws:kinesis:eu-central-1:123456789012:stream/{kinesis.base}"
    bus = await connected(kinesis, stream=arn, region=None)
    assert await bus.send(records_of(kinesis, 1, stream=arn)) == []
    asked = kinesis.service.calls[-1].body
    assert (asked["StreamName"], asked["StreamARN"]) == (kinesis.base, arn)
    await bus.close()


async def test_limits_of_a_call_and_of_a_record(kinesis: KinesisUnderTest) -> None:
    """Records as large as they may be, more than one call takes; an aggregate never grows past a record's limit."""
    for keywords in ({"order": "none"}, {"aggregate": True}):
        # The emulator takes its time for large requests.
        bus = await connected(kinesis, **keywords, **{"request-timeout": "60s"})
        largest = 1024**2 - len("bitmex|XBTUSD|trade")
        batch = [*records_of(kinesis, 6, size=largest, **keywords), *records_of(kinesis, 30, size=100_000, **keywords)]
        kinesis.service.calls.clear()
        assert await bus.send(batch) == []
        for entries in puts(kinesis):
            sizes = [len(entry["Data"]) * 3 / 4 + len(entry["PartitionKey"]) for entry in entries]
            assert max(sizes) <= 1024**2 + 2
            assert sum(sizes) <= 5 * 1024**2 + 2
        await bus.close()
    assert sorted(len(delivered.value) for delivered in kinesis.read_back()) == [100_000] * 60 + [largest] * 12


async def test_one_record_that_the_service_will_not_have_is_the_only_dead_letter(
    kinesis: KinesisUnderTest, publish: Callable[..., Any]
) -> None:
    def is_poisoned(asked: Asked) -> bool:
        return any("S7" in entry["PartitionKey"] for entry in asked.body.get("Records", []))

    kinesis.service.fail("ValidationException", message="no such characters", only=is_poisoned)
    publisher = await publish()
    await publisher.publish([make_events(make_stream(f"S{number}"), 1)[0] for number in range(20)])
    (receipt,) = await publisher.close(30)
    assert (receipt.dead_lettered, receipt.confirmed) == (1, 20)
    [letter] = [letter for path in dead_letter_files(kinesis.folder / "dead-letters") for letter in read_dead_letters(path)]
    assert letter.stream.symbol == "S7"


async def test_keys_that_kinesis_does_not_take_still_choose_a_shard(kinesis: KinesisUnderTest) -> None:
    long, empty = {"partition-key-template": "{{symbol}}" + "x" * 300}, {"partition-key-template": "{{meta.nothing}}"}
    bus = await connected(kinesis)
    for keywords in (long, empty):
        assert await bus.send(records_of(kinesis, 1, "A", "B", "A", **keywords)) == []
    keys = [record["PartitionKey"] for record in kinesis.server.read(kinesis.base)]
    assert sorted(map(len, keys)) == [1, 1, 1, 64, 64, 64]
    assert len({key for key in keys if len(key) == 64}) == 2
    await bus.close()


@pytest.mark.parametrize("by_variable", [False, True])
async def test_tls_with_an_authority_of_ones_own(
    tmp_path: Path, kinesalite: KinesaliteServer, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(issued.cert, issued.key)
    kinesis = PlainKinesisUnderTest(tmp_path, kinesalite, tls)
    untrusting = kinesis.plan().bus
    with pytest.raises(TerminalDeliveryError, match="its certificate is not trusted"):
        await untrusting.connect()
    await untrusting.close()
    if by_variable:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    bus = await connected(kinesis, **({} if by_variable else {"ca-bundle": authority.ca}))
    assert await bus.send(records_of(kinesis, 3, order="none")) == []
    assert len(kinesalite.read(kinesis.base)) == 3
    await bus.close()
    kinesis.close()


async def test_secrets_are_in_no_log_error_or_repr(kinesis: KinesisUnderTest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    plan = kinesis.plan()
    told = [repr(plan.bus), repr(vars(plan.bus))]
    await plan.bus.connect()
    leak = f"The canonical string should have been 'x-amz-security-token:{CREDENTIALS['session-token']}'"
    for code in ("SignatureDoesNotMatch", "AccessDeniedException", "InternalFailure"):
        kinesis.service.fail(code, message=leak)
        failures: Sequence[Failure] = await plan.bus.send(records_of(kinesis, 1))
        told += [str(failure.error) for failure in failures]
        with pytest.raises((TerminalDeliveryError, TransientDeliveryError)) as refused:
            await plan.bus.check()
        told.append(str(refused.value))
    await plan.bus.close()
    assert len(told) == 8
    for text in (*told, caplog.text):
        for secret in CREDENTIALS.values():
            assert secret not in text
