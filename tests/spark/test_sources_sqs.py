"""The receiver of SQS: what it writes, and when it deletes; against ElasticMQ and without Spark."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.sources.sqs import SqsOptions, SqsReceiver, to_columns
from tardis_machine.lakehouse.storage import Folder
from tests.contract.buses.sqs import SqsUnderTest
from tests.servers.elasticmq import ElasticMqServer
from tests.spark.source_under_test import SourceUnderTest, digests

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def source(tmp_path: Path, elasticmq: ElasticMqServer) -> Iterator[SourceUnderTest]:
    with SourceUnderTest("sqs", tmp_path / "bus", elasticmq) as source:
        yield source


def receiver(source: SourceUnderTest, folder: Path) -> SqsReceiver:
    return SqsReceiver(SqsOptions.from_settings(source.settings, "sqs"), Folder(str(folder)))


def received(folder: Path) -> list[bytes]:
    return [value for file in folder.glob("part-*.parquet") for value in pq.read_table(file).column("value").to_pylist()]


def ask(source: SourceUnderTest, action: str, **parameters: Any) -> Any:
    """The queue's own server, past the bus."""
    bus = source.bus
    assert isinstance(bus, SqsUnderTest)
    return bus.server.call(action, QueueUrl=bus.base.replace(bus.url, bus.server.url), **parameters)


def left_in_queue(source: SourceUnderTest) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = ask(source, "GetQueueAttributes", AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def take_and_forget(source: SourceUnderTest, count: int, hidden_s: int) -> int:
    """Messages that nobody will delete."""
    return len(ask(source, "ReceiveMessage", MaxNumberOfMessages=count, VisibilityTimeout=hidden_s)["Messages"])


def test_a_queue_is_received_whole_and_then_emptied(source: SourceUnderTest, tmp_path: Path) -> None:
    source.publish(25)
    source.leave()
    threading.Timer(1.0, source.come_back).start()
    assert receiver(source, tmp_path / "landing").drain() == 25
    assert digests(received(tmp_path / "landing")) == digests(source.values)
    assert left_in_queue(source) == 0
    row = pq.read_table(next((tmp_path / "landing").glob("part-*"))).to_pylist()[0]
    assert dict(row["headers"])["payloadCase"] == "trade"
    assert row["destination"] == source.bus.destination_option()[1]
    assert abs(row["broker_timestamp"].timestamp() - time.time()) < 120


def test_what_a_call_took_whose_answer_never_came_is_waited_for(
    source: SourceUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tardis_machine.lakehouse.sources.sqs._VISIBILITY_S", 6)
    source.publish(5)
    assert take_and_forget(source, 3, hidden_s=6) == 3
    assert receiver(source, tmp_path / "landing").drain() == 5
    assert digests(received(tmp_path / "landing")) == digests(source.values)
    assert left_in_queue(source) == 0


def test_messages_that_come_again_just_before_they_are_counted_are_not_left(
    source: SourceUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = SqsReceiver._count

    async def count_late(self: SqsReceiver, queue: str) -> int:
        await asyncio.sleep(max(0.0, visible_at - time.monotonic()))
        return await count(self, queue)

    monkeypatch.setattr(SqsReceiver, "_count", count_late)
    source.publish(5)
    assert take_and_forget(source, 3, hidden_s=10) == 3
    visible_at = time.monotonic() + 11
    assert receiver(source, tmp_path / "landing").drain() == 5
    assert left_in_queue(source) == 0


def test_messages_that_another_receiver_keeps_are_not_waited_for_for_ever(
    source: SourceUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tardis_machine.lakehouse.sources.sqs._HIDDEN_S", 3)
    source.publish(5)
    kept = take_and_forget(source, 2, hidden_s=100)
    assert receiver(source, tmp_path / "landing").drain() == 5 - kept


def test_nothing_is_deleted_that_is_not_on_disk(source: SourceUnderTest, tmp_path: Path) -> None:
    source.publish(3)
    (tmp_path / "landing").write_text("no folder")
    with pytest.raises(
        LakeError, match=r"messages of SQS can't be written to .*landing: File exists; name another folder with --landing-dir"
    ):
        receiver(source, tmp_path / "landing").drain()
    assert left_in_queue(source) == 3


def test_a_running_receiver_takes_what_comes_and_ends_with_its_context(source: SourceUnderTest, tmp_path: Path) -> None:
    with receiver(source, tmp_path / "landing") as running:
        source.publish(4)
        deadline = time.monotonic() + 60
        while left_in_queue(source) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert running.failure is None
    assert digests(received(tmp_path / "landing")) == digests(source.values)
    assert not [thread for thread in threading.enumerate() if thread.name == "sqs-receiver"]


def test_a_body_that_is_not_base64_is_kept_for_the_quarantine() -> None:
    columns = to_columns([("queue", {"Body": "not base64!", "MessageId": "m"})])
    assert columns.values == [b"not base64!"]
    assert columns.to_batch().column("key").to_pylist() == [None]
