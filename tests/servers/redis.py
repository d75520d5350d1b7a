"""Redis servers that keep what they confirmed: every command is in the append-only file before it is answered.

One server, the sentinel that watches one, and a small cluster.
"""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .process import PROBE_INTERVAL_S, START_TIMEOUT_S, ServerFailedError, ServerMissingError, ServerProcess, free_port

SLOTS = 16384


class RedisServer(ServerProcess):
    """`arguments` follow on its command line, where the last one counts: `"--maxmemory", "10mb"`."""

    name = "Redis"
    scheme = "redis"

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__(folder)
        self._arguments = arguments

    def command(self) -> list[str]:
        program = shutil.which("redis-server")
        if program is None:
            raise ServerMissingError("This test needs redis-server, which is not on the PATH: run `make setup`.")
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        quick = ("--repl-diskless-sync-delay", "0")
        return [program, "--port", str(self.port), "--bind", "127.0.0.1", *durable, *quick, *self._arguments]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))

    def ask(self, *words: str | int | float | bytes, **options: Any) -> Any:
        """The reply to one command, by the client library as it is."""
        from redis import Redis

        with Redis(port=self.port, protocol=2, legacy_responses=True, **options) as client:
            return client.execute_command(*words)


class RedisSentinel(RedisServer):
    """Watches one master, which it calls `main`; a replica takes its place when it is told so, not by itself on a busy machine."""

    name = "Redis Sentinel"
    master = "main"

    def __init__(self, folder: Path, watched: RedisServer) -> None:
        super().__init__(folder)
        self._watched = watched

    def prepare(self) -> None:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor {self.master} 127.0.0.1 {self._watched.port} 1",
            f"sentinel down-after-milliseconds {self.master} 60000",
            f"sentinel failover-timeout {self.master} 5000",
        ]
        (self.folder / "sentinel.conf").write_text("\n".join([*lines, ""]))

    def command(self) -> list[str]:
        return [super().command()[0], str(self.folder / "sentinel.conf"), "--sentinel"]


class RedisCluster:
    """Masters without replicas that share all slots; what one has is missing while it is down, and the others go on."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self._bus_ports = [free_port() for _ in range(size)]
        self.nodes = [
            RedisServer(
                folder / f"node-{number}",
                *("--cluster-enabled", "yes", "--cluster-port", str(bus_port)),
                *("--cluster-require-full-coverage", "no", "--cluster-node-timeout", "2000"),
            )
            for number, bus_port in enumerate(self._bus_ports)
        ]

    def start(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            self._join()
        except BaseException:
            self.stop()
            raise
        return self

    def _join(self) -> None:
        """Gives slots to the nodes and makes them known to each other; returns when all agree."""
        share = -(-SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "ADDSLOTSRANGE", number * share, min((number + 1) * share, SLOTS) - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self._bus_ports[0])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(self._knows_all(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise ServerFailedError(f"The nodes of a Redis cluster did not agree within {START_TIMEOUT_S:.0f} s.")
            time.sleep(PROBE_INTERVAL_S)

    def _knows_all(self, node: RedisServer) -> bool:
        slots = node.ask("CLUSTER", "SLOTS")
        return "cluster_state:ok" in str(node.ask("CLUSTER", "INFO")) and len(slots) == len(self.nodes)

    def owner_of(self, key: str) -> RedisServer:
        """The node that has a key."""
        slot = self.slot_of(key)
        return self.nodes[slot // -(-SLOTS // len(self.nodes))]

    def slot_of(self, key: str) -> int:
        return int(self.nodes[0].ask("CLUSTER", "KEYSLOT", key))

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
