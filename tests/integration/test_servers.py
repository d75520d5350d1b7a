"""Every server of the tests starts, and its client library exchanges something real with it, through kill, pause and restart."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.elasticmq import ElasticMqServer
from tests.servers.kafka import KafkaServer
from tests.servers.kinesalite import KinesaliteServer
from tests.servers.nats import NatsServer
from tests.servers.process import ROOT, ServerFailedError, ServerMissingError, ServerProcess, installed
from tests.servers.redis import RedisServer


def make_topic(server: KafkaServer, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def produce(server: KafkaServer, topic: str, values: list[bytes]) -> list[Any]:
    """The errors that the broker, or the client for it, reported."""
    from confluent_kafka import Producer

    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": server.address, "acks": "all", "topic.metadata.propagation.max.ms": 1_000})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(30) == 0
    return errors


def consume(server: KafkaServer, topic: str, count: int) -> list[bytes | None]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "smoke", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=30) if message.error() is None]
    finally:
        consumer.close()


def test_kafka(kafka: KafkaServer) -> None:
    make_topic(kafka, "smoke")
    assert produce(kafka, "smoke", [b"one", b"two"]) == []
    assert consume(kafka, "smoke", 2) == [b"one", b"two"]


def test_kafka_makes_no_topic_unasked(kafka: KafkaServer) -> None:
    from confluent_kafka import KafkaError

    assert [error.code() for error in produce(kafka, "unknown", [b"lost"])] == [KafkaError.UNKNOWN_TOPIC_OR_PART]


def test_kafka_keeps_what_it_confirmed_when_killed(own_server: Callable[[type[KafkaServer]], KafkaServer]) -> None:
    server = own_server(KafkaServer)
    make_topic(server, "kept")
    assert produce(server, "kept", [b"one"]) == []
    server.kill()
    server.restart()
    assert consume(server, "kept", 1) == [b"one"]


async def test_redis(redis: RedisServer) -> None:
    from redis.asyncio import Redis

    async with Redis.from_url(redis.url) as client:
        position = await client.xadd("smoke", {"value": b"\x00one"})
        assert await client.xrange("smoke", position, position) == [(position, {b"value": b"\x00one"})]


async def test_redis_keeps_what_it_confirmed_when_killed(own_server: Callable[[type[RedisServer]], RedisServer]) -> None:
    from redis.asyncio import Redis

    server = own_server(RedisServer)
    port = server.port
    async with Redis.from_url(server.url) as client:
        await client.xadd("kept", {"value": b"one"})
    server.kill()
    assert not server.is_running
    server.restart()
    assert server.port == port
    async with Redis.from_url(server.url) as client:
        assert await client.xlen("kept") == 1


async def test_nats(nats: NatsServer) -> None:
    await write_and_read_nats(nats, "smoke", write=True)


async def test_nats_keeps_what_it_confirmed_when_killed(own_server: Callable[[type[NatsServer]], NatsServer]) -> None:
    server = own_server(NatsServer)
    await write_and_read_nats(server, "kept", write=True)
    server.kill()
    server.restart()
    await write_and_read_nats(server, "kept", write=False)


async def write_and_read_nats(server: NatsServer, stream: str, *, write: bool) -> None:
    import nats

    client = await nats.connect(server.url)
    jetstream = client.jetstream()
    if write:
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.*"])
        assert (await jetstream.publish(f"{stream}.trade", b"one")).seq == 1
    assert (await jetstream.get_msg(stream, seq=1)).data == b"one"
    await client.close()


def aws_client(service: str, url: str) -> Any:
    from aiobotocore.session import get_session

    return get_session().create_client(
        service, region_name="us-east-1", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test"
    )


async def test_elasticmq(elasticmq: ElasticMqServer) -> None:
    async with aws_client("sqs", elasticmq.url) as sqs:
        queue = (await sqs.create_queue(QueueName="smoke.fifo", Attributes={"FifoQueue": "true"}))["QueueUrl"]
        assert queue.startswith(elasticmq.url)
        await sqs.send_message(QueueUrl=queue, MessageBody="one", MessageGroupId="g", MessageDeduplicationId="1")
        received = await sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)
        assert [message["Body"] for message in received["Messages"]] == ["one"]


async def test_elasticmq_keeps_to_the_limits(elasticmq: ElasticMqServer) -> None:
    from botocore.exceptions import ClientError

    attributes = {f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(11)}
    async with aws_client("sqs", elasticmq.url) as sqs:
        queue = (await sqs.create_queue(QueueName="limits"))["QueueUrl"]
        with pytest.raises(ClientError):
            await sqs.send_message(QueueUrl=queue, MessageBody="one", MessageAttributes=attributes)


async def test_kinesalite(kinesalite: KinesaliteServer) -> None:
    async with aws_client("kinesis", kinesalite.url) as kinesis:
        await kinesis.create_stream(StreamName="smoke", ShardCount=1)
        await kinesis.get_waiter("stream_exists").wait(StreamName="smoke", WaiterConfig={"Delay": 1, "MaxAttempts": 10})
        put = await kinesis.put_records(StreamName="smoke", Records=[{"Data": b"\x00one", "PartitionKey": "k"}])
        assert put["FailedRecordCount"] == 0
        shard = put["Records"][0]["ShardId"]
        start = await kinesis.get_shard_iterator(StreamName="smoke", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        got = await kinesis.get_records(ShardIterator=start["ShardIterator"])
        assert [record["Data"] for record in got["Records"]] == [b"\x00one"]


async def test_a_paused_server_hangs_and_a_resumed_one_answers(own_server: Callable[[type[RedisServer]], RedisServer]) -> None:
    from redis.asyncio import Redis

    server = own_server(RedisServer)
    async with Redis.from_url(server.url, socket_connect_timeout=5) as client:
        assert await client.ping()
        server.pause()
        answer = asyncio.ensure_future(client.ping())
        done, _ = await asyncio.wait([answer], timeout=0.3)
        assert not done
        server.resume()
        assert await asyncio.wait_for(answer, 5)


def test_a_paused_server_can_be_stopped(own_server: Callable[[type[RedisServer]], RedisServer]) -> None:
    server = own_server(RedisServer)
    server.pause()
    began = time.monotonic()
    server.stop()
    assert not server.is_running
    assert time.monotonic() - began < 5


class BrokenServer(ServerProcess):
    name = "Broken"
    scheme = "none"

    def command(self) -> list[str]:
        return [sys.executable, "-c", "print('no such luck'); raise SystemExit(3)"]

    def answers(self) -> bool:
        return False


def test_a_server_that_ends_at_its_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match="Broken ended at its start") as failure:
        BrokenServer(tmp_path / "broken").start()
    assert "no such luck" in str(failure.value)


def test_a_missing_part_is_named_with_its_cure() -> None:
    with pytest.raises(ServerMissingError, match=r"needs Nothing, and there is no \.tools/nothing: run `make setup`"):
        installed(ROOT / ".tools" / "nothing", "Nothing")


def test_a_server_dies_with_the_test_run(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "from tests.servers.redis import RedisServer\n"
        "server = RedisServer(pathlib.Path(sys.argv[2])).start()\n"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(ROOT), str(tmp_path / "redis")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    server = Path("/proc") / str(int(run.stdout.readline()))
    assert server.exists()
    run.send_signal(signal.SIGKILL)
    run.communicate()
    deadline = time.monotonic() + 5
    while server.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not server.exists()
