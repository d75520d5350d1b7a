"""The Redis bus in front of a server of its own that keeps what it confirmed, behind a network that can be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.contract.bus_under_test import ALL_FAULTS, BusUnderTest, Delivered, Fault, Misconfiguration
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer

PAGE = 10_000


class RedisUnderTest(BusUnderTest):
    prefix = "redis"
    faults: ClassVar[Sequence[Fault]] = ALL_FAULTS
    cannot: ClassVar[dict[Fault, str]] = {}
    key_option = "record-key-template"

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__(folder)
        self.server = RedisServer(folder / "redis", *arguments).start()
        self._network = FaultProxy(self.server.port).start()
        self._fault: Fault | None = None
        self._streams = ["events"]

    def keywords(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self._network.port, "stream": "events"}

    def direct_keywords(self) -> dict[str, Any]:
        """With the server as it comes, without its append-only file: both sides of a benchmark are then bound by more than the disk."""
        self.server.ask("CONFIG", "SET", "appendonly", "no")
        return {**self.keywords(), "port": self.server.port}

    def destination_option(self) -> tuple[str, str]:
        return "stream-routing", "events"

    def new_destination(self, name: str) -> str:
        self._streams.append(name)
        return name

    def read_back(self) -> list[Delivered]:
        return list(self.each_record())

    def each_record(self) -> Iterator[Delivered]:
        for stream in self._streams:
            yield from read_stream(self.server, stream)

    def inject(self, fault: Fault) -> None:
        self._fault = fault
        if fault in ("gone", "restart"):
            self.server.kill()
        elif fault == "hang":
            self.server.pause()
        elif fault == "cut":
            self._network.reset()
        else:
            self.server.ask("RENAME", self._streams[-1], "aside")
            self.server.ask("SET", self._streams[-1], "no stream")

    def heal(self) -> None:
        if self._fault in ("gone", "restart"):
            self.server.start()
        elif self._fault == "hang":
            self.server.resume()
        elif self._fault == "partial":
            self.server.ask("RENAME", "aside", self._streams[-1])
        self._fault = None

    def misconfigurations(self) -> Sequence[Misconfiguration]:
        self.server.ask("SET", "text", "no stream")
        return [
            Misconfiguration({"password": "guess"}, "did not accept --redis-username and --redis-password"),
            Misconfiguration({"db": 99}, "has no database 99"),
            Misconfiguration({"stream": "text"}, "'text' did not take events, as a key of that name holds something else"),
            Misconfiguration({"stream-routing": "trade:text"}, "'text' did not take events"),
            Misconfiguration({"dead-letter-stream": "text"}, "'text' did not take events"),
            Misconfiguration({"stream-template": "{{symbl}}"}, r"\{\{symbl\}\}"),
            Misconfiguration({"static-headers": "key:x"}, "--redis-static-headers: 'key' can't be set"),
            Misconfiguration({"host": "localhost:6379"}, "expected a host name; its port is --redis-port"),
            Misconfiguration({"url": "redis://127.0.0.1"}, "--redis-url and --redis-host can't be combined"),
            Misconfiguration({"sentinel-master": "main"}, "--redis-sentinels and --redis-sentinel-master"),
            Misconfiguration({"tls-ca": self.folder}, "--redis-tls-ca needs --redis-tls"),
            Misconfiguration({"max-batch-size": 10_001}, "from 1 to 10000"),
        ]

    def close(self) -> None:
        self._network.stop()
        self.server.stop()


def read_stream(server: RedisServer, stream: str) -> Iterator[Delivered]:
    """All entries of a stream, oldest first, by XRANGE."""
    after = "-"
    while found := server.ask("XRANGE", stream, after, "+", "COUNT", PAGE):
        for _, fields in found:
            values = {name.decode(): value for name, value in fields.items()}
            value, key = values.pop("value"), values.pop("key")
            yield Delivered(stream, key.decode(), {name: text.decode() for name, text in values.items()}, value)
        after = f"({found[-1][0].decode()}"
