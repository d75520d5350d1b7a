"""SQS as ElasticMQ plays it, with Amazon's limits; what it holds is gone with the process, but for one that keeps it."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any

from .process import ServerProcess, class_path, http_status, java

# All messages of a soak are in its memory, some two kilobytes each; a heap that is nearly full does little but look for room.
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx4g")
SETTINGS = """\
include classpath("application.conf")
generate-node-address = false
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""
# Written with each message, at a seventh of the speed.
KEEPING = """
messages-storage { enabled = true, uri = "jdbc:h2:./messages;WRITE_DELAY=0" }
"""


class ElasticMqServer(ServerProcess):
    name = "ElasticMQ"
    scheme = "http"
    storage = ""

    def prepare(self) -> None:
        (self.folder / "elasticmq.conf").write_text(SETTINGS.format(port=self.port) + self.storage)

    def command(self) -> list[str]:
        return [java(), *JVM_OPTIONS, "-Dconfig.file=elasticmq.conf", "-cp", class_path("elasticmq"), "org.elasticmq.server.Main"]

    def answers(self) -> bool:
        return http_status(self.port, "/?Action=ListQueues") == 200

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """What the service answers, by plain HTTP; what it refuses is an error."""
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("POST", "/", json.dumps(parameters), headers)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{operation}: {text.decode()}")
        return json.loads(text) if text else {}

    def create_queue(self, name: str) -> str:
        """Its URL; a name that ends with .fifo makes a FIFO queue."""
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        url: str = self.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def take(self, url: str) -> list[dict[str, Any]]:
        """All messages, which are then no longer there; those of a group in order."""
        taken: list[dict[str, Any]] = []
        asked = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
        while messages := self.call("ReceiveMessage", QueueUrl=url, **asked).get("Messages", []):
            handles = [{"Id": str(place), "ReceiptHandle": found["ReceiptHandle"]} for place, found in enumerate(messages)]
            self.call("DeleteMessageBatch", QueueUrl=url, Entries=handles)
            taken += messages
        return taken


class KeepingElasticMqServer(ElasticMqServer):
    """What it confirmed is still there when it was killed and is started again; those of a group come back in any order."""

    storage = KEEPING
