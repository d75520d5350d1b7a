"""Records by hand: the consoles of Redis and Kafka read what was published, and `buf` decodes it without any code of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tardis_machine.bronze.decoding import decode_event
from tardis_machine.eventbus.publisher import Publisher
from tests.contract.bus_under_test import BusUnderTest, load_bus
from tests.contract.conformance import Session
from tests.contract.sample_messages import sample_messages
from tests.interop.consoles import decode_with_buf, shell
from tests.servers.kafka import KafkaServer
from tests.servers.process import class_path, java


async def publish(bus: BusUnderTest) -> Session:
    """Some of everything."""
    session = Session("s-1")
    publisher = Publisher([bus.plan()], spool_dir=bus.folder / "spool")
    await publisher.start()
    await publisher.publish(session.encode(sample_messages(60)))
    (receipt,) = await publisher.close(30)
    assert receipt.is_complete
    return session


@pytest.fixture
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BusUnderTest]:
    under_test = load_bus(request.param)(tmp_path)
    yield under_test
    under_test.close()


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
async def test_redis_cli(bus: BusUnderTest) -> None:
    session = await publish(bus)
    port = bus.direct_keywords()["port"]
    for place in (1, 17, 60):
        # The value is the second of an entry's fields, which the console ends with a newline.
        script = f"return redis.call('XRANGE', KEYS[1], '-', '+')[{place}][2][2]"
        value = shell(f'redis-cli -p {port} --raw EVAL "{script}" 1 events | head -c -1')
        assert decode_with_buf(value) == decode_event(session.events[place - 1].value)


@pytest.mark.parametrize("bus", ["kafka"], indirect=True)
async def test_kafkas_console_consumer(bus: BusUnderTest) -> None:
    session = await publish(bus)
    server = bus.server  # type: ignore[attr-defined]
    assert isinstance(server, KafkaServer)
    jars = f"{class_path('kafka-tools')}:{class_path('kafka')}"
    consumer = f"'{java()}' -Xmx128m -cp '{jars}' org.apache.kafka.tools.consumer.ConsoleConsumer"
    topic = bus.destination_option()[1]
    asked = f"--bootstrap-server {server.address} --topic {topic} --from-beginning --max-messages 1 --timeout-ms 30000"
    value = shell(f"{consumer} {asked} 2>/dev/null | head -c -1")
    event = decode_with_buf(value)
    assert event in [decode_event(published.value) for published in session.events]
    first = [record for record in bus.read_back() if record.value == value]
    assert len(first) == 1
