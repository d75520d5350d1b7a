"""The Kafka bus against a real broker: the conformance suite, and what only Kafka has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from tardis_machine.bronze.decoding import decode_event
from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.contract import Danger, Record
from tardis_machine.eventbus.dead_letters import dead_letter_files, read_dead_letters
from tardis_machine.eventbus.publisher import BusPlan, Publisher
from tardis_machine.eventbus.routing import Router
from tests.contract.bus_under_test import Delivered
from tests.contract.buses.kafka import Cluster, KafkaUnderTest, read_topic, running_cluster
from tests.contract.conformance import BusConformance, Session, pytest_generate_tests
from tests.contract.sample_messages import sample_messages
from tests.servers.kafka import KafkaServer
from tests.servers.process import free_port
from tests.servers.schema_registry import SchemaRegistryServer

__all__ = ["pytest_generate_tests"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("kafka") / "server") as cluster:
        yield cluster


@pytest.fixture
def bus(tmp_path: Path, cluster: Cluster) -> Iterator[KafkaUnderTest]:
    under_test = KafkaUnderTest(tmp_path, cluster)
    yield under_test
    under_test.close()


class TestKafkaBus(BusConformance):
    under_test = KafkaUnderTest

    @pytest.fixture
    def bus(self, bus: KafkaUnderTest) -> KafkaUnderTest:
        return bus


def make_records(plan: BusPlan, session: Session, count: int) -> list[Record]:
    router = Router("kafka", plan.routing)
    return [Record(router.route(event.stream), event) for event in session.encode(sample_messages(count))]


async def publish(plan: BusPlan, session: Session, count: int, folder: Path) -> None:
    publisher = Publisher([plan], spool_dir=folder / "spool")
    await publisher.start()
    await publisher.publish(session.encode(sample_messages(count)))
    (receipt,) = await publisher.close(60)
    assert receipt.is_complete


def sequences(records: list[Delivered], session: Session) -> dict[str, list[int]]:
    """For each key, the places of its records among those that the session made, in the order of arrival."""
    places = {event.value: number for number, event in enumerate(session.events)}
    found: dict[str, list[int]] = {}
    for record in records:
        found.setdefault(record.key, []).append(places[record.value])
    return found


async def test_records_without_headers_are_the_same_otherwise(bus: KafkaUnderTest) -> None:
    session = Session("s-1")
    trades = bus.new_destination("trades")
    await publish(bus.plan(**{"headers": "none", "topic-routing": f"trade:{trades}"}), session, 240, bus.folder)
    records = bus.read_back()
    assert all(record.headers == {} for record in records)
    assert {record.destination for record in records if decode_event(record.value).HasField("trade")} == {trades}
    BusConformance().check_session([(record, decode_event(record.value)) for record in records], session)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd", "client-id": "desk"},
        {"acks": "1", "compression": "none"},
        {"acks": "all", "idempotence": False, "option": {"linger.ms": "0", "partitioner": "murmur2"}},
    ],
)
async def test_ways_of_sending(bus: KafkaUnderTest, options: dict[str, Any]) -> None:
    session = Session("s-1")
    await publish(bus.plan(**options), session, 120, bus.folder)
    BusConformance().check_session([(record, decode_event(record.value)) for record in bus.read_back()], session)


async def test_a_key_keeps_its_order_with_many_requests_in_flight_while_connections_break(bus: KafkaUnderTest) -> None:
    """Nothing comes twice either: the broker knows what it has."""
    plan = bus.plan(**{"option": {"linger.ms": "0", "batch.num.messages": "20"}, "delivery-timeout": 60})
    session = Session("s-1")
    records = make_records(plan, session, 6000)
    await plan.bus.connect()
    sending = asyncio.create_task(plan.bus.send(records))
    for _ in range(4):
        await asyncio.sleep(0.03)
        await asyncio.to_thread(bus.cluster.proxy.reset)
    assert await sending == ()
    await plan.bus.close()
    for numbers in sequences(bus.read_back(), session).values():
        assert numbers == sorted(set(numbers))
    assert len(bus.read_back()) == len(records)


async def test_what_had_not_left_when_a_send_was_cancelled_never_leaves(bus: KafkaUnderTest) -> None:
    plan = bus.plan(**{"delivery-timeout": 60})
    records = make_records(plan, Session("s-1"), 600)
    await plan.bus.connect()
    assert await plan.bus.send(records[:100]) == ()
    await asyncio.to_thread(bus.cluster.proxy.refuse)
    sending = asyncio.create_task(plan.bus.send(records[100:]))
    await asyncio.sleep(0.3)
    assert not sending.done()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await asyncio.to_thread(bus.cluster.proxy.heal)
    await plan.bus.connect()
    await asyncio.sleep(2)
    assert len(bus.read_back()) == 100
    assert await plan.bus.send(records[100:]) == ()
    await plan.bus.close()
    assert len(bus.read_back()) == 600


async def test_a_batch_that_nobody_confirms_fails_as_a_whole_and_can_be_sent_again(bus: KafkaUnderTest) -> None:
    plan = bus.plan(**{"delivery-timeout": 1})
    records = make_records(plan, Session("s-1"), 600)
    await plan.bus.connect()
    await asyncio.to_thread(bus.cluster.proxy.refuse)
    failures = await plan.bus.send(records)
    assert [failure.index for failure in failures] == list(range(600))
    assert {str(failure.error) for failure in failures} == {
        f"Kafka confirmed nothing for 1 s of what goes to topic {bus.destination_option()[1]}"
    }
    assert all(isinstance(failure.error, TransientDeliveryError) and not failure.is_local for failure in failures)
    with pytest.raises(TransientDeliveryError, match=r"can't be reached: .*(refused|down)"):
        await plan.bus.connect()
    await asyncio.to_thread(bus.cluster.proxy.heal)
    await plan.bus.connect()
    assert await plan.bus.send(records) == ()
    await plan.bus.close()
    assert len(bus.read_back()) == 600


async def test_topics_are_made_when_asked_for(bus: KafkaUnderTest) -> None:
    base, trades = (f"{name}-{bus.destination_option()[1]}" for name in ("made", "made-trades"))
    options = {"topic": base, "topic-routing": f"trade:{trades}", "create-topics": True, "topic-replication": 1}
    await publish(bus.plan(**options, **{"topic-partitions": 5}), Session("s-1"), 48, bus.folder)
    described = bus.admin.list_topics(timeout=30).topics
    assert [len(described[topic].partitions) for topic in (base, trades)] == [5, 5]
    assert len(list(read_topic(bus.cluster.server.address, trades))) == 4
    wrong = bus.plan(**{**options, "topic": f"{base}-x", "topic-partitions": 1, "topic-replication": 3})
    with pytest.raises(TerminalDeliveryError, match=r"can't create topic .* \(--kafka-create-topics\): .*eplication factor"):
        await wrong.bus.connect()
    await wrong.bus.close()


async def test_a_topic_that_is_removed_while_it_is_used_is_a_terminal_error(bus: KafkaUnderTest) -> None:
    gone = bus.new_destination("gone")
    plan = bus.plan(**{"topic-routing": f"trade:{gone}"})
    records = make_records(plan, Session("s-1"), 240)
    await plan.bus.connect()
    assert await plan.bus.send(records[:24]) == ()
    bus.admin.delete_topics([gone])[gone].result(30)
    bus._topics.remove(gone)
    failures = await plan.bus.send(records[24:])
    await plan.bus.close()
    trades = [index for index, record in enumerate(records[24:]) if record.route.payload_case == "trade"]
    assert [failure.index for failure in failures] == trades
    assert {str(failure.error) for failure in failures} == {f"Kafka has no topic {gone}"}
    assert isinstance(failures[0].error, TerminalDeliveryError)


async def test_the_largest_record_is_what_the_topics_take(bus: KafkaUnderTest) -> None:
    """One that is larger goes to the dead letters; a batch is never refused for what its records are together."""
    small = bus.new_destination("small")
    bus.set_topic(small, "max.message.bytes", "4096")
    plan = bus.plan(
        **{"topic-routing": f"bookChange:{small}", "compression": "none", "include-payloads": "trade,bookChange,-session_end"}
    )
    session = Session("s-1")
    messages = sample_messages(600)
    messages[1].bids *= 200  # type: ignore[union-attr]
    publisher = Publisher([plan], spool_dir=bus.folder / "spool")
    await publisher.start()
    assert plan.bus.limits.record_bytes == 4096 - 512
    events = session.encode(messages)
    await publisher.publish(events)
    (receipt,) = await publisher.close(60)
    assert receipt.dead_lettered == 1
    assert receipt.confirmed == 99
    (letters,) = [list(read_dead_letters(path)) for path in dead_letter_files(bus.folder / "dead-letters")]
    assert [bytes.fromhex(letter.event_id) for letter in letters] == [events[1].event_id]
    assert "and kafka takes 3584 a record" in letters[0].reason


async def test_a_partition_without_a_leader_holds_up_only_its_own_keys(tmp_path: Path, bus: KafkaUnderTest) -> None:
    first = bus.cluster.server
    second = KafkaServer(
        tmp_path / "second",
        {
            "process.roles": "broker",
            "node.id": "2",
            "controller.quorum.voters": first.properties["controller.quorum.voters"],
            "listener.security.protocol.map": first.properties["listener.security.protocol.map"],
        },
    )
    second.properties["listeners"] = f"PLAINTEXT://{second.address},PROXIED://127.0.0.1:{free_port()}"
    second.properties["advertised.listeners"] = second.properties["listeners"]
    with second:
        far = f"far-{bus.destination_option()[1]}"
        bus.admin.create_topics([NewTopic(far, 1, replica_assignment=[[2]])])[far].result(30)
        bus._topics.append(far)
        session = Session("s-1")
        options = {"topic-routing": f"trade:{far}", "delivery-timeout": 2, "max-retries": 100}
        publisher = Publisher([bus.plan(**options)], spool_dir=tmp_path / "spool")
        await publisher.start()
        await publisher.publish(session.encode(sample_messages(120)))
        await publisher.flush(30)
        second.pause()
        await publisher.publish(session.encode(sample_messages(480)[120:]))
        others = sum(event.stream.payload_case != "trade" for event in session.events)
        async with asyncio.timeout(60):
            while publisher.receipts[0].confirmed < others + 10:
                await asyncio.sleep(0.05)
        second.resume()
        (receipt,) = await publisher.close(90)
        assert receipt.is_complete
        assert receipt.dead_lettered == 0
        BusConformance().check_session(BusConformance().first_arrivals(bus), session)


async def test_values_carry_the_frame_of_the_schema_registry(bus: KafkaUnderTest) -> None:
    session = Session("s-1")
    base, trades = bus.destination_option()[1], bus.new_destination("trades")
    with SchemaRegistryServer(login="desk:pass/word", first_id=70_000) as registry:
        options = {
            "schema-registry-url": registry.url,
            "schema-registry-username": "desk",
            "schema-registry-password": "pass/word",
            "topic-routing": f"trade:{trades}",
        }
        await publish(bus.plan(**options), session, 48, bus.folder)
        assert sorted(registry.subjects) == sorted([f"{base}-value", f"{trades}-value"])
        looked_up = bus.plan(**options, **{"schema-register": False})
        await looked_up.bus.connect()
        sentences = await looked_up.bus.check()
        assert "the schema registry knows the schema of every topic" in sentences
        await looked_up.bus.close()
        assert set(registry.asked[-2:]) == {f"/subjects/{topic}-value" for topic in (base, trades)}
    frame = b"\x00" + (70_000).to_bytes(4, "big") + b"\x00"
    records = bus.read_back()
    assert {record.value[:6] for record in records} == {frame}
    plain = [Delivered(record.destination, record.key, record.headers, record.value[6:]) for record in records]
    BusConformance().check_session([(record, decode_event(record.value)) for record in plain], session)


async def test_a_schema_registry_that_refuses_is_named_and_one_that_fails_is_waited_for(bus: KafkaUnderTest) -> None:
    with SchemaRegistryServer(login="desk:right") as registry:
        login = {"schema-registry-url": registry.url, "schema-registry-username": "desk"}
        cases = [
            (
                {"schema-registry-password": "wr0ng"},
                None,
                TerminalDeliveryError,
                "answered 401 .*--kafka-schema-registry-password",
            ),
            ({"schema-registry-password": "right"}, 503, TransientDeliveryError, "answered 503"),
            ({"schema-registry-password": "right"}, 409, TerminalDeliveryError, "answered 409 .*does not go with"),
            (
                {"schema-registry-password": "right", "schema-register": False},
                None,
                TerminalDeliveryError,
                "answered 404 .*-value lacks the schema, and --kafka-schema-register is off",
            ),
        ]
        for options, status, kind, says in cases:
            registry.fails_with = status
            plan = bus.plan(**login, **options)
            with pytest.raises(kind, match=says) as caught:
                await plan.bus.connect()
            assert "wr0ng" not in str(caught.value)
            await plan.bus.close()
    gone = bus.plan(**{"schema-registry-url": f"http://desk:s3cret@127.0.0.1:{free_port()}"})
    with pytest.raises(TransientDeliveryError, match=r"the schema registry at http://127.0.0.1:.* can't be reached") as caught:
        await gone.bus.connect()
    assert "s3cret" not in str(caught.value)


async def test_resends_of_a_batch_fail_only_where_they_failed(bus: KafkaUnderTest) -> None:
    """Some records of a batch are too large for their topic: those alone are reported, each by its place."""
    refused = bus.new_destination("refused")
    plan = bus.plan(**{"topic-routing": f"trade:{refused},bookChange:{refused}"})
    records = make_records(plan, Session("s-1"), 240)
    await plan.bus.connect()
    bus.set_topic(refused, "max.message.bytes", "64")
    failures = await plan.bus.send(records)
    await plan.bus.close()
    expected = [index for index, record in enumerate(records) if record.destination == refused]
    assert [failure.index for failure in failures] == expected
    assert all(isinstance(failure.error, TerminalDeliveryError) for failure in failures)
    assert "too large" in str(failures[0].error)
    assert Counter(record.destination for record in bus.read_back()) == {bus.destination_option()[1]: 240 - len(expected)}


@pytest.mark.parametrize("acks", ["all", "1"])
async def test_doctor_is_told_when_one_replica_is_enough(bus: KafkaUnderTest, acks: str) -> None:
    service = bus.plan(acks=acks).bus
    await service.connect()
    dangers = [sentence for sentence in await service.check() if isinstance(sentence, Danger)]
    await service.close()
    assert [danger.to_do for danger in dangers] == ([] if acks == "all" else ["set --kafka-acks all"])
