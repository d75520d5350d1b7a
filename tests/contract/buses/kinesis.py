"""The Kinesis bus in front of kinesalite, read back by plain HTTP."""

from __future__ import annotations

import ssl
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.contract.bus_under_test import Delivered, Misconfiguration
from tests.contract.buses.aws import AwsUnderTest
from tests.contract.buses.kinesis_aggregates import user_records
from tests.servers.aws_faults import Body
from tests.servers.kinesalite import KinesaliteServer


class KinesisUnderTest(AwsUnderTest):
    prefix = "kinesis"
    burst = 36
    keeps_order = True
    key_option = "partition-key-template"

    def __init__(self, folder: Path, server: KinesaliteServer | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.server = server or KinesaliteServer(folder / "kinesalite")
        super().__init__(folder, self.server, tls)
        self.base = self.new_destination("events")

    def keywords(self) -> dict[str, Any]:
        """With aggregates: what keeps order for a key, and up with many records of one."""
        return {**super().keywords(), "stream": self.base, "aggregate": True}

    def direct_keywords(self) -> dict[str, Any]:
        return {**self.keywords(), "endpoint-url": self.server.url}

    def destination_option(self) -> tuple[str, str]:
        return "stream-routing", self.base

    def new_destination(self, name: str) -> str:
        self.destinations.append(self.server.create_stream(self.unique(name)))
        return self.destinations[-1]

    def goes_to(self, body: Body, destination: str) -> bool:
        return body.get("StreamName") == destination

    def read_back(self) -> list[Delivered]:
        return [
            Delivered(stream, key, {}, value)
            for stream in self.destinations
            for record in self.server.read(stream)
            for key, value in user_records(record["PartitionKey"], b64decode(record["Data"]))
        ]

    def misconfigurations(self) -> Sequence[Misconfiguration]:
        return [
            Misconfiguration({"stream": "no-such-stream"}, "no-such-stream.* not found"),
            Misconfiguration({"stream": "a stream"}, "expected the name of a stream"),
            Misconfiguration({"stream-routing": "trade:a b"}, "'a b'"),
            Misconfiguration({"dead-letter-stream": "a b"}, "--kinesis-dead-letter-stream: .*'a b'"),
            Misconfiguration({"dead-letter-stream": "no-such-stream"}, "no-such-stream.* not found"),
            Misconfiguration({"stream-routing": "trade:no-such-stream"}, "no-such-stream.* not found"),
            Misconfiguration({"max-batch-size": 501}, "from 1 to 500"),
            Misconfiguration({"max-record-bytes": "11MiB"}, "max-record-bytes"),
            Misconfiguration({"max-record-bytes": "2MiB"}, "accepts at most 1048576"),
            Misconfiguration({"secret-key": ""}, "secret-key"),
            Misconfiguration({"ca-bundle": self.folder / "none.pem"}, "ca-bundle: .*none.pem' is not a file"),
        ]
