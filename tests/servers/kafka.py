"""A Kafka broker: one node, its own KRaft controller.

Topics are not made by being written to, so that an unknown topic is the error that it is in production.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from .process import ServerFailedError, ServerProcess, class_path, free_port, java

CLUSTER_ID = "dGFyZGlzLW1hY2hpbmUtMQ"
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")
LOGGING = """\
<Configuration status="warn">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class KafkaServer(ServerProcess):
    """`properties` are added to, or replace, those below."""

    name = "Kafka"
    scheme = "kafka"

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        controller = f"127.0.0.1:{free_port()}"
        self.properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker may come back only when its controller has given up on the earlier one.
            "broker.heartbeat.interval.ms": "300",
            "broker.session.timeout.ms": "2000",
            **(properties or {}),
        }

        # Users are part of the storage before the broker first starts: `SCRAM-SHA-256=[name=alice,password=…]`.
        self.scram_users: list[str] = []

    def add_listener(self, name: str, protocol: str = "PLAINTEXT", *, port: int = 0, advertised_port: int = 0) -> str:
        """A further address, before the start; clients that come there are sent on to the advertised port. Returns that one."""
        port = port or free_port()
        advertised = f"127.0.0.1:{advertised_port or port}"
        self.properties["listeners"] += f",{name}://127.0.0.1:{port}"
        self.properties["advertised.listeners"] += f",{name}://{advertised}"
        protocols = self.properties.get("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT")
        self.properties["listener.security.protocol.map"] = f"{protocols},{name}:{protocol}"
        return advertised

    def prepare(self) -> None:
        (self.folder / "log4j2.xml").write_text(LOGGING)
        (self.folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))
        users = [argument for user in self.scram_users for argument in ("--add-scram", user)]
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", "server.properties", *users]
        formatted = subprocess.run(
            [*self._java(), *tool],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if formatted.returncode != 0:
            raise ServerFailedError(f"Kafka could not format its storage: {formatted.stdout}{formatted.stderr}")

    def command(self) -> list[str]:
        return [*self._java(), "kafka.Kafka", "server.properties"]

    def answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            return any(broker.port == self.port for broker in admin.list_topics(timeout=1).brokers.values())
        except KafkaException:
            return False

    def _java(self) -> list[str]:
        return [java(), *JVM_OPTIONS, "-Dlog4j2.configurationFile=log4j2.xml", "-cp", class_path("kafka")]
