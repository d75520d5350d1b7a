"""The SQS bus in front of ElasticMQ, read back by plain HTTP."""

from __future__ import annotations

import ssl
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

from tests.contract.bus_under_test import BusUnderTest, Delivered, Misconfiguration
from tests.contract.buses.aws import AwsUnderTest
from tests.servers.aws_faults import Body
from tests.servers.elasticmq import ElasticMqServer


class SqsUnderTest(AwsUnderTest):
    """A FIFO queue: the one that keeps order."""

    prefix = "sqs"
    in_order: ClassVar[dict[str, Any]] = {"order": "key"}
    key_option = "message-group-template"
    burst = 12
    keeps_order = False
    ending: ClassVar[str] = ".fifo"

    def __init__(self, folder: Path, server: ElasticMqServer | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.server = server or ElasticMqServer(folder / "elasticmq")
        super().__init__(folder, self.server, tls)
        self._taken: dict[str, list[Delivered]] = {}
        self.base = self.new_destination("events")

    @classmethod
    def at_speed(cls, folder: Path) -> BusUnderTest:
        return StandardQueueUnderTest(folder)

    def keywords(self) -> dict[str, Any]:
        return {**super().keywords(), "queue-url": self.base}

    def direct_keywords(self) -> dict[str, Any]:
        return {**self.keywords(), "endpoint-url": self.server.url, "queue-url": self.base.replace(self.url, self.server.url)}

    def destination_option(self) -> tuple[str, str]:
        return "queue-routing", self.base

    def new_destination(self, name: str) -> str:
        """Its URL as the bus sees it, through the proxies."""
        queue = self.unique(name) + self.ending
        self.server.create_queue(queue)
        self.destinations.append(f"{self.url}/000000000000/{queue}")
        return self.destinations[-1]

    def goes_to(self, body: Body, destination: str) -> bool:
        return body.get("QueueUrl") == destination

    def read_back(self) -> list[Delivered]:
        return [record for queue in self.destinations for record in self.take(queue)]

    def take(self, queue: str) -> list[Delivered]:
        """In the order of their arrival; what was taken before is still there."""
        seen = self._taken.setdefault(queue, [])
        for message in self.server.take(queue.replace(self.url, self.server.url)):
            headers = {name: attribute["StringValue"] for name, attribute in message["MessageAttributes"].items()}
            key = unquote(message["Attributes"].get("MessageGroupId", ""))
            seen.append(Delivered(queue, key, headers, b64decode(message["Body"])))
        return seen

    def misconfigurations(self) -> Sequence[Misconfiguration]:
        beside = self.base.rpartition("/")[0]
        many = ",".join(f"a{number}:{number}" for number in range(8))
        return [
            Misconfiguration({"queue-url": f"{beside}/no-such-queue"}, "no-such-queue.* does not exist"),
            Misconfiguration({"queue-routing": "trade:no-such-queue"}, "no-such-queue.* does not exist"),
            Misconfiguration({"queue-routing": "trade:a b"}, "/a b has an invalid name"),
            Misconfiguration({"dead-letter-queue": "a b"}, "/a b has an invalid name"),
            Misconfiguration({"dead-letter-queue": "no-such-queue"}, "no-such-queue.* does not exist"),
            Misconfiguration(
                {"queue-routing": "trade:https://elsewhere/1/x"}, "elsewhere.* is not at the address of --sqs-queue-url"
            ),
            Misconfiguration({"static-attributes": many}, "SQS accepts 10 attributes a message, but there are 11"),
            Misconfiguration({"attributes": "symbol:{{symbl}}"}, r"\{\{symbl\}\}"),
            Misconfiguration({"attributes": "eventId:{{symbol}}"}, "'eventId'"),
            Misconfiguration({"static-attributes": "AWS.x:1"}, "'AWS.x'"),
            Misconfiguration({"max-batch-size": 11}, "from 1 to 10"),
            Misconfiguration({"secret-key": ""}, "secret-key"),
        ]


class StandardQueueUnderTest(SqsUnderTest):
    """A queue without order, which takes many at once."""

    ending = ""
